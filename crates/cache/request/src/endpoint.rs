//! Which kind of work a request's path asks for.

/// The kinds of llama-server route, as far as the KV cache is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// `/completion`, `/completions`, `/v1/completions`.
    Completion,
    /// `/chat/completions`, `/v1/chat/completions`.
    Chat,
    /// `/responses`, `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/infill`.
    Infill,
    /// `/embedding`, `/embeddings`, `/v1/embeddings`.
    Embedding,
    /// `/rerank`, `/reranking`, with or without `/v1`.
    Rerank,
    /// `/audio/transcriptions`, `/v1/audio/transcriptions`.
    Transcription,
    /// `/v1/systemone`: questions to a decision model, since 2026. Each question is a prompt, and no token
    /// is generated.
    Decision,
    /// `/slots/0?action=erase`: empties this slot.
    Erase(i32),
    /// Everything else, which evaluates nothing: `/health`, `/slots`, `/tokenize`, …
    Other,
}

impl Endpoint {
    /// Whether a POST to this endpoint puts tasks into the inference queue.
    pub const fn is_inference(self) -> bool {
        !matches!(self, Endpoint::Erase(_) | Endpoint::Other)
    }

    /// Whether the server samples tokens, with parameters from the body.
    pub(crate) const fn generates(self) -> bool {
        match self {
            Endpoint::Completion
            | Endpoint::Chat
            | Endpoint::Responses
            | Endpoint::Messages
            | Endpoint::Infill => true,
            Endpoint::Embedding
            | Endpoint::Rerank
            | Endpoint::Transcription
            | Endpoint::Decision
            | Endpoint::Erase(_)
            | Endpoint::Other => false,
        }
    }

    /// Classifies a decoded path, or the last 32 bytes of one. Only the end
    /// counts: `--api-prefix` may put anything before it.
    pub fn of_path(path: &[u8]) -> Self {
        const ROUTES: [(&[u8], Endpoint); 12] = [
            // The longer of two routes with a common end comes first.
            (b"/chat/completions", Endpoint::Chat),
            (b"/completions", Endpoint::Completion),
            (b"/completion", Endpoint::Completion),
            (b"/responses", Endpoint::Responses),
            (b"/v1/messages", Endpoint::Messages),
            (b"/infill", Endpoint::Infill),
            (b"/embedding", Endpoint::Embedding),
            (b"/embeddings", Endpoint::Embedding),
            (b"/rerank", Endpoint::Rerank),
            (b"/reranking", Endpoint::Rerank),
            (b"/audio/transcriptions", Endpoint::Transcription),
            (b"/v1/systemone", Endpoint::Decision),
        ];
        ROUTES
            .iter()
            .find(|(route, _)| path.ends_with(route))
            .map_or(Endpoint::Other, |&(_, endpoint)| endpoint)
    }
}

/// The end of a request path, percent-decoded as it streams past.
#[derive(Debug, Clone)]
pub(crate) struct PathTail {
    bytes: [u8; PathTail::CAPACITY],
    len: usize,
    /// In `?query` or `#fragment`, which are not part of the path.
    over: bool,
    /// What follows the path: the first bytes of it.
    query: [u8; PathTail::QUERY],
    query_len: usize,
    /// Hex digits still to come after a `%`, and the value so far.
    escape: Option<Option<u8>>,
}

impl PathTail {
    const CAPACITY: usize = 64;
    /// Longer than the one query that matters.
    const QUERY: usize = 32;

    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            len: 0,
            over: false,
            query: [0; Self::QUERY],
            query_len: 0,
            escape: None,
        }
    }

    pub(crate) fn push(&mut self, byte: u8) {
        if self.over {
            if let Some(place) = self.query.get_mut(self.query_len) {
                *place = byte;
                self.query_len += 1;
            }
            return;
        }
        if matches!(byte, b'?' | b'#') {
            self.over = true;
            return;
        }
        match (self.escape, hex_digit(byte)) {
            (None, _) if byte == b'%' => self.escape = Some(None),
            (None, _) => self.keep(byte),
            (Some(None), Some(high)) => self.escape = Some(Some(high)),
            (Some(Some(high)), Some(low)) => {
                self.escape = None;
                self.keep(high << 4 | low);
            }
            // Not an escape. No route contains a '%', so any byte will do here that no route
            // contains.
            (Some(_), None) => {
                self.escape = None;
                self.keep(b'%');
                self.keep(byte);
            }
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let path = &self.bytes[..self.len];
        match self.escape {
            Some(_) => Endpoint::Other,
            None => match (slot(path), self.erases()) {
                (Some(slot), true) => Endpoint::Erase(slot),
                _ => Endpoint::of_path(path),
            },
        }
    }

    fn erases(&self) -> bool {
        let query = &self.query[..self.query_len];
        let mut parameters = query.split(|&byte| byte == b'&');
        parameters.any(|parameter| parameter == b"action=erase")
    }

    fn keep(&mut self, byte: u8) {
        if self.len == Self::CAPACITY {
            self.bytes.copy_within(Self::CAPACITY / 2.., 0);
            self.len = Self::CAPACITY / 2;
        }
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

/// The slot in `/slots/0`.
fn slot(path: &[u8]) -> Option<i32> {
    let path = std::str::from_utf8(path).ok()?;
    let (before, slot) = path.rsplit_once('/')?;
    before.ends_with("/slots").then(|| slot.parse().ok())?
}

pub(crate) const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(target: &str) -> Endpoint {
        let mut tail = PathTail::new();
        target.bytes().for_each(|b| tail.push(b));
        tail.endpoint()
    }

    #[test]
    fn each_route_of_the_server_gives_its_endpoint() {
        use Endpoint::*;
        for (target, expected) in [
            ("/completion", Completion),
            ("/completions", Completion),
            ("/v1/completions?x=/health", Completion),
            ("/v1/completions#/health", Completion),
            ("/chat/completions", Chat),
            ("/v1/chat/completions", Chat),
            ("/v1/chat/completions/control", Other),
            ("/v1/chat/completions/input_tokens", Other),
            ("/v1/responses", Responses),
            ("/responses", Responses),
            ("/v1/messages", Messages),
            ("/messages", Other),
            ("/v1/messages/count_tokens", Other),
            ("/infill", Infill),
            ("/embedding", Embedding),
            ("/embeddings", Embedding),
            ("/v1/embeddings", Embedding),
            ("/rerank", Rerank),
            ("/v1/reranking", Rerank),
            ("/v1/audio/transcriptions", Transcription),
            ("/v1/systemone", Decision),
            ("/api/prefix/v1/completions", Completion),
            ("/v1/%63ompletions", Completion),
            ("/v1/%6", Other),
            ("/v1/completions%", Other),
            ("/v1/%zzcompletions", Other),
            ("/xcompletions", Other),
            ("/slots/3?action=erase", Erase(3)),
            ("/api/slots/0?model=a&action=erase", Erase(0)),
            ("/slots/3?action=erased", Other),
            ("/slots/3?action=save", Other),
            ("/slots/3", Other),
            ("/slots/x?action=erase", Other),
            ("/completion?action=erase", Completion),
            ("/health", Other),
            ("/", Other),
            ("", Other),
        ] {
            assert_eq!(endpoint(target), expected, "{target}");
        }
    }

    #[test]
    fn a_long_path_is_classified_by_its_end() {
        for prefix in 0..200 {
            let target = format!("/{}/v1/chat/completions", "p".repeat(prefix));
            assert_eq!(endpoint(&target), Endpoint::Chat, "prefix of {prefix}");
        }
    }
}
