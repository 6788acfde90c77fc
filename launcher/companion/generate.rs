//! `completions` and `man`: generated from the description of the command line.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::settings;
use super::show::print;

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama completions bash > ~/.local/share/bash-completion/completions/contextpilot-llama
  contextpilot-llama completions fish > ~/.config/fish/completions/contextpilot-llama.fish
  contextpilot-llama completions zsh > \"${fpath[1]}/_contextpilot-llama\"")]
pub(super) struct Completions {
    shell: Shell,
}

pub(super) fn completions(options: &Completions, mut command: Command) -> Result<(), String> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(options.shell, &mut command, &name, &mut script);
    let script = String::from_utf8_lossy(&script);
    match options.shell {
        Shell::Bash => print(&one_spelling(&script, &name)),
        _ => print(&script),
    }
}

/// Bash's script identifies each command by a word made of all names on the way to it. clap_complete
/// (4.6) writes a dash in the program's own name as `__` where the script finds the command and as
/// `__subcmd__` where it lists the flags, so no flag of any command would be offered.
fn one_spelling(script: &str, name: &str) -> String {
    script.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"))
}

/// Print the man page, or write those of all commands to a folder
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama man | man -l -
  contextpilot-llama man ~/.local/share/man/man1")]
pub(super) struct Man {
    /// Folder to write contextpilot-llama-server.1, contextpilot-llama.1 and one page for each command to
    folder: Option<PathBuf>,
}

pub(super) fn man(options: &Man, command: Command) -> Result<(), String> {
    let Some(folder) = &options.folder else {
        let mut page = Vec::new();
        return clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|e| format!("the page cannot be made ({e})"))
            .and_then(|()| print(&String::from_utf8_lossy(&page)));
    };
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(
            folder.join("contextpilot-llama-server.1"),
            settings::manual(),
        )?;
        clap_mangen::generate_to(command, folder)
    };
    write().map_err(|e| {
        format!(
            "{} cannot be written to ({e}): name another folder",
            folder.display()
        )
    })
}
