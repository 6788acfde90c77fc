//! Whether an index keeps a state, and where it learns what is cached.

/// Whether the index keeps a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Contexts are ordered by what is cached.
    #[default]
    Live,
    /// Each batch is ordered by itself.
    Stateless,
}

/// The source of what is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truth {
    /// A guess: each context counts as cached once it was answered, until `/evict` says
    /// otherwise or too many others came after it.
    #[default]
    Guess,
    /// The engine's hook was reached, and is being asked for what the index tracks. Nothing counts as cached that
    /// it has not said yet.
    Learning,
    /// The engine's hook, which reports what becomes cached and what is evicted.
    Engine,
}

impl Truth {
    /// In answers.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Guess => "own guess",
            Self::Learning => "learning",
            Self::Engine => "engine",
        }
    }
}
