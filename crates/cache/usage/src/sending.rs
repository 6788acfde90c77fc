//! An answer as cpp-httplib sends it: a head with a whole body in one piece, or a head and then each chunk in one piece.

use std::ops::Range;

use super::{Account, correct, correct_lines, has_figures, has_final_figures};

/// Bytes of a body or a chunk that is looked at. Longer ones pass as they are.
pub const LONGEST: usize = 4 << 20;

/// How far one answer is.
#[derive(Debug, Default)]
pub enum Sending {
    /// Nothing of it was sent.
    #[default]
    Nothing,
    /// All of it was sent in one piece.
    Whole,
    /// The head of an event stream was sent.
    Events,
    /// The head of an event stream, and chunks.
    Chunks,
    /// The head of something else was sent, or something that was not expected.
    Other,
}

impl Sending {
    /// What is to be sent in place of this piece of the answer. `None`: the piece itself. `account` is asked if the piece has
    /// figures. A piece that is anything but a head, a head with its body, or one chunk passes as it is, and so does all
    /// behind it.
    ///
    /// ```
    /// use contextpilot_usage::{Account, Sending};
    ///
    /// let account = Account { reused: 90, evaluated: 10, loaded: 86 };
    /// let mut sending = Sending::default();
    /// let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    /// assert_eq!(sending.piece(head, || Some(account)), None);
    /// let chunk = b"2f\r\ndata: {\"timings\":{\"cache_n\":4,\"prompt_n\":96}}\n\n\r\n";
    /// let right = b"30\r\ndata: {\"timings\":{\"cache_n\":90,\"prompt_n\":10}}\n\n\r\n";
    /// assert_eq!(sending.piece(chunk, || Some(account)).unwrap(), right);
    /// ```
    #[must_use]
    pub fn piece(
        &mut self,
        bytes: &[u8],
        account: impl FnOnce() -> Option<Account>,
    ) -> Option<Vec<u8>> {
        match self {
            Self::Nothing => {
                let head = Head::parse(bytes);
                let whole = head.as_ref().and_then(|head| Whole::parse(bytes, head));
                *self = match (&head, &whole) {
                    (_, Some(_)) => Self::Whole,
                    (Some(head), _) if head.is_stream => Self::Events,
                    _ => Self::Other,
                };
                whole?.corrected(account)
            }
            Self::Events | Self::Chunks => match Chunk::parse(bytes) {
                Some(chunk) => {
                    *self = Self::Chunks;
                    chunk.corrected(account)
                }
                None => {
                    *self = Self::Other;
                    None
                }
            },
            Self::Whole | Self::Other => None,
        }
    }
}

/// A head with all of its body, which is JSON.
struct Whole<'a> {
    /// Up to the number of `Content-Length`.
    before: &'a [u8],
    /// From there to the end of the head.
    behind: &'a [u8],
    body: &'a [u8],
}

impl<'a> Whole<'a> {
    /// `None`: it is anything else.
    fn parse(bytes: &'a [u8], head: &Head) -> Option<Self> {
        let length = head.length.clone().filter(|_| head.is_json)?;
        let body = bytes.get(head.end..)?;
        let number: usize = text(bytes.get(length.clone())?)?.parse().ok()?;
        let whole = Self {
            before: bytes.get(..length.start)?,
            behind: bytes.get(length.end..head.end)?,
            body,
        };
        (number == body.len()).then_some(whole)
    }

    fn corrected(&self, account: impl FnOnce() -> Option<Account>) -> Option<Vec<u8>> {
        if self.body.len() > LONGEST || !has_figures(self.body) {
            return None;
        }
        let right = correct(self.body, account()?)?;
        let length = right.len().to_string();
        Some([self.before, length.as_bytes(), self.behind, &right].concat())
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The head of an answer with status 200.
struct Head {
    /// Where the body begins.
    end: usize,
    is_json: bool,
    /// An event stream in chunks.
    is_stream: bool,
    /// Where the number of `Content-Length` stands.
    length: Option<Range<usize>>,
}

impl Head {
    /// `None`: it is not one, or the content is encoded.
    fn parse(bytes: &[u8]) -> Option<Self> {
        const END: &[u8] = b"\r\n\r\n";
        /// More than any head of llama-server.
        const LONGEST_HEAD: usize = 16 << 10;
        let beginning = bytes.get(..LONGEST_HEAD).unwrap_or(bytes);
        let ends = beginning.windows(END.len()).position(|four| four == END)?;
        let mut lines = beginning.get(..ends)?.split(|byte| *byte == b'\n');
        let status = lines.next()?;
        if !status.starts_with(b"HTTP/1.1 200") {
            return None;
        }
        let (mut is_json, mut is_events, mut is_chunked, mut length) = (false, false, false, None);
        let mut at = status.len() + 1;
        for line in lines {
            let (name, value) = text(line)?.split_once(':')?;
            let start = at + name.len() + 1 + (value.len() - value.trim_start().len());
            at += line.len() + 1;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-type" => {
                    is_json = value.starts_with("application/json");
                    is_events = value.starts_with("text/event-stream");
                }
                "content-length" => length = Some(start..start + value.len()),
                "transfer-encoding" => is_chunked = value == "chunked",
                "content-encoding" => return None,
                _ => {}
            }
        }
        Some(Self {
            end: ends + END.len(),
            is_json,
            is_stream: is_events && is_chunked,
            length,
        })
    }
}

/// One chunk, with its size before it.
struct Chunk<'a> {
    data: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// `None`: it is anything else.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let size = bytes.iter().take(9).position(|byte| *byte == b'\r')?;
        let count = usize::from_str_radix(text(&bytes[..size])?, 16).ok()?;
        let rest = bytes[size..].strip_prefix(b"\r\n")?;
        let data = rest.strip_suffix(b"\r\n")?;
        (data.len() == count && count > 0).then_some(Self { data })
    }

    fn corrected(&self, account: impl FnOnce() -> Option<Account>) -> Option<Vec<u8>> {
        if self.data.len() > LONGEST || !has_final_figures(self.data) {
            return None;
        }
        let right = correct_lines(self.data, account()?)?;
        let size = format!("{:x}\r\n", right.len());
        Some([size.as_bytes(), &right, b"\r\n"].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ACCOUNT;

    const WRONG: &str = r#"{"timings":{"cache_n":4,"prompt_n":1516}}"#;
    const RIGHT: &str = r#"{"timings":{"cache_n":1519,"prompt_n":1}}"#;
    const STREAM: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// What is sent of an answer in these pieces.
    fn sent(pieces: &[&str], account: Option<Account>) -> Vec<String> {
        let mut sending = Sending::default();
        let all = pieces.iter().map(|piece| {
            let right = sending.piece(piece.as_bytes(), || account);
            right.map_or((*piece).to_owned(), |right| {
                String::from_utf8(right).expect("UTF-8")
            })
        });
        all.collect()
    }

    fn json(length: usize, more: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n\
             Content-Length: {length}\r\n{more}\r\n{body}"
        )
    }

    fn chunk(data: &str) -> String {
        format!("{:x}\r\n{data}\r\n", data.len())
    }

    /// Whether figures were put right or would have been, had there been any to put right.
    #[test]
    fn it_is_known_whether_figures_could_be_put_right() {
        let whole = json(WRONG.len(), "", WRONG);
        let head = &whole[..whole.len() - WRONG.len()];
        let error = whole.replace("200 OK", "400 Bad Request");
        for (pieces, is_whole, is_chunks) in [
            (vec![&*whole], true, false),
            (vec![&json(2, "", "{}")], true, false),
            (vec![head, WRONG], false, false),
            (vec![&error], false, false),
            (vec![STREAM], false, false),
            (vec![STREAM, &chunk("data: {}\n\n")], false, true),
            (vec![STREAM, "9\r\ndata: "], false, false),
        ] {
            let mut sending = Sending::default();
            for piece in &pieces {
                let _ = sending.piece(piece.as_bytes(), || None);
            }
            assert_eq!(matches!(sending, Sending::Whole), is_whole, "{pieces:?}");
            assert_eq!(matches!(sending, Sending::Chunks), is_chunks, "{pieces:?}");
        }
    }

    #[test]
    fn a_whole_answer_gets_its_figures_and_its_length() {
        let blanks = " ".repeat(98 - WRONG.len());
        let [wrong, right] = [WRONG, RIGHT].map(|json| format!("{blanks}{json}"));
        let answer = json(98, "Keep-Alive: timeout=5, max=100\r\n", &wrong);
        let becomes = json(98, "Keep-Alive: timeout=5, max=100\r\n", &right);
        assert_eq!(sent(&[&answer], Some(ACCOUNT)), [becomes]);
        assert_eq!(sent(&[&answer], None), [answer]);
        // The length has a digit more.
        let usage =
            r#"{"usage":{"prompt_tokens":1520,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let usage = format!("{}{usage}", " ".repeat(97 - usage.len()));
        let becomes = usage.replace(":4}", ":1519}");
        assert_eq!(
            sent(&[&json(97, "", &usage)], Some(ACCOUNT)),
            [json(100, "", &becomes)]
        );
    }

    #[test]
    fn a_stream_gets_its_figures_chunk_by_chunk() {
        let role = chunk("data: {\"a\":1}\n\n");
        let last = |json: &str| chunk(&format!("event: x\ndata: {json}\n\ndata: {json}\r\n\r\n"));
        let progress = WRONG.replacen('{', "{\"prompt_progress\":{},", 1);
        let pieces = [
            STREAM,
            &role,
            &last(&progress),
            &last(WRONG),
            &chunk("data: [DONE]\n\n"),
            "0\r\n",
            "\r\n",
        ];
        let mut right = pieces.map(str::to_owned);
        assert_eq!(sent(&pieces, None), right);
        right[3] = last(RIGHT);
        assert_eq!(sent(&pieces, Some(ACCOUNT)), right);
    }

    #[test]
    fn what_is_not_sent_as_expected_passes() {
        let whole = json(WRONG.len(), "", WRONG);
        let (head, body) = whole.split_at(whole.len() - WRONG.len());
        let error = whole.replace("200 OK", "400 Bad Request");
        let packed = json(WRONG.len(), "Content-Encoding: gzip\r\n", WRONG);
        let text = whole.replace("application/json", "text/plain");
        let short = json(WRONG.len() - 1, "", WRONG);
        for pieces in [&[&*error] as &[&str], &[&packed], &[&text], &[&short]] {
            assert_eq!(sent(pieces, Some(ACCOUNT)), pieces);
        }
        assert_eq!(sent(&[head, body], Some(ACCOUNT)), [head, body]);
        let figures = chunk(&format!("data: {WRONG}\n\n"));
        let longer = format!("1{figures}");
        // Behind what was not expected, nothing is.
        let pieces = [STREAM, &longer, &figures];
        assert_eq!(sent(&pieces, Some(ACCOUNT)), pieces);
        let pieces = [STREAM, &figures[..9], &figures[9..], &figures];
        assert_eq!(sent(&pieces, Some(ACCOUNT)), pieces);
        let pieces = [&figures, "", "\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"];
        assert_eq!(sent(&pieces, Some(ACCOUNT)), pieces);
    }
}
