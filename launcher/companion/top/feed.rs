//! Threads that deliver figures, events, keys and signals. Nothing waits for
//! them; they end with the process.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_client::control::Stats;
use contextpilot_client::{Control, Error, Update};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::state::Key;
use crate::companion::adviser::Adviser;
use crate::companion::connect::hook_says;
use crate::companion::differs::Differs;

/// Of so many prompts is counted what differs.
const LATEST: usize = 200;
/// How long an advice stands at least.
const ADVICE: Duration = Duration::from_secs(10);

/// Fits into 80 columns.
pub(super) const GONE: &str =
    "The server has ended, or does not answer: these are its last figures";

pub(super) enum Message {
    Stats(Box<Stats>),
    Update(Update),
    /// What would have saved the most evaluation of its last requests; `None`: nothing.
    Advice(Option<String>),
    /// What differed where the last prompts left earlier ones.
    Differences(Vec<Differs>),
    /// The hook does not answer.
    Trouble(String),
    Key(Key),
    Resized,
    Signal(i32),
}

/// Asks for figures and advice every so often, and listens to events.
pub(super) fn start(control: &Control, interval: Duration, sender: &Sender<Message>) {
    advise(control, sender);
    let (asking, out) = (control.clone(), sender.clone());
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let message = match asking.stats() {
                Ok(stats) => Message::Stats(Box::new(stats)),
                // In one line of a terminal. How to start a server was said before the first figures came.
                Err(Error::Unreachable { .. }) => Message::Trouble(GONE.to_owned()),
                Err(error) => Message::Trouble(hook_says(&asking, &error)),
            };
            if out.send(message).is_err() {
                return;
            }
        }
    });
    let (listening, out) = (control.clone(), sender.clone());
    thread::spawn(move || {
        let mut last = None;
        loop {
            // The other thread reports that the hook cannot be reached.
            if let Ok(mut events) = listening.events(last.as_ref()) {
                while let Some(Ok(update)) = events.next() {
                    if out.send(Message::Update(update)).is_err() {
                        return;
                    }
                }
                last = events.last_id().cloned();
            }
            thread::sleep(interval);
        }
    });
}

/// Looks at the last requests, and replays them, every so often, if there are others.
fn advise(control: &Control, sender: &Sender<Message>) {
    let (control, out) = (control.clone(), sender.clone());
    thread::spawn(move || {
        let mut last = None;
        loop {
            let began = Instant::now();
            let evaluated = control.stats().ok().map(|now| (now.epoch, now.reuse.total));
            if evaluated.is_some() && evaluated != last {
                last = evaluated;
                if let Ok(latest) = control.latest(LATEST) {
                    let all = latest.requests.iter();
                    let left = all.filter_map(|request| request.evaluation.diverged.as_ref());
                    let differences = left.map(Differs::from_diverged).collect();
                    if out.send(Message::Differences(differences)).is_err() {
                        return;
                    }
                }
                if let Ok(adviser) = Adviser::of_server(&control) {
                    if out.send(Message::Advice(adviser.best())).is_err() {
                        return;
                    }
                }
            }
            // The server may be on this machine, and need its processors.
            thread::sleep((began.elapsed() * 20).max(ADVICE));
        }
    });
}

/// Delivers signals that end the process.
pub(super) fn signals(sender: &Sender<Message>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT])?;
    let sender = sender.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Delivers keys, and changes of the terminal's size.
pub(super) fn keys(sender: Sender<Message>) {
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            let message = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => match meaning(key) {
                    Some(key) => Message::Key(key),
                    None => continue,
                },
                Event::Resize(..) => Message::Resized,
                _ => continue,
            };
            if sender.send(message).is_err() {
                return;
            }
        }
        // The terminal is gone.
        let _ = sender.send(Message::Key(Key::Quit));
    });
}

fn meaning(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Some(Key::Quit),
        _ if control => None,
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        KeyCode::Char('s') => Some(Key::Sort),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up(1)),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down(1)),
        KeyCode::PageUp => Some(Key::Up(10)),
        KeyCode::PageDown => Some(Key::Down(10)),
        KeyCode::Home => Some(Key::Up(usize::MAX)),
        _ => None,
    }
}
