//! The companion of `contextpilot-llama-server`: `contextpilot-llama --help`.

fn main() -> std::process::ExitCode {
    contextpilot_launcher::companion::main()
}
