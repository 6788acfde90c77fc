use crate::Endpoint;

/// Limits for what clients may make the index keep and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body; for the server to enforce before it calls.
    pub body: usize,
    /// The same, of a `/evict`.
    pub evict_body: usize,
    /// Bytes that all requests take together while they are received, worked on and answered; for the server to
    /// enforce, with [`weight`](crate::weight()).
    pub bodies: usize,
    /// Contexts in a call. Clustering takes 4 bytes for the square of their number: 400 MB for
    /// 10,000.
    pub contexts: usize,
    /// Blocks in a context.
    pub blocks_in_context: usize,
    /// Blocks in a call.
    pub blocks_in_call: usize,
    /// Ids in a call.
    pub ids_in_call: usize,
    /// Bytes of a hint template. It is repeated for each document that it refers to.
    pub hint: usize,
    /// Requests that are tracked. Beyond it, those that are not known to be cached make room;
    /// where all are, further ones are refused (429).
    pub requests: usize,
    /// Distinct blocks that are known. Beyond it, those in no request make room; where all are in
    /// one, further ones are refused (429).
    pub blocks: usize,
    /// Bytes of everything that is kept, about. Beyond it, both make room as above, and the oldest
    /// turns.
    pub kept: usize,
    /// Requests that count as cached while the index guesses.
    pub guessed: usize,
    /// Turns of conversations that are remembered for `/deduplicate`; the oldest make room.
    pub turns: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 64 << 20,
            evict_body: 16 << 20,
            bodies: 512 << 20,
            contexts: 10_000,
            blocks_in_context: 10_000,
            blocks_in_call: 1_000_000,
            ids_in_call: 100_000,
            hint: 1024,
            requests: 100_000,
            blocks: 1_000_000,
            kept: 256 << 20,
            guessed: 256,
            turns: 100_000,
        }
    }
}

impl Limits {
    /// Bytes of the body of a request to this endpoint.
    #[must_use]
    pub fn body_of(&self, endpoint: Endpoint) -> usize {
        match endpoint {
            Endpoint::Evict => self.evict_body,
            _ => self.body,
        }
    }
}
