//! aarch64: one instruction is overwritten with a branch. A landing pad before it stays in place.

use std::ops::Range;

use super::code::{Code, Displaced, Extent};
use crate::Refusal;

const WORD: u64 = 4;

/// `bti`, `bti c`, `bti j`, `bti jc`, `paciasp`, `pacibsp`: landing pads, which `detour` leaves in place.
const LANDING_PADS: [u32; 6] = [
    0xd503_241f,
    0xd503_245f,
    0xd503_249f,
    0xd503_24df,
    0xd503_233f,
    0xd503_237f,
];

/// The addresses of the instructions that are moved: the overwritten one and a pad before it.
pub(super) fn displaced(extent: &Extent, code: &[u8]) -> Result<Displaced, Refusal> {
    let mut words = words(code);
    let too_short = Refusal::TooShort { size: extent.size };
    let first = words.next().ok_or(too_short.clone())?;
    let (at, word) = if LANDING_PADS.contains(&first) {
        (WORD, words.next().ok_or(too_short)?)
    } else {
        (0, first)
    };
    if is_call(word) {
        return Err(Refusal::CallDisplaced { at });
    }
    let range = extent.address..extent.address + at + WORD;
    Ok(Displaced { range, call: None })
}

/// Looks for branches into the moved instructions. Tables of a `switch` are not followed: they do not lead
/// to the first instruction.
pub(super) fn check(
    extent: &Extent,
    start: u64,
    code: &[u8],
    displaced: &Range<u64>,
    _: &impl Code,
) -> Result<(), Refusal> {
    for (index, word) in (0..).zip(words(code)) {
        let address = start + index * WORD;
        let Some(target) = branch_target(word, address) else {
            continue;
        };
        let is_recursion = is_call(word) && target == extent.address;
        if displaced.contains(&target) && !is_recursion {
            let at = address.wrapping_sub(extent.address) as i64;
            return Err(Refusal::BranchBack { at });
        }
    }
    Ok(())
}

fn words(code: &[u8]) -> impl Iterator<Item = u32> {
    code.chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// `bl`, `blr` and its authenticating forms.
fn is_call(word: u32) -> bool {
    word & 0xfc00_0000 == 0x9400_0000 || word & 0xfeff_f000 == 0xd63f_0000
}

/// The target of `b`, `bl`, `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`.
fn branch_target(word: u32, address: u64) -> Option<u64> {
    let offset = |field: u32, bits: u32| {
        let unused = 64 - bits;
        ((u64::from(field) << unused) as i64 >> unused) * 4
    };
    let offset = if word & 0x7c00_0000 == 0x1400_0000 {
        offset(word & 0x3ff_ffff, 26)
    } else if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        offset((word >> 5) & 0x7_ffff, 19)
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        offset((word >> 5) & 0x3fff, 14)
    } else {
        return None;
    };
    Some(address.wrapping_add_signed(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Code for Nothing {
        fn bytes(&self, _: u64, _: u64) -> Option<&[u8]> {
            None
        }
    }

    const AT: u64 = 0x4000;
    const NOP: u32 = 0xd503_201f;
    const RET: u32 = 0xd65f_03c0;
    const BTI_C: u32 = 0xd503_245f;
    const PACIASP: u32 = 0xd503_233f;

    fn verdict(words: &[u32]) -> Result<Range<u64>, Refusal> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let extent = Extent {
            address: AT,
            size: code.len() as u64,
            parts: Vec::new(),
        };
        let displaced = displaced(&extent, &code)?;
        check(&extent, AT, &code, &displaced.range, &Nothing)?;
        Ok(displaced.range)
    }

    #[test]
    fn one_instruction_is_moved_and_a_landing_pad_with_it() {
        assert_eq!(verdict(&[NOP, RET]), Ok(AT..AT + 4));
        assert_eq!(verdict(&[RET]), Ok(AT..AT + 4));
        assert_eq!(verdict(&[BTI_C, NOP, RET]), Ok(AT..AT + 8));
        assert_eq!(verdict(&[PACIASP, NOP, RET]), Ok(AT..AT + 8));
        assert_eq!(verdict(&[BTI_C]), Err(Refusal::TooShort { size: 4 }));
        assert_eq!(verdict(&[]), Err(Refusal::TooShort { size: 0 }));
    }

    #[test]
    fn calls_and_branches_back_are_refused_and_recursion_is_not() {
        // bl +0x1000; blr x1; blraaz x1
        for call in [0x9400_0400, 0xd63f_0020, 0xd63f_083f] {
            assert_eq!(verdict(&[call, RET]), Err(Refusal::CallDisplaced { at: 0 }));
            assert_eq!(
                verdict(&[BTI_C, call, RET]),
                Err(Refusal::CallDisplaced { at: 4 })
            );
            assert!(verdict(&[NOP, call, RET]).is_ok());
        }
        // b -8; b.ne -8; cbz x0, -8; tbnz w0, #0, -8
        let back = [0x17ff_fffe, 0x54ff_ffc1, 0xb4ff_ffc0, 0x3707_ffc0];
        for branch in back {
            let to_the_first = verdict(&[NOP, NOP, branch, RET]);
            assert_eq!(
                to_the_first,
                Err(Refusal::BranchBack { at: 8 }),
                "{branch:x}"
            );
            assert!(verdict(&[NOP, NOP, NOP, branch, RET]).is_ok(), "{branch:x}");
        }
        // bl -8: to the beginning, and into the middle of pad and first instruction
        assert!(verdict(&[NOP, NOP, 0x97ff_fffe, RET]).is_ok());
        let into = verdict(&[BTI_C, NOP, NOP, 0x97ff_fffe, RET]);
        assert_eq!(into, Err(Refusal::BranchBack { at: 12 }));
    }
}
