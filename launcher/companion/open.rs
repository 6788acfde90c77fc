//! `open`: shows the cache in a browser.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use clap::Args;
use contextpilot_client::Control;

use super::connect::ControlAt;
use super::show::print;
use crate::say::say;
use crate::variables::{Lookup, of_process};

mod bridge;

/// Show the cache in a browser
///
/// Starts the browser at the page of the control endpoint. A browser reaches neither a Unix socket
/// (CONTEXTPILOT_LISTEN=auto) nor an endpoint that asks for a token. For these, this command serves the page
/// itself, on a port of this machine, for as long as it runs, with a token of its own in the address.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama open
  contextpilot-llama open --no-browser --port 8891   # and on your own machine: ssh -L 8891:127.0.0.1:8891 host")]
pub(super) struct OpenOptions {
    #[command(flatten)]
    control: ControlAt,
    /// Start no browser: print the address
    #[arg(long)]
    no_browser: bool,
    /// Serve the page at this port of 127.0.0.1, whatever the endpoint is [default: only if it is needed, at a
    /// free port]
    #[arg(long)]
    port: Option<u16>,
}

pub(super) fn run(options: &OpenOptions) -> Result<(), String> {
    // Ask once at the beginning, so that an error is printed as by other commands.
    let (control, _) = options.control.stats()?;
    if let Some(url) = direct(&control).filter(|_| options.port.is_none()) {
        print(&format!("{url}\n"))?;
        if !options.no_browser {
            browse(url.into())?;
        }
        return Ok(());
    }
    let bridge = bridge::Bridge::listen(control, options.port.unwrap_or(0))?;
    // The token is in the address behind the #, which a browser keeps to itself. A file that only this user can
    // read passes it on: a command line can be read by every user.
    let ticket = if options.no_browser {
        None
    } else {
        Some(bridge.ticket()?)
    };
    print(&format!("{}\n", bridge.url()))?;
    say("The page is served until this command ends (Ctrl+C)");
    if let Some(ticket) = &ticket {
        browse(ticket.path().into())?;
    }
    bridge.serve()
}

/// The endpoint's page, if a browser can open it.
fn direct(control: &Control) -> Option<String> {
    if of_process
        .text(contextpilot_settings::env::LISTEN_TOKEN)
        .is_some()
    {
        return None;
    }
    match control.address() {
        address if address.starts_with("unix:") => None,
        address if address.contains("://") => Some(address.to_owned()),
        address => Some(format!("http://{address}/")),
    }
}

/// Starts the browser: what BROWSER names, else the desktop's.
fn browse(what: OsString) -> Result<(), String> {
    let opener = match of_process.non_empty("BROWSER") {
        Some(browser) => browser,
        None if cfg!(target_os = "macos") => "open".into(),
        None => "xdg-open".into(),
    };
    let started = Command::new(&opener)
        .arg(what)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(e) = started {
        say(format_args!(
            "{} cannot be started ({e}): open the address above in a browser, or set BROWSER",
            opener.to_string_lossy()
        ));
    }
    Ok(())
}
