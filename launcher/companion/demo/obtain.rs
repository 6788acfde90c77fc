//! How to get a llama-server on this machine.

use std::process::{Command, Stdio};

/// Debian's package of the server.
const PACKAGE: &str = "llama.cpp-tools";

/// The advice if no package manager of this machine has one.
pub(in crate::companion) const ELSEWHERE: &str =
    "Get one from https://github.com/ggml-org/llama.cpp/releases, and set LLAMA_SERVER_BIN to it";

/// One line that says how to get one.
pub(super) fn hint() -> String {
    match command() {
        Some(command) => format!("Get one with: {command}"),
        None => ELSEWHERE.to_owned(),
    }
}

/// The command that gets one, if this machine has such a command.
pub(in crate::companion) fn command() -> Option<String> {
    if apt_knows(PACKAGE) {
        return Some(format!("sudo apt install {PACKAGE}"));
    }
    let commands = [
        ("brew", "brew install llama.cpp"),
        ("nix", "nix profile install nixpkgs#llama-cpp"),
        ("winget", "winget install llama.cpp"),
        ("pacman", "sudo pacman -S llama.cpp"),
    ];
    let found = commands.iter().find(|(tool, _)| which::which(tool).is_ok());
    found.map(|(_, command)| (*command).to_owned())
}

/// Whether the package is available: some releases do not have it.
fn apt_knows(package: &str) -> bool {
    let found = Command::new("apt-cache")
        .args(["show", package])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}
