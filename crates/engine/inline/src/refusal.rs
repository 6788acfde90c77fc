use std::fmt;

/// Why a function is not hooked. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The function, or its part before the first jump, has no room for our jump.
    TooShort {
        /// Size of the function in bytes, as the symbol table has it.
        size: u64,
    },
    /// The function branches to one of its first instructions, mostly for a loop around the
    /// whole body. The branch would land in the middle of our jump, or be taken for a call.
    BranchBack {
        /// Offset of the branch from the beginning of the function, in bytes, even if it is in another
        /// part.
        at: i64,
    },
    /// One of the first instructions is a call that cannot be replaced by a jump. Its return address would be
    /// in the trampoline, through which no exception can be unwound.
    CallDisplaced {
        /// Offset of the call, in bytes.
        at: u64,
    },
    /// The function's bytes are not code.
    Undecodable {
        /// Offset of the first byte that is not an instruction.
        at: u64,
    },
    /// The function does not lie within code.
    NotCode,
    /// Another function of the batch has the same address: the linker folded identical ones.
    Shared {
        /// The name of that function.
        with: String,
    },
    /// An instruction that does something relative to its own address cannot be moved.
    NotRelocatable,
    /// There is no free memory near enough to the function for its trampoline.
    NoMemoryNearby,
    /// The system does not let code be changed: SELinux, `MemoryDenyWriteExecute=`, `MDWE`.
    WriteForbidden(String),
    /// The code has changed since it was read: something else patches it, too.
    Modified,
    /// A batch was installed already, in memory to which no other one may be added.
    Installed,
    /// Any other error of `detour`.
    Other(String),
}

impl From<detour::Error> for Refusal {
    fn from(error: detour::Error) -> Self {
        match error {
            detour::Error::PatchAreaTooSmall => Self::TooShort { size: 0 },
            detour::Error::UnsupportedInstruction => Self::NotRelocatable,
            detour::Error::InvalidInstruction => Self::Undecodable { at: 0 },
            detour::Error::NotExecutable => Self::NotCode,
            detour::Error::NoNearbyMemory => Self::NoMemoryNearby,
            detour::Error::TargetModified => Self::Modified,
            detour::Error::Memory(error) => Self::WriteForbidden(error.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { size: 0 } => f.write_str("is too short"),
            Self::TooShort { size } => write!(f, "is too short ({size} bytes)"),
            Self::BranchBack { at } => write!(f, "branches back to its beginning (at {at:+#x})"),
            Self::CallDisplaced { at } => write!(f, "begins with a call (at {at:+#x})"),
            Self::Undecodable { at } => write!(f, "has code that is not understood (at {at:+#x})"),
            Self::NotCode => f.write_str("is not in executable memory"),
            Self::Shared { with } => write!(f, "shares its code with {with}"),
            Self::NotRelocatable => f.write_str("begins with an instruction that cannot be moved"),
            Self::NoMemoryNearby => f.write_str("has no free memory nearby"),
            Self::WriteForbidden(why) => {
                write!(f, "may not be changed: the system forbids it ({why})")
            }
            Self::Modified => f.write_str("is being changed by something else"),
            Self::Installed => f.write_str("comes too late: hooks were installed already"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refusal {}
