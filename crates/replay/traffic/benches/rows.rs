//! What it takes to record prompts: processor time and memory of the thread that does it.
//!
//! ```text
//! cargo bench -p contextpilot-traffic [-- NAME]     NAME: only the writer whose name contains it
//! ```
//!
//! For instructions, run one of them under callgrind: `valgrind --tool=callgrind target/release/deps/rows-… --bench recent`.

use std::fs;

use contextpilot_traffic::{
    Key, MOST_TOKENS, Progress, Recent, Recorded, RequestRecord, Setup, Writer,
};

/// Conversations that take turns, and how often each does.
const CONVERSATIONS: u64 = 8;
const TURNS: u64 = 10;
/// Tokens that a turn adds.
const TURN: usize = 1_300;
/// The default of `CONTEXTPILOT_RECENT_MB`, and of `CONTEXTPILOT_TRAFFIC_FILE_MB`.
const RECENT: usize = 8 << 20;
const FILE: u64 = 64 << 20;

fn turn(conversation: u64, nth: u64) -> impl Iterator<Item = i32> {
    let seed = conversation * TURNS + nth;
    (0..TURN as u64).map(move |at| {
        let mixed = ((seed << 32) | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 47) as i32
    })
}

fn prompts() -> Vec<Vec<i32>> {
    let all = (1..=TURNS).flat_map(|turns| (0..CONVERSATIONS).map(move |chat| (chat, turns)));
    let prompt = |(chat, turns)| (0..turns).flat_map(|nth| turn(chat, nth)).collect();
    all.map(prompt).collect()
}

/// Nanoseconds of processor time that this thread took.
fn taken() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = stat.split_whitespace().next();
    first.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// What keeps the bytes.
enum Kept {
    Recent(Recent),
    /// They go to a file: only how many there are is of interest.
    File(u64),
}

impl Kept {
    fn take(&mut self, recorded: Recorded) {
        let Recorded::Bytes(bytes) = recorded else {
            panic!("the file is full");
        };
        match self {
            Self::Recent(recent) => recent.push(&bytes),
            Self::File(length) => *length += bytes.len() as u64,
        }
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let is_wanted = |name: &str| wanted.iter().all(|part| name.contains(part.as_str()));
    let prompts = prompts();
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    println!("{} prompts of {tokens} tokens:", prompts.len());
    let key = || Key::new([7; 16]);
    type Start = (Writer, Kept);
    let writers: [(&str, &dyn Fn() -> Start); 3] = [
        ("the last requests (recent)", &|| {
            let (recent, tokens) = Recent::new(RECENT);
            (Writer::recent(key(), tokens), Kept::Recent(recent))
        }),
        ("a file", &|| {
            let (writer, begin) = Writer::new(key(), false, FILE);
            (writer, Kept::File(begin.len() as u64))
        }),
        ("a file of a router's model", &|| {
            let (writer, begin) = Writer::handed_on(key(), false, FILE);
            (writer, Kept::File(begin.len() as u64))
        }),
    ];
    for (name, start) in writers {
        if !is_wanted(name) {
            continue;
        }
        let (before, began) = (resident(), taken());
        let (mut writer, mut kept) = start();
        kept.take(writer.setup(&Setup::default()));
        for (nth, prompt) in prompts.iter().enumerate() {
            let record = RequestRecord {
                order: nth as u64,
                prompt: prompt.len() as u32,
                evaluated: prompt.len() as u32,
                ..RequestRecord::default()
            };
            kept.take(writer.request(record, prompt, None));
        }
        let took = taken() - began;
        let grown = resident().saturating_sub(before);
        let bytes = match &kept {
            Kept::Recent(recent) => recent.recording(&[]).len() as u64,
            Kept::File(length) => *length,
        };
        println!(
            "  {name:28} {:6.1} ns a token, {bytes} bytes written, {:.1} MiB of memory",
            took as f64 / tokens as f64,
            grown as f64 / f64::from(1 << 20)
        );
        if let Kept::File(_) = kept {
            let left = writer.handover(&Progress::default());
            if Writer::resume(MOST_TOKENS, &left).is_some() {
                println!("  {:28} {} bytes", "  handed over", left.len());
            }
        }
    }
}
