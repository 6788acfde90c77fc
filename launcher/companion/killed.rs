//! `killed`: reports what killed servers held, without the next start.

use std::io::{self, Write as _};
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_delivery::{Config, Sender};
use contextpilot_journal::{Identity, Journal, Origin};
use contextpilot_settings::{Settings, env};

use super::show::{counted, print};
use crate::sys;
use crate::variables::{Lookup, of_process};

/// Report to the index what killed servers held
///
/// A server that was killed cannot say that its cache is gone; the next start of any server of this
/// user with the same index does. This does the same without a start. What a living server holds
/// stays. CONTEXTPILOT_INDEX_URL names the index; with CONTEXTPILOT_WATCHER=auto a server has this
/// done by itself as soon as it was killed.
#[derive(Args)]
#[command(after_help = "Example:
  CONTEXTPILOT_INDEX_URL=http://127.0.0.1:8765 contextpilot-llama killed")]
pub(super) struct KilledOptions {
    /// Wait until standard input ends, as it does when the process that has its other end does
    #[arg(long)]
    at_end: bool,
}

/// How long it takes at most, if the setting for a server's end says that it may not wait.
const LONGEST: Duration = Duration::from_secs(2);

/// How long closing files may take. A process that was started by another one waits as long in vain.
const CLOSING: Duration = Duration::from_millis(500);

pub(super) fn run(options: &KilledOptions) -> Result<(), String> {
    if options.at_end {
        // First of all: these are the server's, and its port would stay in use.
        sys::close_inherited();
        wait_for_end();
    }
    let settings = Settings::from(of_process).map_err(|e| e.to_string())?;
    if !settings.journal {
        return Err(format!(
            "{}=0: servers keep no journal, so what a killed one held is not known",
            env::JOURNAL
        ));
    }
    let log = Arc::new(print_line);
    let config =
        Config::from_settings(&settings, |name| of_process.text(name), log).ok_or_else(|| {
            format!(
                "{} is not set: set it as the servers have it",
                env::INDEX_URL
            )
        })?;
    let config = Config {
        keep_settled: true,
        ..config
    };
    let longest = settings.exit_drain.unwrap_or(LONGEST);
    let (found, left) = report(config, longest)?;
    if left > 0 {
        return Err(format!(
            "{} of {} could not be reported: check the index. The next start, or this command, tries again",
            left,
            counted(found as u64, "request")
        ));
    }
    print(&format!(
        "{} of killed servers reported as evicted\n",
        counted(found as u64, "request")
    ))
}

/// Waits until standard input ends, and then until its other end's process, if that has started this one, is gone: while it
/// ends, the system closes one file after another, and the journal may be locked for a moment longer than the pipe is open.
fn wait_for_end() {
    let parent = parent_id();
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let ended = Instant::now();
    while parent_id() == parent && ended.elapsed() < CLOSING {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reports what dead servers with this index left. Returns the number of ids, and of those that the index has not
/// confirmed. These stay in the journal.
fn report(config: Config, longest: Duration) -> Result<(usize, usize), String> {
    let identity = Identity::watcher(&config.endpoint, &Origin::at(PathBuf::new()));
    let sender = Sender::start(config, || {}).map_err(|e| e.to_string())?;
    // Nothing arrives here: what others left in shared memory is read, and nothing is kept there.
    let none = |_: &_, _| Err(io::ErrorKind::Unsupported.into());
    let (mut journal, lost) =
        Journal::in_state_folder(of_process, Some(none), identity, print_line);
    if !journal.is_on() {
        return Err("nothing could be read: see above".to_owned());
    }
    let found = lost.len();
    sender.evict_all(lost);
    let left = sender.drain(longest).left;
    for id in sender.take_settled() {
        journal.note_gone(&id);
    }
    journal.close();
    Ok((found, left))
}

/// Prints a line of the crates, which begins as ours do. Not `eprintln!`, which panics if stderr is closed.
fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
