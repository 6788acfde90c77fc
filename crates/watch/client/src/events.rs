use std::io::Read;

use contextpilot_control::{EventId, Missed, ResidencyEvent, name};

use crate::error::one_line;
use crate::{Error, Result, sse};

/// What arrives on the stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Something was cached, moved, or fell out of the cache.
    Event(ResidencyEvent),
    /// Some events did not arrive: the reader was too slow, or disconnected for too
    /// long, or the server has restarted.
    Missed(Missed),
}

/// The stream of events: an iterator that waits for the next one, and ends with
/// the connection.
///
/// Sequence numbers are checked. If some are missing between two events,
/// [`Update::Missed`] says how many, even if the server did not.
///
/// ```no_run
/// use contextpilot_client::{Control, Update};
///
/// let control = Control::new("127.0.0.1:8890")?;
/// let mut events = control.events(None)?;
/// for update in &mut events {
///     match update? {
///         Update::Event(event) => println!("{} {:?}", event.sequence, event.change),
///         Update::Missed(missed) => println!("missed: {:?}", missed.missed),
///     }
/// }
/// // After a break: go on where it ended.
/// let again = control.events(events.last_id())?;
/// # Ok::<(), contextpilot_client::Error>(())
/// ```
pub struct Events {
    stream: sse::Reader<Box<dyn Read + Send>>,
    address: String,
    last: Option<EventId>,
    /// An event that was read already, while an [`Update::Missed`] had to be returned first.
    ready: Option<ResidencyEvent>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Events");
        shown.field("address", &self.address);
        shown.field("last", &self.last).finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(
        stream: Box<dyn Read + Send>,
        address: String,
        after: Option<EventId>,
    ) -> Self {
        Self {
            stream: sse::Reader::new(stream),
            address,
            last: after,
            ready: None,
        }
    }

    /// The id of the last event: where to continue after a break.
    pub fn last_id(&self) -> Option<&EventId> {
        self.last.as_ref()
    }

    fn event(&mut self, event: ResidencyEvent) -> Update {
        let missing = self.last.as_ref().and_then(|last| missing(last, &event));
        match missing {
            Some(missed) => {
                self.last = Some(EventId {
                    epoch: event.epoch.clone(),
                    sequence: event.sequence.saturating_sub(1),
                });
                self.ready = Some(event);
                Update::Missed(missed)
            }
            None => {
                self.last = Some(event.id());
                Update::Event(event)
            }
        }
    }

    /// The server itself said that events are missing, so the next number is not checked.
    fn missed(&mut self, missed: Missed) -> Update {
        self.last = None;
        Update::Missed(missed)
    }

    fn read(&mut self) -> Result<Option<Update>> {
        loop {
            let event = match self.stream.next() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(None),
                Err(error) => {
                    return Err(Error::Unreachable {
                        address: self.address.clone(),
                        why: one_line(&format!("the stream of events broke off: {error}")),
                    });
                }
            };
            let unexpected = |error| Error::Unexpected {
                address: self.address.clone(),
                why: format!("{error} in an event"),
            };
            let update = match &*event.name {
                name::RESIDENCY => {
                    let event = serde_json::from_str(&event.data).map_err(unexpected)?;
                    self.event(event)
                }
                name::MISSED => {
                    let missed = serde_json::from_str(&event.data).map_err(unexpected)?;
                    self.missed(missed)
                }
                // An event that only a newer server knows.
                _ => continue,
            };
            return Ok(Some(update));
        }
    }
}

impl Iterator for Events {
    type Item = Result<Update>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.ready.take() {
            Some(event) => Some(Ok(self.event(event))),
            None => self.read().transpose(),
        }
    }
}

fn missing(last: &EventId, event: &ResidencyEvent) -> Option<Missed> {
    let epoch = event.epoch.clone();
    if last.epoch != event.epoch {
        let missed = None;
        return Some(Missed { epoch, missed });
    }
    let missed = event
        .sequence
        .saturating_sub(last.sequence.saturating_add(1));
    let missed = Some(missed).filter(|missed| *missed > 0);
    missed.map(|missed| Missed {
        epoch,
        missed: Some(missed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(epoch: &str, sequence: u64) -> String {
        format!(
            "event: residency\nid: {epoch}-{sequence}\ndata: {{\"epoch\":\"{epoch}\",\
             \"sequence\":{sequence},\"at\":\"2026-01-02T03:04:05.006Z\",\
             \"change\":\"cached\",\"id\":\"a\",\"slot\":0,\"tokens\":1}}\n\n"
        )
    }

    /// Numbers of events, and `-n` for n missed (`-0`: all).
    fn read(text: String, after: Option<EventId>) -> Vec<String> {
        let stream = Box::new(std::io::Cursor::new(text.into_bytes()));
        Events::new(stream, String::new(), after)
            .map(|update| match update.expect("an event") {
                Update::Event(event) => event.sequence.to_string(),
                Update::Missed(missed) => format!("-{}", missed.missed.unwrap_or_default()),
            })
            .collect()
    }

    #[test]
    fn a_gap_in_the_numbers_is_returned_as_missed() {
        let numbers = |numbers: &[u64]| numbers.iter().map(|n| event("x", *n)).collect();
        assert_eq!(read(numbers(&[7, 8]), None), ["7", "8"]);
        assert_eq!(read(numbers(&[1, 4, 5]), None), ["1", "-2", "4", "5"]);
        let after = |epoch: &str| EventId {
            epoch: epoch.to_owned(),
            sequence: 3,
        };
        assert_eq!(read(numbers(&[4]), Some(after("x"))), ["4"]);
        assert_eq!(read(numbers(&[6]), Some(after("x"))), ["-2", "6"]);
        assert_eq!(read(numbers(&[4]), Some(after("y"))), ["-0", "4"]);
    }

    #[test]
    fn if_the_server_says_that_events_are_missing_it_is_returned_once() {
        let missed = "event: missed\ndata: {\"epoch\":\"x\",\"missed\":5}\n\n";
        let text = format!("{}{missed}{}", event("x", 1), event("x", 7));
        assert_eq!(read(text, None), ["1", "-5", "7"]);
    }

    #[test]
    fn other_events_are_skipped() {
        let text = format!("event: new\ndata: 1\n\n{}: quiet\n\n", event("x", 1));
        assert_eq!(read(text, None), ["1"]);
    }
}
