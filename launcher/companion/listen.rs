//! A receiver that speaks `/evict` as the index does, and shows what arrives.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use contextpilot_http_server::{Limits, Listener, Pool, accept_for_ever, serve};

use crate::say::say;

mod api;
mod print;

use print::Printer;

const LIMITS: Limits = Limits {
    // 1,000 ids of 512 bytes, each byte escaped, are 3 MB.
    body: 8 << 20,
    patience: Duration::from_secs(75),
    whole_request: Duration::from_secs(75),
    // A thread each. The hook keeps one connection, a person with curl a second.
    connections: 64,
};

/// Receive evictions and print them as they arrive
///
/// Answers POST /evict as the ContextPilot index does, and GET /health. Prints
/// one line for each request id that has fallen out of the server's KV cache.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama listen --port 8765 --json | jq -r .request_id")]
pub(super) struct Options {
    /// Port to listen on; 0 chooses a free one
    #[arg(long, default_value_t = 8765)]
    port: u16,
    /// Address to listen on; others than loopback let everybody post who can
    /// reach this machine
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Listens until the process is ended, or nobody reads what it prints.
pub(super) fn run(options: &Options) -> Result<(), String> {
    let listener = bind(&options.host, options.port)?;
    let address = listener
        .local_addr()
        .map_err(|e| format!("the socket has no address ({e}): try again"))?;
    say(format_args!(
        "Listening on http://{address}; start contextpilot-llama-server \
         with CONTEXTPILOT_INDEX_URL=http://{address}"
    ));
    if !address.ip().is_loopback() {
        say(format_args!(
            "{address} can be reached from other machines, and nobody is asked \
             who they are; use --host 127.0.0.1 to keep to this one"
        ));
    }
    let printer = Arc::new(Printer::new(options.json));
    accept_for_ever(
        &Listener::Tcp(listener),
        &Pool::new(LIMITS.connections),
        || api::error(503, "too many connections: close one, or try again later"),
        |problem| say(problem),
        move |stream| {
            // A connection that breaks is the client's to report.
            let _ = serve(
                stream,
                &LIMITS,
                |request| api::answer(request, &printer),
                api::error,
            );
        },
    )
}

fn bind(host: &str, port: u16) -> Result<TcpListener, String> {
    // Brackets are how people write IPv6 addresses next to ports.
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    TcpListener::bind((host, port)).map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "Port {port} on {host} is in use: stop what listens there, \
             or choose another with --port"
        ),
        std::io::ErrorKind::PermissionDenied => {
            format!("Port {port} on {host} may not be used: choose one above 1023 with --port")
        }
        _ => format!("Cannot listen on {host} port {port} ({e}): check --host and --port"),
    })
}
