//! How to get a llama-server on this machine.

use std::process::{Command, Stdio};

/// Debian's package of the server.
const PACKAGE: &str = "llama.cpp-tools";

/// One line: the command that gets one, as far as this machine has one.
pub(super) fn hint() -> String {
    let get = |command: &str| format!("Get one with: {command}");
    if apt_knows(PACKAGE) {
        return get(&format!("sudo apt install {PACKAGE}"));
    }
    let commands = [
        ("brew", "brew install llama.cpp"),
        ("nix", "nix profile install nixpkgs#llama-cpp"),
        ("winget", "winget install llama.cpp"),
        ("pacman", "sudo pacman -S llama.cpp"),
    ];
    for (tool, command) in commands {
        if which::which(tool).is_ok() {
            return get(command);
        }
    }
    "Get one from https://github.com/ggml-org/llama.cpp/releases, and set LLAMA_SERVER_BIN to it"
        .to_owned()
}

/// Whether the package could be installed: some releases do not have it.
fn apt_knows(package: &str) -> bool {
    let found = Command::new("apt-cache")
        .args(["show", package])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}
