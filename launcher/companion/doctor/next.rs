//! The command to type next.

use std::path::Path;

use contextpilot_settings::{IndexUrl, Scheme, Settings, is_wanted};

use crate::companion::demo::obtain;
use crate::variables::of_process;

use super::report::Grade;

/// What the advice depends on.
pub(super) struct Situation<'a> {
    /// The server that `doctor` was told to look at.
    pub(super) given: Option<&'a Path>,
    /// There is a server to look at.
    pub(super) server: bool,
    /// The grade of the whole report.
    pub(super) grade: Grade,
    /// `None`: they are wrong.
    pub(super) settings: Option<&'a Settings>,
    /// The index is as it should be.
    pub(super) index: Grade,
    /// Servers with a hook that answer already, by their process ids.
    pub(super) running: Vec<u32>,
}

/// One line.
pub(super) fn next(situation: &Situation<'_>) -> String {
    if let (Some(_), false) = (situation.given, situation.server) {
        return "contextpilot-llama doctor, with the path of a file that is there".to_owned();
    }
    // Where one runs there is one, but not on this PATH.
    if !situation.server && situation.running.is_empty() {
        return obtain::then("contextpilot-llama doctor");
    }
    let (Some(settings), Grade::Good | Grade::Limited) = (situation.settings, situation.grade)
    else {
        let server = situation.given.map(|path| format!(" {}", shown(path)));
        let server = server.unwrap_or_default();
        return format!("set right what fails above, then: contextpilot-llama doctor{server}");
    };
    match &*situation.running {
        [] => {}
        [_] => return "contextpilot-llama top".to_owned(),
        // Without it, top would ask which.
        [first, ..] => return format!("contextpilot-llama top --pid {first}"),
    }
    if !is_wanted(of_process) {
        return for_server(situation.given, "contextpilot-llama demo");
    }
    let serve = for_server(situation.given, "contextpilot-llama-server -m model.gguf");
    match &settings.index {
        Some(url) if situation.index != Grade::Good => format!("{}, then: {serve}", index(url)),
        _ => serve,
    }
}

/// The command that starts our own index at the address in the settings, if that is possible.
fn index(url: &IndexUrl) -> String {
    match url.socket() {
        Some(path) => format!("contextpilot-llama listen --unix {} &", shown(path)),
        // It does not speak TLS.
        None if url.is_loopback() && url.scheme() == Scheme::Http => {
            format!("contextpilot-llama listen --port {} &", url.port())
        }
        None => format!("start the index, on {}", url.host()),
    }
}

/// The command for the server that was given, if one was.
fn for_server(given: Option<&Path>, command: &str) -> String {
    match given {
        None => command.to_owned(),
        Some(path) => format!("LLAMA_SERVER_BIN={} {command}", shown(path)),
    }
}

fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_build_a_server_while_one_runs() {
        let with = |running| {
            next(&Situation {
                given: None,
                server: false,
                grade: Grade::Fails,
                settings: None,
                index: Grade::Good,
                running,
            })
        };
        assert!(with(vec![7]).starts_with("set right what fails above"));
        assert_eq!(with(vec![]), obtain::then("contextpilot-llama doctor"));
    }

    #[test]
    fn a_file_that_was_named_and_is_not_there_is_no_reason_to_build_a_server() {
        let line = next(&Situation {
            given: Some(Path::new("nosuch")),
            server: false,
            grade: Grade::Fails,
            settings: None,
            index: Grade::Good,
            running: vec![],
        });
        assert!(line.contains("a file that is there"), "{line}");
    }

    #[test]
    fn of_several_servers_the_next_command_names_one() {
        let settings = Settings::from(|_: &str| None).unwrap();
        let with = |running| {
            next(&Situation {
                given: None,
                server: true,
                grade: Grade::Good,
                settings: Some(&settings),
                index: Grade::Good,
                running,
            })
        };
        assert_eq!(with(vec![7]), "contextpilot-llama top");
        assert_eq!(with(vec![7, 8]), "contextpilot-llama top --pid 7");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/usr/bin/llama-server"), "/usr/bin/llama-server");
        assert_eq!(quoted("/my models/it's"), r"'/my models/it'\''s'");
        assert_eq!(quoted("$(x)"), "'$(x)'");
    }

    #[test]
    fn the_suggested_index_has_the_address_in_the_settings() {
        let line = |url: &str| index(&IndexUrl::parse(url).unwrap());
        assert_eq!(
            line("http://127.0.0.1:8765"),
            "contextpilot-llama listen --port 8765 &"
        );
        assert_eq!(
            line("unix:/run/i.sock"),
            "contextpilot-llama listen --unix /run/i.sock &"
        );
        assert_eq!(
            line("http://index.example:80"),
            "start the index, on index.example"
        );
        assert_eq!(line("https://localhost:9"), "start the index, on localhost");
    }
}
