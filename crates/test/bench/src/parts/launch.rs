//! What the launcher adds to the start of a server.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use contextpilot_testbed::Result;

use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};
use crate::plot::{Plot, shares};
use crate::sample::{Comparison, order};

/// No process listens there, and none is asked anything before the server is up.
pub(super) const NOWHERE: &str = "http://127.0.0.1:9";

const DISABLED: usize = 2;
const ENABLED: usize = 3;
const FLOOR: usize = 5;
/// Targets, ms.
const MORE_DISABLED: f64 = 2.0;
const MORE_ENABLED: f64 = 10.0;

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    let commands = || {
        let version = |program: &Path| {
            let mut command = lab.command(program);
            command.arg("--version");
            command
        };
        let mut enabled = version(&lab.launcher);
        enabled.env("CONTEXTPILOT_INDEX_URL", NOWHERE);
        let mut by_env = lab.command("env".as_ref());
        by_env.arg(&lab.server).arg("--version");
        let mut floor = lab.command("env".as_ref());
        let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
        preload.push(&lab.hook);
        // The first program is loaded without it, as the launcher is.
        floor.arg(preload).arg(&lab.server).arg("--version");
        vec![
            version(&lab.server),
            version(&lab.server),
            version(&lab.launcher),
            enabled,
            by_env,
            floor,
        ]
    };
    let names = [
        "llama-server",
        "llama-server, again",
        "launcher, disabled",
        "launcher, enabled",
        "`env llama-server`",
        "the same, the library preloaded and inert",
    ];
    // A library that was laid down just now is compared again: it might still be written to.
    in_turn(&names, commands, 1)?;
    std::thread::sleep(std::time::Duration::from_secs(4));
    in_turn(&names, commands, 1)?;
    let times = in_turn(&names, commands, lab.rounds(200, 3))?;
    let more = [DISABLED, ENABLED, FLOOR].map(|side| times.difference(side));
    page.section("Launching");
    page.say(
        "Wall time of `--version`, from starting the process to its end. The launcher becomes the\n\
         server by `exec`, so this is all that it ever costs. Enabled, the hook library is in its\n\
         cache already, and was compared with the one inside the launcher. What is left: the dynamic\n\
         linker loads it, and it looks for the server's calls of the engine.",
    );
    page.say(times.table("ms"));
    page.say(format!(
        "The last two rows are the same path without our code: the system runs one program, which becomes the\n\
         server, and the dynamic linker loads a library of this size, whose constructor returns at once. So of\n\
         {:.1} ms, {:.1} ms are what any launcher with such a library takes, and {:.1} ms are ours.",
        more[1].middle,
        more[2].middle,
        more[1].middle - more[2].middle
    ));
    page.figure(
        "launching",
        &Plot {
            title: "Launching --version",
            x: "ms",
            y: "% of launches that took no longer",
            logarithmic: false,
            from_zero: true,
            lines: shares(&times.samples()),
        },
    )?;
    for (name, more, target) in [
        ("Launcher, disabled", more[0], MORE_DISABLED),
        ("Launcher, enabled", more[1], MORE_ENABLED),
    ] {
        let aim = if more.middle > target && more.low <= target {
            Aim::Noise
        } else {
            Aim::met_if(more.middle <= target)
        };
        let found = format!("{} ms", more.show(2));
        page.aim(name, &format!("at most {target} ms more"), &found, aim);
    }
    page.in_short(
        "Launching",
        &format!(
            "takes {:.1} ms more than llama-server when no index is set, {:.1} ms with one.",
            more[0].middle, more[1].middle
        ),
    );
    Ok(())
}

/// Runs commands one after the other, round after round; each begins as many rounds as the others.
pub(super) fn in_turn(
    names: &[&str],
    commands: impl Fn() -> Vec<Command>,
    rounds: usize,
) -> Result<Comparison> {
    let mut times = Comparison::new(names);
    for round in 0..rounds {
        let mut commands = commands();
        let count = commands.len();
        for side in order(round, count) {
            let start = Instant::now();
            let status = commands[side].status()?;
            times.add(side, start.elapsed().as_secs_f64() * 1e3);
            if !status.success() {
                return Err(failed(format!("{:?}: {status}", commands[side])));
            }
        }
    }
    Ok(times)
}
