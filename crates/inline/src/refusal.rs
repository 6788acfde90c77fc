use std::fmt;

/// Why a function is not hooked. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The function, or what of it comes before its first jump away, has no room for a jump.
    TooShort {
        /// Size of the function in bytes, as the symbol table has it.
        size: u64,
    },
    /// Something in the function branches to one of the first instructions: a loop around the
    /// whole body, mostly. It would land in the middle of our jump, or be taken for a call.
    BranchBack {
        /// Offset of the branch in the function, in bytes; of a part of it elsewhere: from its
        /// beginning all the same.
        at: i64,
    },
    /// One of the first instructions is a call. Its return address would be in the trampoline,
    /// through which no exception can be unwound.
    CallDisplaced {
        /// Offset of the call, in bytes.
        at: u64,
    },
    /// What should be the function's code is none.
    Undecodable {
        /// Offset of the first byte that is no instruction.
        at: u64,
    },
    /// The function is not where code is.
    NotCode,
    /// Another function of the batch has the same address: the linker folded identical ones.
    Shared {
        /// The name of that function.
        with: String,
    },
    /// An instruction that does something relative to its own address cannot be moved.
    NotRelocatable,
    /// No free memory near enough to the function for its trampoline.
    NoMemoryNearby,
    /// The system does not let code be changed: SELinux, `MemoryDenyWriteExecute=`, `MDWE`.
    WriteForbidden(String),
    /// The code is no longer what it was a moment ago: somebody else patches too.
    Modified,
    /// A batch was installed already; there is no second one.
    Installed,
    /// Anything else that `detour` says.
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
