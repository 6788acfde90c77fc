//! x86-64: five bytes are overwritten with a `jmp`, and the instructions that they were part of
//! move to the trampoline.

use std::ops::Range;

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::code::{Code, Displaced, Extent};
use crate::Refusal;

/// `jmp rel32`
const JUMP: u64 = 5;

/// No compiler makes a larger table for one `switch`.
const LONGEST_TABLE: u64 = 4096;

/// The instructions that a jump at the function's beginning displaces.
pub(super) fn displaced(extent: &Extent, code: &[u8]) -> Result<Displaced, Refusal> {
    let too_short = Refusal::TooShort { size: extent.size };
    if extent.size < JUMP {
        return Err(too_short);
    }
    let mut end = 0;
    let mut call = None;
    let mut depends_on_place = false;
    for instruction in decoder(extent.address, code) {
        let at = instruction.ip() - extent.address;
        if instruction.is_invalid() {
            return Err(Refusal::Undecodable { at });
        }
        end = at + instruction.len() as u64;
        match instruction.flow_control() {
            // It is no shorter than our jump, so it ends behind it. What comes before it is copied as it is.
            FlowControl::Call
                if instruction.code() == Opcode::Call_rel32_64 && !depends_on_place =>
            {
                call = Some((instruction.ip(), instruction.near_branch_target()));
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                return Err(Refusal::CallDisplaced { at });
            }
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            // Code behind a jump may belong to another path, or to another function.
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
                if end < JUMP =>
            {
                return Err(too_short);
            }
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return => {}
            // Interrupts, exceptions, transactions.
            _ => return Err(Refusal::NotRelocatable),
        }
        if end >= JUMP {
            break;
        }
        depends_on_place |= is_near_branch(&instruction) || instruction.is_ip_rel_memory_operand();
    }
    if end < JUMP {
        return Err(too_short);
    }
    let range = extent.address..extent.address + end;
    Ok(Displaced { range, call })
}

/// The end of what this function writes through the address for its result, if it does nothing but write there and return.
pub(super) fn returned(code: &[u8]) -> Option<u64> {
    let mut end = None;
    // It comes in one register, and is returned in the other.
    let mut results = vec![Register::RDI];
    for instruction in decoder(0, code) {
        match instruction.flow_control() {
            FlowControl::Return => return end,
            FlowControl::Next => {}
            _ => return None,
        }
        let to = instruction.op0_register().full_register();
        if instruction.op0_kind() == OpKind::Memory {
            let is_result = results.contains(&instruction.memory_base())
                && instruction.memory_index() == Register::None;
            let size = u64::try_from(instruction.memory_size().size()).ok()?;
            let written = instruction.memory_displacement64().checked_add(size);
            end = end.max(Some(written.filter(|_| is_result)?));
        } else if instruction.mnemonic() == Mnemonic::Mov
            && instruction.op1_register() == Register::RDI
        {
            results.push(to);
        } else if results.contains(&to) {
            return None;
        }
    }
    None
}

/// Looks for any way to enter the displaced instructions other than calling the function.
pub(super) fn check(
    extent: &Extent,
    start: u64,
    code: &[u8],
    displaced: &Range<u64>,
    memory: &impl Code,
) -> Result<(), Refusal> {
    // Recursion may call the beginning, and its address may be taken, but not those of the other
    // displaced bytes.
    let inner = displaced.start + 1..displaced.end;
    let mut tables = Vec::new();
    let mut switches = None;
    for instruction in decoder(start, code) {
        let at = instruction.ip().wrapping_sub(extent.address);
        let back = Err(Refusal::BranchBack { at: at as i64 });
        if instruction.is_invalid() {
            return Err(Refusal::Undecodable { at });
        }
        if is_near_branch(&instruction) {
            let target = instruction.near_branch_target();
            let forbidden = match instruction.flow_control() {
                FlowControl::Call => &inner,
                _ => displaced,
            };
            if forbidden.contains(&target) {
                return back;
            }
        }
        if instruction.is_ip_rel_memory_operand() {
            let target = instruction.ip_rel_memory_address();
            if inner.contains(&target) {
                return back;
            }
            if instruction.mnemonic() == Mnemonic::Lea {
                tables.push(target);
            }
        }
        if instruction.flow_control() == FlowControl::IndirectBranch {
            switches = Some(at);
            if let Some(table) = absolute_table(&instruction) {
                let entries = absolute_entries(memory, table);
                if leads_into(extent, displaced, entries) {
                    return back;
                }
            }
        }
    }
    let Some(at) = switches else {
        return Ok(());
    };
    // Every possible address of a table is tried. An address that is not a jump table fails at its first
    // entry.
    for table in tables {
        if leads_into(extent, displaced, relative_entries(memory, table)) {
            return Err(Refusal::BranchBack { at: at as i64 });
        }
    }
    Ok(())
}

/// Follows a table as long as its entries lead into the function.
fn leads_into(extent: &Extent, displaced: &Range<u64>, entries: impl Iterator<Item = u64>) -> bool {
    entries
        .take_while(|target| extent.contains(*target))
        .any(|target| displaced.contains(&target))
}

/// Position-independent code: offsets of 32 bits from the table's address.
fn relative_entries(memory: &impl Code, table: u64) -> impl Iterator<Item = u64> {
    (0..LONGEST_TABLE).map_while(move |index| {
        let entry = memory.bytes(table.checked_add(index * 4)?, 4)?;
        let entry = i32::from_le_bytes(entry.try_into().ok()?);
        Some(table.wrapping_add_signed(i64::from(entry)))
    })
}

/// Other code: addresses.
fn absolute_entries(memory: &impl Code, table: u64) -> impl Iterator<Item = u64> {
    (0..LONGEST_TABLE).map_while(move |index| {
        let entry = memory.bytes(table.checked_add(index * 8)?, 8)?;
        Some(u64::from_le_bytes(entry.try_into().ok()?))
    })
}

/// `jmp [table + register * 8]`
fn absolute_table(instruction: &Instruction) -> Option<u64> {
    (instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::None
        && instruction.memory_index() != Register::None)
        .then(|| instruction.memory_displacement64())
}

fn is_near_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

fn decoder(address: u64, code: &[u8]) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
}
