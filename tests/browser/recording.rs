//! A recording of made-up conversations.

use contextpilot_traffic::{Key, Recorded, RequestRecord, Setup, Writer};

/// Conversations at a time, each on a slot of its own.
const SESSIONS: usize = 4;
/// Turns of a conversation before another one begins.
const TURNS: usize = 20;
/// Tokens that a turn adds.
const TURN: usize = 48;

/// The file, with so many requests.
pub(crate) fn of(requests: usize) -> Vec<u8> {
    let (mut writer, mut file) = Writer::new(Key::new([7; 16]), false, 1 << 30);
    let mut add = |recorded: Recorded| match recorded {
        Recorded::Bytes(bytes) => file.extend(bytes),
        Recorded::Full => panic!("there is room"),
    };
    add(writer.setup(&Setup {
        engine: "b11669".to_owned(),
        version: "0.7.0".to_owned(),
        cache_ram: Some(0),
        ..Setup::default()
    }));
    let mut held = vec![Vec::new(); SESSIONS];
    for nth in 0..requests {
        let slot = nth % SESSIONS;
        let turn = nth / SESSIONS % TURNS;
        let conversation = nth / SESSIONS / TURNS * SESSIONS + slot;
        // All begin with the same instructions.
        let mut prompt: Vec<i32> = (0..64).collect();
        let own =
            (0..(turn + 1) * TURN).map(|at| (conversation * 7919 + at * 31) as i32 % 30_000 + 64);
        prompt.extend(own);
        let common = |held: &Vec<i32>| held.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        let reused = common(&held[slot]).min(prompt.len() - 1);
        let arrived = nth as u64 * 250_000;
        let evaluated = prompt.len() - reused;
        let prompted = arrived + 1000 + evaluated as u64 * 100;
        let record = RequestRecord {
            order: nth as u64,
            arrived,
            launched: arrived + 1000,
            prompted,
            ended: prompted + 100_000,
            slot: slot as u32,
            prompt: prompt.len() as u32,
            reused: reused as u32,
            evaluated: evaluated as u32,
            breaks: vec![prompt.len() as u32],
            ..RequestRecord::default()
        };
        add(writer.request(record, &prompt, None));
        held[slot] = prompt;
    }
    file
}
