use super::*;
use crate::{MOST_SUBSCRIPTION_BYTES, MOST_SUBSCRIPTIONS};

fn ready(kind: &[u8]) -> Vec<u8> {
    let mut data = b"\x0bSocket-Type".to_vec();
    data.extend_from_slice(&(kind.len() as u32).to_be_bytes());
    data.extend_from_slice(kind);
    frame::command(b"READY", &data)
}

fn feed(session: &mut Session, bytes: &[u8]) -> Result<Vec<Step>, Refusal> {
    let mut steps = Vec::new();
    session.feed(bytes, &mut steps).map(|()| steps)
}

fn open(role: Role, kind: &[u8]) -> Session {
    let mut session = Session::new(role);
    let steps = feed(&mut session, &Session::greeting()).expect("a greeting");
    assert!(matches!(steps[..], [Step::Reply(_)]), "{steps:?}");
    assert_eq!(feed(&mut session, &ready(kind)), Ok(vec![Step::Ready]));
    session
}

#[test]
fn both_ways_of_subscribing_are_understood_and_only_changes_are_steps() {
    let mut session = open(Role::Publisher, b"SUB");
    let by_message = frame::encode(&[b"\x01kv@"]);
    let begun = Ok(vec![Step::Subscribe(b"kv@".to_vec())]);
    assert_eq!(feed(&mut session, &by_message), begun);
    let by_command = frame::command(b"SUBSCRIBE", b"kv@");
    assert_eq!(feed(&mut session, &by_command), Ok(vec![]));
    // It was subscribed to twice.
    assert_eq!(
        feed(&mut session, &frame::encode(&[b"\x00kv@"])),
        Ok(vec![])
    );
    let cancelled = Ok(vec![Step::Cancel(b"kv@".to_vec())]);
    let cancel = frame::command(b"CANCEL", b"kv@");
    assert_eq!(feed(&mut session, &cancel), cancelled);
    // Nothing is left to cancel.
    assert_eq!(feed(&mut session, &cancel), Ok(vec![]));
    let all = feed(&mut session, &frame::encode(&[b"\x01"]));
    assert_eq!(all, Ok(vec![Step::Subscribe(vec![])]));
}

#[test]
fn only_a_peer_of_zmtp_3_1_has_heartbeats() {
    for (minor, beats) in [(0, false), (1, true)] {
        let mut greeting = Session::greeting();
        greeting[11] = minor;
        let mut session = Session::new(Role::Publisher);
        feed(&mut session, &greeting).expect("a greeting");
        assert_eq!(session.has_heartbeats(), beats);
    }
}

#[test]
fn a_ping_comes_back_with_its_context() {
    let mut session = open(Role::Publisher, b"XSUB");
    let pong = frame::command(b"PONG", b"ctx");
    assert_eq!(
        feed(&mut session, &frame::command(b"PING", b"\0\x0actx")),
        Ok(vec![Step::Reply(pong)])
    );
    for data in [&b"\0"[..], &[0; 19]] {
        let ping = frame::command(b"PING", data);
        let mut session = open(Role::Router, b"DEALER");
        assert_eq!(feed(&mut session, &ping), Err(Refusal::Command));
    }
}

#[test]
fn a_router_collects_the_parts_of_a_message() {
    let mut session = open(Role::Router, b"DEALER");
    let message = frame::encode(&[b"", b"12345678"]);
    assert_eq!(feed(&mut session, &message[..2]), Ok(vec![]));
    assert_eq!(
        feed(&mut session, &message[2..]),
        Ok(vec![Step::Message(vec![vec![], b"12345678".to_vec()])])
    );
    let parts = vec![&b"x"[..]; MOST_PARTS + 1];
    assert_eq!(
        feed(&mut session, &frame::encode(&parts)),
        Err(Refusal::ManyParts)
    );
    let mut session = open(Role::Router, b"REQ");
    let large = [0; LONGEST_FRAME];
    assert_eq!(
        feed(&mut session, &frame::encode(&[&large, b"x"])),
        Err(Refusal::ManyParts)
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut http = Session::new(Role::Publisher);
    assert_eq!(feed(&mut http, b"G"), Err(Refusal::NoGreeting));
    // The first byte of both, so it takes the tenth.
    let mut old = Session::new(Role::Publisher);
    let zmtp_2 = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1];
    assert_eq!(feed(&mut old, &zmtp_2[..10]), Ok(vec![]));
    assert_eq!(feed(&mut old, &zmtp_2[10..]), Err(Refusal::Version));
    let mut greeting = Session::greeting();
    greeting[12..17].copy_from_slice(b"CURVE");
    let mut curve = Session::new(Role::Publisher);
    assert_eq!(feed(&mut curve, &greeting), Err(Refusal::Mechanism));
    let mut nulls = Session::greeting();
    nulls[16] = b'X';
    let mut longer = Session::new(Role::Publisher);
    assert_eq!(feed(&mut longer, &nulls), Err(Refusal::Mechanism));

    let refused = |role, bytes: &[u8]| {
        let mut session = Session::new(role);
        feed(&mut session, &Session::greeting()).expect("a greeting");
        feed(&mut session, bytes).expect_err("it is refused")
    };
    let socket_type = Refusal::SocketType;
    assert_eq!(refused(Role::Publisher, &ready(b"DEALER")), socket_type);
    assert_eq!(refused(Role::Router, &ready(b"SUB")), socket_type);
    let nothing = frame::command(b"READY", b"");
    assert_eq!(refused(Role::Router, &nothing), socket_type);
    let cut = frame::command(b"READY", b"\x0bSocket-Type\0\0\0\x09SUB");
    assert_eq!(refused(Role::Publisher, &cut), Refusal::Command);
    let early = frame::encode(&[b"\x01"]);
    assert_eq!(refused(Role::Publisher, &early), Refusal::NotReady);
    let hello = frame::command(b"HELLO", b"");
    assert_eq!(refused(Role::Publisher, &hello), Refusal::NotReady);
    let error = frame::command(b"ERROR", b"\0");
    assert_eq!(refused(Role::Publisher, &error), Refusal::Reported);
}

#[test]
fn subscriptions_are_bounded() {
    let mut session = open(Role::Publisher, b"SUB");
    for nth in 0..MOST_SUBSCRIPTIONS as u8 {
        feed(&mut session, &frame::encode(&[&[1, nth]])).expect("few enough");
    }
    feed(&mut session, &frame::encode(&[&[1, 0]])).expect("one that is there");
    let one_more = frame::encode(&[&[1, 255]]);
    let refused = Err(Refusal::ManySubscriptions);
    assert_eq!(feed(&mut session, &one_more), refused);
    // So are their bytes, and what is cancelled counts no longer.
    let mut session = open(Role::Publisher, b"SUB");
    let prefix = |nth: u8| [&[nth; MOST_SUBSCRIPTION_BYTES / 8][..]].concat();
    for nth in 0..8 {
        feed(&mut session, &frame::command(b"SUBSCRIBE", &prefix(nth))).expect("they fit");
    }
    feed(&mut session, &frame::command(b"CANCEL", &prefix(0))).expect("a command");
    feed(&mut session, &frame::command(b"SUBSCRIBE", &prefix(8))).expect("it fits");
    assert_eq!(
        feed(&mut session, &frame::command(b"SUBSCRIBE", b"x")),
        refused
    );
}

#[test]
fn cuts_do_not_matter() {
    let mut bytes = Session::greeting().to_vec();
    bytes.extend(ready(b"DEALER"));
    bytes.extend(frame::encode(&[b"", &[9; 300]]));
    bytes.extend(frame::command(b"PING", b"\0\0x"));
    let whole = feed(&mut Session::new(Role::Router), &bytes).expect("all is well");
    assert_eq!(whole.len(), 4);
    let mut session = Session::new(Role::Router);
    let mut steps = Vec::new();
    for byte in bytes.chunks(1) {
        session.feed(byte, &mut steps).expect("all is well");
    }
    assert_eq!(steps, whole);
}
