//! However the bytes of a peer are cut into reads, a session takes the same steps and never panics. The
//! size of its messages is bounded by what was sent.
//!
//! The first byte of an input says which kind of socket the session has, and whether a valid handshake
//! comes before the rest. The next four say where to cut.
#![no_main]

use contextpilot_zmtp::{LONGEST_FRAME, MOST_PARTS, Refusal, Role, Session, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[kind, ref cuts @ ..], rest)) = input.split_first_chunk::<5>() else {
        return;
    };
    let role = if kind & 1 == 0 {
        Role::Publisher
    } else {
        Role::Router
    };
    let mut stream = Vec::new();
    if kind & 2 == 0 {
        stream.extend(Session::greeting());
        stream.extend(match role {
            Role::Publisher => &b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB"[..],
            Role::Router => &b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"[..],
        });
    }
    stream.extend(rest);

    let whole = run(role, [&stream[..]]);
    let mut left = &stream[..];
    let pieces = cuts.iter().cycle().map_while(|&cut| {
        let (piece, after) = left.split_at(left.len().min(usize::from(cut) + 1));
        left = after;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(run(role, pieces), whole);

    let mut bytes = 0;
    for step in &whole.0 {
        match step {
            Step::Reply(reply) => assert!(reply.len() < 64),
            Step::Message(parts) => {
                assert!(role == Role::Router && parts.len() <= MOST_PARTS);
                let size = parts.iter().map(Vec::len).sum::<usize>();
                assert!(size <= LONGEST_FRAME);
                bytes += size;
            }
            Step::Subscribe(prefix) | Step::Cancel(prefix) => {
                assert!(role == Role::Publisher && prefix.len() <= LONGEST_FRAME);
                bytes += prefix.len();
            }
            Step::Ready => {}
        }
    }
    assert!(bytes + whole.0.len() <= stream.len() + 2);
});

/// All steps of a session, and how it ended. After a refusal nothing more is read.
fn run<'a>(
    role: Role,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Step>, Result<(), Refusal>) {
    let mut session = Session::new(role);
    let mut steps = Vec::new();
    for piece in pieces {
        if let Err(refusal) = session.feed(piece, &mut steps) {
            return (steps, Err(refusal));
        }
    }
    (steps, Ok(()))
}
