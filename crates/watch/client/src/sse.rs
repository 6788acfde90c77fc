//! Server-sent events, as far as servers here use them.

use std::io::{self, BufRead, BufReader, Read};

/// Longest event that is taken in; what servers here send is far shorter.
const MAX_EVENT: usize = 4 << 20;

/// One event: its name (empty if it has none), its id, its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) data: String,
}

/// Reads events from a stream until it ends.
pub(crate) struct Reader<R> {
    stream: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self {
            stream: BufReader::new(stream),
            line: Vec::new(),
        }
    }

    /// The next event; `None` at the end of the stream. An event that was cut
    /// off is none. Comments keep the connection alive and are skipped.
    pub(crate) fn next(&mut self) -> io::Result<Option<Event>> {
        let mut event = Event::default();
        let mut has_data = false;
        loop {
            self.line.clear();
            let limit = (MAX_EVENT - event.data.len().min(MAX_EVENT)) as u64;
            let read = (&mut self.stream)
                .take(limit)
                .read_until(b'\n', &mut self.line)?;
            if !self.line.ends_with(b"\n") {
                return if read as u64 == limit {
                    Err(io::Error::other("an event without an end"))
                } else {
                    Ok(None)
                };
            }
            let text = String::from_utf8_lossy(&self.line);
            let line = text.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                if has_data {
                    return Ok(Some(event));
                }
                event = Event::default();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => {
                    if has_data {
                        event.data.push('\n');
                    }
                    event.data.push_str(value);
                    has_data = true;
                }
                "event" => event.name = value.to_owned(),
                "id" => event.id = value.to_owned(),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Event> {
        let mut reader = Reader::new(text.as_bytes());
        std::iter::from_fn(|| reader.next().expect("bytes can be read")).collect()
    }

    #[test]
    fn events_are_read() {
        let text =
            ": hello\n\nid: 1\nevent: evicted\ndata: {}\n\ndata:a\r\ndata: b\r\n\r\ndata: cut";
        let events = all(text);
        assert_eq!(events.len(), 2);
        assert_eq!((&*events[0].name, &*events[0].id), ("evicted", "1"));
        assert_eq!(events[0].data, "{}");
        assert_eq!((&*events[1].name, &*events[1].data), ("", "a\nb"));
    }

    #[test]
    fn an_event_without_an_end_is_an_error() {
        let endless = io::repeat(b'x');
        assert!(Reader::new(endless).next().is_err());
        let line = format!("data: {}\n", "x".repeat(1 << 16));
        let lines = line.repeat(MAX_EVENT >> 15);
        assert!(Reader::new(lines.as_bytes()).next().is_err());
    }
}
