//! `contextpilot-llama`, the companion command.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;

use crate::say::say;
use crate::{hook_lib, variables};

mod accounts;
mod advise;
mod adviser;
mod agent;
mod bounds;
mod connect;
mod demo;
mod differs;
mod doctor;
mod engine;
mod events;
mod gateway;
mod generate;
mod gguf;
mod hosts;
mod index;
mod insert;
mod killed;
mod limit;
mod listen;
mod open;
mod plan;
mod plot;
mod progress;
mod recorded;
mod report;
mod reset;
mod run;
mod servers;
mod settings;
mod show;
mod simulate;
mod slots;
mod stabilise;
mod stats;
mod store;
mod table;
mod template;
mod top;
mod traffic;
mod ttft;
mod under_way;
mod up;
mod warm;
mod whereis;
mod why;
mod words;

/// The companion of contextpilot-llama-server.
///
/// contextpilot-llama-server is llama-server with an exact view of its KV cache: it
/// reports to an index which requests were evicted. All its arguments are
/// llama-server's. It is configured by environment variables, which --help lists.
#[derive(Parser)]
#[command(name = "contextpilot-llama", version, verbatim_doc_comment)]
#[command(after_help = settings::short_end(), after_long_help = settings::end())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::DemoOptions),
    Agent(agent::AgentOptions),
    Up(up::UpOptions),
    Top(top::TopOptions),
    Open(open::OpenOptions),
    Report(report::ReportOptions),
    Stats(stats::StatsOptions),
    #[command(name = "where")]
    Where(whereis::WhereOptions),
    Why(why::WhyOptions),
    Events(events::EventsOptions),
    Slots(slots::SlotsOptions),
    Ttft(ttft::TtftOptions),
    Store(store::StoreOptions),
    Warm(warm::WarmOptions),
    Keep(warm::Keep),
    Release(warm::Release),
    Reset(reset::ResetOptions),
    Killed(killed::KilledOptions),
    Run(run::RunOptions),
    Insert(insert::InsertOptions),
    Simulate(Box<simulate::SimulateOptions>),
    Advise(advise::AdviseOptions),
    Template(template::TemplateOptions),
    Traffic(Box<traffic::TrafficOptions>),
    Plan(Box<plan::PlanOptions>),
    Doctor(doctor::DoctorOptions),
    Listen(listen::ListenOptions),
    Gateway(gateway::GatewayOptions),
    Index(index::IndexOptions),
    #[command(name = up::index::COMMAND, hide = true)]
    IndexOfUp(up::index::UpIndexOptions),
    #[command(name = agent::lines::COMMAND, hide = true)]
    LinesOfAgent(agent::lines::AgentLinesOptions),
    /// Print the path of the hook library
    ///
    /// This is CONTEXTPILOT_HOOK_LIB, if it is set; else the library of the package that this
    /// command came with; else the built-in library, which is first written to the cache
    /// folder if it is not there.
    #[command(after_help = "Example:
  nm -D --defined-only \"$(contextpilot-llama hook-path)\"")]
    HookPath,
    Completions(generate::Completions),
    Man(generate::Man),
}

/// Runs the command.
pub fn main() -> ExitCode {
    let done = |result: Result<(), String>| result.map(|()| ExitCode::SUCCESS);
    let command = Cli::parse().command;
    // These become another program, or handle signals themselves.
    if !matches!(
        command,
        Command::Agent(_)
            | Command::Up(_)
            | Command::Top(_)
            | Command::Run(_)
            | Command::Template(_)
    ) {
        end_as_first_process();
    }
    let result = match command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Demo(options) => done(demo::run(&options)),
        Command::Listen(options) => done(listen::run(&options)),
        Command::Gateway(options) => done(gateway::run(&options)),
        Command::Index(options) => done(index::run(&options)),
        Command::Agent(options) => agent::run(&options),
        Command::LinesOfAgent(options) => agent::lines::run(&options),
        Command::Up(options) => up::run(&options),
        Command::IndexOfUp(options) => up::index::run(&options),
        Command::HookPath => done(hook_path()),
        Command::Top(options) => done(top::run(&options)),
        Command::Open(options) => done(open::run(&options)),
        Command::Report(options) => report::run(&options),
        Command::Stats(options) => done(stats::run(&options)),
        Command::Where(options) => whereis::run(&options),
        Command::Why(options) => why::run(&options),
        Command::Events(options) => done(events::run(&options)),
        Command::Slots(options) => done(slots::run(&options)),
        Command::Ttft(options) => done(ttft::run(&options)),
        Command::Store(options) => store::run(&options),
        Command::Warm(options) => done(warm::run(&options)),
        Command::Keep(options) => done(warm::keep(&options)),
        Command::Release(options) => done(warm::release(&options)),
        Command::Reset(options) => done(reset::run(&options)),
        Command::Killed(options) => done(killed::run(&options)),
        Command::Run(options) => Ok(run::run(&options)),
        Command::Insert(options) => done(insert::run(&options)),
        Command::Simulate(options) => simulate::run(&options),
        Command::Traffic(options) => traffic::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Advise(options) => done(advise::run(&options)),
        Command::Template(options) => template::run(&options),
        Command::Completions(options) => done(generate::completions(&options, Cli::command())),
        Command::Man(options) => done(generate::man(&options, Cli::command())),
    };
    match result {
        Ok(code) => code,
        Err(why) => {
            say(why);
            ExitCode::FAILURE
        }
    }
}

/// The first process of a container ignores every signal that it has no handler for: `podman stop` would
/// wait ten seconds and then kill it.
fn end_as_first_process() {
    if std::process::id() != 1 {
        return;
    }
    for signal in [SIGTERM, SIGINT] {
        // As a shell says which signal ended a program. Without the handler all goes on as it was.
        let _ =
            register_conditional_shutdown(signal, 128 + signal, Arc::new(AtomicBool::new(true)));
    }
}

fn hook_path() -> Result<(), String> {
    let path = hook_lib::locate(variables::of_process).map_err(|e| e.to_string())?;
    show::print_path(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This also runs clap's own checks.
    #[test]
    fn every_command_has_an_example() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            let after = command.get_after_help().map(ToString::to_string);
            let after = after.unwrap_or_default();
            assert!(after.contains("Example"), "{name}");
            assert!(after.contains("contextpilot-llama"), "{name}");
            let commands = command.get_subcommands();
            commands
                .filter(|command| command.get_name() != "help")
                .for_each(check);
        }
        let command = Cli::command();
        command.clone().debug_assert();
        check(&command);
    }
}
