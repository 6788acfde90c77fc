//! `top`: a live view of the cache.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_client::Control;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use signal_hook::low_level::emulate_default_handler;

use super::bounds::MOST_SECONDS;
use super::connect::ControlAt;
use super::progress::keep_off_the_screen;
use super::show::{cannot_print, print, print_json};
use crate::variables::{Lookup, of_process};

mod draw;
mod feed;
mod picture;
mod state;

use feed::{Message, start};
use state::{Key, ScreenState};

/// Watch slots, host cache, reuse and evictions live
///
/// Keys: q quits, p pauses, s sorts the slots by id, fill or use, the arrows
/// scroll the evictions. Colours are left out where NO_COLOR is set. In a pipe
/// it prints one snapshot as text, as stats does.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama top
  contextpilot-llama top --picture top.svg --watch 30")]
pub(super) struct TopOptions {
    #[command(flatten)]
    control: ControlAt,
    /// How often to ask for figures
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..))]
    interval: u64,
    /// Use no terminal: watch for a while, then draw the screen to an SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    picture: Option<PathBuf>,
    /// How long to watch for --picture
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        requires = "picture",
        value_parser = clap::value_parser!(u64).range(..=MOST_SECONDS)
    )]
    watch: u64,
    /// Print one snapshot as JSON, as stats --json does
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &TopOptions) -> Result<(), String> {
    // Ask once at the beginning, so that an error is printed as by other commands.
    let (control, stats) = options.control.stats()?;
    if options.json {
        return print_json(&stats);
    }
    let colours = of_process.non_empty("NO_COLOR").is_none();
    let mut state = ScreenState::new(colours);
    let interval = Duration::from_millis(options.interval);
    if let Some(path) = &options.picture {
        state.stats(stats);
        watch(&control, state, interval, options.watch, path)
    } else if io::stdout().is_terminal() {
        state.stats(stats);
        live(&control, state, interval)
    } else {
        print(&super::stats::text(&stats))
    }
}

fn live(control: &Control, mut state: ScreenState, interval: Duration) -> Result<(), String> {
    let (sender, messages) = mpsc::channel();
    keep_off_the_screen();
    feed::signals(&sender).map_err(|e| format!("signals cannot be watched ({e}): try again"))?;
    // Also restores the terminal when something panics.
    let mut terminal = ratatui::try_init()
        .map_err(|e| format!("the terminal cannot be used ({e}): try stats instead"))?;
    start(control, interval, &sender);
    feed::keys(sender);
    let end = loop {
        if let Err(e) = terminal.draw(|frame| draw::screen(&state, frame)) {
            break Err(cannot_print(&e));
        }
        match next(&messages, &mut state, None) {
            Next::Again => {}
            Next::Quit => break Ok(None),
            Next::Signal(signal) => break Ok(Some(signal)),
        }
    };
    ratatui::restore();
    if let Some(signal) = end? {
        // End as if the signal had not been caught.
        let _ = emulate_default_handler(signal);
    }
    Ok(())
}

fn watch(
    control: &Control,
    mut state: ScreenState,
    interval: Duration,
    seconds: u64,
    path: &PathBuf,
) -> Result<(), String> {
    let (sender, messages) = mpsc::channel();
    start(control, interval, &sender);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while let Next::Again = next(&messages, &mut state, Some(deadline)) {}
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).map_err(|e| e.to_string())?;
    let drawn = terminal.draw(|frame| draw::screen(&state, frame));
    let svg = picture::svg(drawn.map_err(|e| e.to_string())?.buffer);
    std::fs::write(path, svg).map_err(|e| {
        let path = path.display();
        format!("{path} cannot be written ({e}): name another file with --picture")
    })
}

enum Next {
    Again,
    Quit,
    Signal(i32),
}

/// Waits for news and takes all that are there.
fn next(messages: &Receiver<Message>, state: &mut ScreenState, deadline: Option<Instant>) -> Next {
    let mut message = match deadline {
        None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(deadline) => messages.recv_timeout(deadline.saturating_duration_since(Instant::now())),
    };
    loop {
        match message {
            Ok(Message::Stats(stats)) => state.stats(*stats),
            Ok(Message::Update(update)) => state.update(update),
            Ok(Message::Advice(advice)) => state.advice = advice,
            Ok(Message::Differences(all)) => state.differences = all,
            Ok(Message::Trouble(why)) => state.trouble(why),
            Ok(Message::Resized) => {}
            Ok(Message::Key(Key::Quit)) | Err(_) => return Next::Quit,
            Ok(Message::Key(key)) => state.key(key),
            Ok(Message::Signal(signal)) => return Next::Signal(signal),
        }
        message = match messages.try_recv() {
            Ok(message) => Ok(message),
            Err(_) => return Next::Again,
        };
    }
}
