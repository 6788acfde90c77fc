//! How to get a llama-server on this machine.

use std::process::{Command, Stdio};

/// Debian's package of the server.
const PACKAGE: &str = "llama.cpp-tools";

/// Builds one from its sources, in a folder below this one.
const BUILD: &str = "git clone --depth 1 https://github.com/ggml-org/llama.cpp && \
                     cmake -S llama.cpp -B llama.cpp/build && \
                     cmake --build llama.cpp/build --target llama-server -j 2 && \
                     LLAMA_SERVER_BIN=llama.cpp/build/bin/llama-server";

/// The line to type that gets one and then runs `command`.
pub(in crate::companion) fn then(command: &str) -> String {
    if apt_knows(PACKAGE) {
        return format!("sudo apt install {PACKAGE} && {command}");
    }
    let managers = [
        ("brew", "brew install llama.cpp"),
        ("nix", "nix profile install nixpkgs#llama-cpp"),
        ("pacman", "sudo pacman -S llama.cpp"),
    ];
    if let Some((_, install)) = managers.iter().find(|(tool, _)| is_there(tool)) {
        return format!("{install} && {command}");
    }
    // Debian 12 and Ubuntu 24.04 have no package of it.
    if is_there("apt-get") {
        return format!("sudo apt install git cmake g++ && {BUILD} {command}");
    }
    if ["git", "cmake", "c++"].into_iter().all(is_there) {
        return format!("{BUILD} {command}");
    }
    format!(
        "get one from https://github.com/ggml-org/llama.cpp/releases, then: \
         LLAMA_SERVER_BIN=/path/to/llama-server {command}"
    )
}

fn is_there(tool: &str) -> bool {
    which::which(tool).is_ok()
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
