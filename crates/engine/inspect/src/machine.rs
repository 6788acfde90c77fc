use std::fmt;

/// The instruction set of an ELF file, by its `e_machine` and its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    /// `EM_X86_64`, 64 bits.
    X86_64,
    /// `EM_AARCH64`, 64 bits, little-endian.
    Aarch64,
    /// Anything else: `e_machine` and the number of bits (32 or 64).
    Other(u16, u8),
}

impl Machine {
    /// What this crate was compiled for, and a hook beside it too. On anything but the two that
    /// are known, no file is like us.
    pub const OURS: Self = if cfg!(target_arch = "x86_64") {
        Self::X86_64
    } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
        Self::Aarch64
    } else {
        Self::Other(0, 0)
    };

    pub(crate) fn new(e_machine: u16, bits: u8, little_endian: bool) -> Self {
        match (e_machine, bits, little_endian) {
            (62, 64, true) => Self::X86_64,
            (183, 64, true) => Self::Aarch64,
            _ => Self::Other(e_machine, bits),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86_64 => f.write_str("x86-64"),
            Self::Aarch64 => f.write_str("aarch64"),
            Self::Other(3, _) => f.write_str("x86 (32 bits)"),
            Self::Other(40, _) => f.write_str("arm (32 bits)"),
            Self::Other(243, bits) => write!(f, "riscv{bits}"),
            Self::Other(machine, bits) => write!(f, "machine {machine} ({bits} bits)"),
        }
    }
}
