use super::*;

/// Code and tables at addresses of their own.
struct Pieces(Vec<(u64, Vec<u8>)>);

impl Code for Pieces {
    fn bytes(&self, address: u64, size: u64) -> Option<&[u8]> {
        self.0.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(usize::try_from(size).ok()?)?)
        })
    }
}

const AT: u64 = 0x1000;

fn verdict(code: &[u8]) -> Result<(), Refusal> {
    with(code, &[])
}

fn with(code: &[u8], others: &[(u64, Vec<u8>)]) -> Result<(), Refusal> {
    let mut pieces = others.to_vec();
    pieces.push((AT, code.to_vec()));
    check(&extent(code, &[]), &Pieces(pieces)).map(|_| ())
}

fn extent(code: &[u8], parts: &[(u64, u64)]) -> Extent {
    Extent {
        address: AT,
        size: code.len() as u64,
        parts: parts.to_vec(),
    }
}

const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const PUSH_MOV: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x53]; // push rbp; mov rbp, rsp; push rbx
const RET: u8 = 0xc3;

#[test]
fn ordinary_beginnings_are_accepted() {
    let cases: [&[u8]; 6] = [
        &[PUSH_MOV.as_slice(), &[RET]].concat(),
        &[ENDBR.as_slice(), &PUSH_MOV, &[RET]].concat(),
        // test rdi, rdi; je +1; ret; ret: the branch leads past what is displaced
        &[0x48, 0x85, 0xff, 0x74, 0x01, RET, RET],
        // mov rax, [rip + 0x100]; ret
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0, RET],
        // jmp elsewhere: five bytes, a thunk
        &[0xe9, 0, 0x10, 0, 0],
        // mov rax, [rdi]; jmp [rax + 0x18]: a virtual call at the end
        &[0x48, 0x8b, 0x07, 0xff, 0x60, 0x18],
    ];
    for code in cases {
        assert_eq!(verdict(code), Ok(()), "{code:x?}");
    }
}

#[test]
fn a_function_without_room_for_a_jump_is_refused() {
    // xor eax, eax; ret
    assert_eq!(
        verdict(&[0x31, 0xc0, RET]),
        Err(Refusal::TooShort { size: 3 })
    );
    // The same, followed by a second path that is entered from elsewhere.
    let code = [0x31, 0xc0, RET, 0x90, 0x90, RET];
    assert_eq!(verdict(&code), Err(Refusal::TooShort { size: 6 }));
    assert_eq!(verdict(&[]), Err(Refusal::TooShort { size: 0 }));
    // mov rax, [rip + …], cut off
    let cut = [0x48, 0x8b, 0x05, 0, 1];
    assert_eq!(verdict(&cut), Err(Refusal::Undecodable { at: 0 }));
}

#[test]
fn a_displaced_call_is_told_if_what_comes_before_it_may_be_copied() {
    let displaced = |code: &[u8]| {
        let pieces = Pieces(vec![(AT, code.to_vec())]);
        check(&extent(code, &[]), &pieces)
    };
    let call = [0xe8, 0, 0x10, 0, 0];
    for before in [
        &[][..],
        &[0x53],                   // push rbx
        &[0x48, 0x83, 0xec, 0x08], // sub rsp, 8
    ] {
        let at = before.len() as u64;
        let code = [before, &call, &[RET]].concat();
        let expected = Displaced {
            range: AT..AT + at + 5,
            call: Some((AT + at, AT + at + 5 + 0x1000)),
        };
        assert_eq!(displaced(&code), Ok(expected), "{code:x?}");
    }
    // jne behind the call: the branch would lead elsewhere if it was copied.
    let code = [&[0x75, 0x05], call.as_slice(), &[RET]].concat();
    assert_eq!(displaced(&code), Err(Refusal::CallDisplaced { at: 2 }));
    // call rax; call [rip + 0x100]
    for call in [&[0xff, 0xd0, 0x90, 0x90][..], &[0xff, 0x15, 0, 1, 0, 0]] {
        let code = [&[0x53], call, &[RET]].concat();
        assert_eq!(
            displaced(&code),
            Err(Refusal::CallDisplaced { at: 1 }),
            "{code:x?}"
        );
    }
    // Nothing of a later call is moved.
    let code = [PUSH_MOV.as_slice(), &call, &[RET]].concat();
    assert_eq!(displaced(&code).map(|displaced| displaced.call), Ok(None));
}

#[test]
fn a_later_call_is_allowed() {
    let call = [0xe8, 0, 0x10, 0, 0];
    assert_eq!(
        verdict(&[PUSH_MOV.as_slice(), &call, &[RET]].concat()),
        Ok(())
    );
}

#[test]
fn a_branch_back_is_refused_and_recursion_is_not() {
    let after = |tail: &[u8]| verdict(&[PUSH_MOV.as_slice(), tail, &[RET]].concat());
    // jne to offsets 0, 4 and 5
    assert_eq!(after(&[0x75, 0xf9]), Err(Refusal::BranchBack { at: 5 }));
    assert_eq!(after(&[0x75, 0xfd]), Err(Refusal::BranchBack { at: 5 }));
    assert_eq!(after(&[0x75, 0xfe]), Ok(()));
    // loop, jrcxz to 0
    assert_eq!(after(&[0xe2, 0xf9]), Err(Refusal::BranchBack { at: 5 }));
    assert_eq!(after(&[0xe3, 0xf9]), Err(Refusal::BranchBack { at: 5 }));
    // jmp rel32 to 0; call to 0; call to 1
    assert_eq!(
        after(&[0xe9, 0xf6, 0xff, 0xff, 0xff]),
        Err(Refusal::BranchBack { at: 5 })
    );
    assert_eq!(after(&[0xe8, 0xf6, 0xff, 0xff, 0xff]), Ok(()));
    assert_eq!(
        after(&[0xe8, 0xf7, 0xff, 0xff, 0xff]),
        Err(Refusal::BranchBack { at: 5 })
    );
    // lea rax, [rip → 1]: something may jump to this address
    assert_eq!(
        after(&[0x48, 0x8d, 0x05, 0xf5, 0xff, 0xff, 0xff]),
        Err(Refusal::BranchBack { at: 5 })
    );
    // A branch among the displaced instructions themselves: jne +0 at 0, to 2
    assert_eq!(
        verdict(&[0x75, 0, 0x90, 0x90, 0x90, RET]),
        Err(Refusal::BranchBack { at: 0 })
    );
}

#[test]
fn a_switch_is_followed_through_its_table() {
    // push rbp; mov rbp, rsp; push rbx; lea rax, [rip → 0x2000]; jmp rcx; ret
    let code = [
        PUSH_MOV.as_slice(),
        &[0x48, 0x8d, 0x05, 0xf4, 0x0f, 0, 0, 0xff, 0xe1, RET],
    ]
    .concat();
    let table = |targets: &[u64]| {
        let entries = targets
            .iter()
            .flat_map(|target| (*target as i32 - 0x2000).to_le_bytes())
            .collect::<Vec<u8>>();
        (0x2000, entries)
    };
    assert_eq!(with(&code, &[table(&[AT + 14, AT + 12])]), Ok(()));
    assert_eq!(
        with(&code, &[table(&[AT + 14, AT + 4])]),
        Err(Refusal::BranchBack { at: 12 })
    );
    // What is behind the table is not part of it.
    assert_eq!(with(&code, &[table(&[AT + 14, 0, AT + 4])]), Ok(()));

    // push …; jmp [0x2000 + rax * 8]; ret
    let code = [PUSH_MOV.as_slice(), &[0xff, 0x24, 0xc5, 0, 0x20, 0, 0, RET]].concat();
    let table = |target: u64| (0x2000, target.to_le_bytes().to_vec());
    assert_eq!(with(&code, &[table(AT + 12)]), Ok(()));
    assert_eq!(
        with(&code, &[table(AT + 1)]),
        Err(Refusal::BranchBack { at: 5 })
    );
}

#[test]
fn a_branch_back_from_a_cold_part_is_refused() {
    let code = [PUSH_MOV.as_slice(), &[RET]].concat();
    // jmp back to `to`, from 0x3000
    let cold = |to: u64| {
        let offset = (to as i64 - 0x3005) as i32;
        [&[0xe9], offset.to_le_bytes().as_slice()].concat()
    };
    let check = |to| {
        let pieces = Pieces(vec![(AT, code.clone()), (0x3000, cold(to))]);
        super::check(&extent(&code, &[(0x3000, 5)]), &pieces).map(|_| ())
    };
    assert_eq!(check(AT + 5), Ok(()));
    assert_eq!(check(AT), Err(Refusal::BranchBack { at: 0x2000 }));
}

#[test]
fn bytes_that_are_not_code_are_refused() {
    // An opcode that does not exist in 64 bits, behind a good beginning.
    let code = [PUSH_MOV.as_slice(), &[0x06, RET]].concat();
    assert_eq!(verdict(&code), Err(Refusal::Undecodable { at: 5 }));
    let nowhere = Extent {
        address: 0x9000,
        size: 16,
        parts: Vec::new(),
    };
    assert_eq!(check(&nowhere, &Pieces(Vec::new())), Err(Refusal::NotCode));
}

#[test]
fn how_long_a_structure_is_that_a_function_returns() {
    let returned = machine::returned;
    // Debian's llama_batch_get_one: endbr64; movq xmm0, rsi; mov [rdi], edx; mov rax, rdi; movups [rdi + 8], xmm0;
    // pxor xmm0, xmm0; movups [rdi + 0x18], xmm0; movups [rdi + 0x28], xmm0; ret
    let known = [
        ENDBR.as_slice(),
        &[
            0x66, 0x48, 0x0f, 0x6e, 0xc6, 0x89, 0x17, 0x48, 0x89, 0xf8, 0x0f,
        ],
        &[
            0x11, 0x47, 0x08, 0x66, 0x0f, 0xef, 0xc0, 0x0f, 0x11, 0x47, 0x18,
        ],
        &[0x0f, 0x11, 0x47, 0x28, RET],
    ]
    .concat();
    assert_eq!(returned(&known), Some(56));
    // The last part of ik_llama.cpp's: mov [rdi], edx; mov rax, rdi; mov [rax + 0x38], ecx; mov [rdi + 0x40], r8d; ret
    let fork = [
        0x89, 0x17, 0x48, 0x89, 0xf8, 0x89, 0x48, 0x38, 0x44, 0x89, 0x47, 0x40, RET,
    ];
    assert_eq!(returned(&fork), Some(68));
    // What cannot be known: it writes elsewhere too, calls something, gives the address away, or does not return.
    let unknown: [&[u8]; 5] = [
        &[0x89, 0x17, 0x89, 0x16, RET],       // mov [rdi], edx; mov [rsi], edx
        &[0x89, 0x17, 0xe8, 0, 0, 0, 0, RET], // call
        &[0x89, 0x17, 0x48, 0x89, 0xf7, 0x89, 0x57, 0x40, RET], // mov rdi, rsi; mov [rdi + 0x40], edx
        &[0x89, 0x17],
        &[RET],
    ];
    for code in unknown {
        assert_eq!(returned(code), None, "{code:x?}");
    }
}
