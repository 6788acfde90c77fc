//! `template`: whether a conversation goes on where it stopped, with a chat template.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, available_parallelism};

use clap::Args;
use contextpilot_client::{Error, LlamaServer};
use contextpilot_tiny_model::Chat;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::engine::{server_says, with_key};
use super::gguf;
use super::show::{print, print_json};
use crate::say::say;
use crate::server;
use crate::variables::of_process;

mod conversation;
mod helps;
mod kind;
mod measure;
mod model;
mod renderer;
mod seen;
mod show;
mod study;

use renderer::Program;
use seen::Study;
use study::{Subject, study};

/// Say whether a chat template lets a conversation go on where it stopped
///
/// Starts the llama-server that contextpilot-llama-server would start, with a tiny model that has the template,
/// and lets it render conversations: a plain chat, an agent with tools, reasoning sent back and left out, several calls
/// at once, a day later. Says which prompts do not go on from the one before, what kind of thing differs, how much of
/// the prompts is evaluated again, and what was tried and helps. A model's file is read only as far as its template
/// stands in it. Takes some seconds and leaves no files. Exit 1: for one of them nothing could be said.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama template Qwen3-0.6B.gguf
  contextpilot-llama template http://127.0.0.1:8080
  contextpilot-llama template --compare models/templates/*.jinja")]
pub(super) struct TemplateOptions {
    /// A model's file (.gguf), the file of a template (.jinja), or a server: http://host:port
    #[arg(required = true, value_name = "MODEL.gguf|FILE.jinja|URL")]
    templates: Vec<String>,
    /// Print one table with a row for each
    #[arg(long)]
    compare: bool,
    /// Print JSON: a line for each with plain, tools, reasoning_back, reasoning_out, parallel_calls, another_day and
    /// spelling (each with requests, differ, again, kinds), helps and refused
    #[arg(long)]
    json: bool,
}

/// # Errors
/// There is no server, or nothing can be printed.
pub(super) fn run(options: &TemplateOptions) -> Result<ExitCode, String> {
    let server = server::find(of_process).map_err(|e| e.to_string())?;
    let signal = signals();
    let program = Program::new(server.path, signal.clone());
    let mut rows = Vec::new();
    let mut failed = false;
    each(
        &options.templates,
        &signal,
        |given| study(&program, &subject(given)?),
        |given, studied| {
            match studied {
                Ok(study) if options.json => print_json(&study)?,
                Ok(study) if options.compare => rows.push(study),
                Ok(study) => print(&show::text(&study))?,
                Err(_) if signal.load(Ordering::Relaxed) != 0 => {}
                Err(why) => {
                    failed = true;
                    say(format_args!("{given}: {why}"));
                }
            }
            Ok(())
        },
    )?;
    if !rows.is_empty() {
        print(&show::table(&rows))?;
    }
    Ok(match signal.load(Ordering::Relaxed) {
        0 => ExitCode::from(u8::from(failed)),
        number => ExitCode::from(128 + number as u8),
    })
}

/// Takes the signals that ask us to end: our servers must be ended first, and their files removed.
fn signals() -> Arc<AtomicUsize> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        // Without the handler all else is as it was.
        let _ = signal_hook::flag::register_usize(number, signal.clone(), number as usize);
    }
    signal
}

/// For `doctor`: whether an agent's prompts go on with the template of the server that runs at this URL. `program`: the
/// llama-server to start. `None`: it cannot be said.
pub(super) fn in_a_line(program: &Path, url: &str) -> Option<String> {
    let subject = of_server(url).ok()?;
    let study = study::agent(&Program::new(program.into(), signals()), &subject).ok()?;
    Some(show::line(&study, url))
}

/// Works on some at a time, and shows the results in order.
fn each(
    all: &[String],
    signal: &AtomicUsize,
    work: impl Fn(&str) -> Result<Study, String> + Sync,
    mut shown: impl FnMut(&str, Result<Study, String>) -> Result<(), String>,
) -> Result<(), String> {
    /// A server takes a core while it starts, and little memory.
    const MOST: usize = 4;
    let threads = available_parallelism().map_or(1, usize::from).min(MOST);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, results) = channel();
        for _ in 0..threads.min(all.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while signal.load(Ordering::Relaxed) == 0 {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = all.get(nth) else { break };
                    if sender.send((nth, work(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting: Vec<Option<Result<Study, String>>> = Vec::new();
        waiting.resize_with(all.len(), || None);
        let mut at = 0;
        for (nth, result) in results {
            waiting[nth] = Some(result);
            while let Some(result) = waiting.get_mut(at).and_then(Option::take) {
                shown(&all[at], result)?;
                at += 1;
            }
        }
        Ok(())
    })
}

/// The template that is meant.
fn subject(given: &str) -> Result<Subject, String> {
    if given.contains("://") || given.starts_with("unix:") {
        return of_server(given);
    }
    let path = Path::new(given);
    let named = |chat| Subject {
        name: path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        chat,
        server: None,
    };
    let cannot =
        |e| format!("it cannot be read ({e}): give a .gguf, a .jinja or the URL of a server");
    let mut magic = Vec::new();
    let file = fs::File::open(path).map_err(cannot)?;
    file.take(4).read_to_end(&mut magic).map_err(cannot)?;
    if magic == gguf::MAGIC {
        return model::chat(path).map(named);
    }
    let template = fs::read_to_string(path).map_err(cannot)?;
    if template.trim().is_empty() {
        return Err("it is empty: give a .gguf, a .jinja or the URL of a server".to_owned());
    }
    Ok(named(Chat::new(template)))
}

fn of_server(url: &str) -> Result<Subject, String> {
    let server = with_key(LlamaServer::new(url).map_err(|e| e.to_string())?)?;
    let props = server.props().map_err(|error| match &error {
        // There is no --server here.
        Error::Unreachable { why, .. } => {
            format!("no llama-server answers there ({why}): start it, or give the model's file")
        }
        error => server_says(&server, error),
    })?;
    let template = props.chat_template.filter(|text| !text.is_empty());
    let template = template.ok_or("it does not say its template: give the model's file")?;
    let usual = Chat::new(template);
    Ok(Subject {
        name: props.model_alias.unwrap_or_else(|| url.to_owned()),
        chat: Chat {
            tool_use: props.chat_template_tool_use,
            bos: props.bos_token.unwrap_or_else(|| usual.bos.clone()),
            eos: props.eos_token.unwrap_or_else(|| usual.eos.clone()),
            ..usual
        },
        server: Some(server),
    })
}
