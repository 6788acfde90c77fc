//! The result of an assembly.

/// A complete prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// Its tokens.
    pub tokens: Vec<i32>,
    /// How many of the first tokens are extra context. The server keeps as many of the last of these as it
    /// has room for.
    pub extra: usize,
}

impl From<Vec<i32>> for Assembled {
    fn from(tokens: Vec<i32>) -> Self {
        Self { tokens, extra: 0 }
    }
}
