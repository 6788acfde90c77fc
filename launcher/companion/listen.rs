//! `listen`: a receiver of `POST /evict` that prints the ids.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use contextpilot_http_server::{BindError, Limits, Listener, Pool, accept_for_ever, serve};
use contextpilot_settings::IndexUrl;

use crate::say::say;

pub(super) mod api;
mod print;

use print::Printer;

const LIMITS: Limits = Limits {
    // 1,000 ids of 512 bytes, each byte escaped, are 3 MB.
    body: 8 << 20,
    patience: Duration::from_secs(75),
    whole_request: Duration::from_secs(75),
    // Each has a thread. The hook needs one, and a user with curl another one.
    connections: 64,
};

/// Connections that wait to be accepted, as far as the system allows (`net.core.somaxconn`). The standard library's 128 are
/// taken at once when many connect, and a client that comes then tries again after a second.
const WAITING: i32 = 4096;

/// Receive evictions and print them as they arrive
///
/// Answers POST /evict as the ContextPilot index does, and GET /health. Prints
/// one line for each request id that was evicted from the server's KV cache.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama listen --port 8765 --json | jq -r .request_id
  contextpilot-llama listen --unix /run/user/1000/index.sock")]
pub(super) struct ListenOptions {
    /// Unix socket to listen at instead, which this user alone can use
    #[arg(long, value_name = "PATH", conflicts_with_all = ["port", "host"])]
    unix: Option<PathBuf>,
    /// Port to listen on; 0 chooses a free one
    #[arg(long, default_value_t = 8765)]
    port: u16,
    /// Address to listen on; others than loopback let all post who can reach
    /// this machine
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Listens until the process is ended, or its output is closed.
pub(super) fn run(options: &ListenOptions) -> Result<(), String> {
    let (listener, url) = match &options.unix {
        Some(path) => at_path(path)?,
        None => at_port(&options.host, options.port)?,
    };
    say(format_args!(
        "Listening on {url}; start contextpilot-llama-server with CONTEXTPILOT_INDEX_URL={url}"
    ));
    if let Some(address) = listener.tcp_address() {
        say_who_can_reach(address);
    }
    let printer = Arc::new(Printer::new(options.json));
    accept_for_ever(
        &listener,
        Pool::new(LIMITS.connections),
        || api::error(503, "too many connections: close one, or try again later"),
        |problem| say(problem),
        move |stream, _| {
            // The client reports a broken connection.
            let _ = serve(
                stream,
                &LIMITS,
                |request| api::answer(request, |ids| printer.evicted(ids)),
                api::error,
            );
        },
    )
}

/// What accepts connections at a port, and its URL.
fn at_port(host: &str, port: u16) -> Result<(Listener, String), String> {
    let (listener, address) = bind(host, port, "--port")?;
    Ok((Listener::Tcp(listener), format!("http://{address}")))
}

/// The same at a path. If the process is killed, the socket stays, and the next process replaces it.
fn at_path(path: &Path) -> Result<(Listener, String), String> {
    let absolute = std::path::absolute(path)
        .map_err(|e| format!("{} cannot be used ({e}): check --unix", path.display()))?;
    let shown = absolute.display();
    // Check that the server could use the path, before a socket is created.
    let url = IndexUrl::parse(&format!("unix:{shown}"))
        .ok()
        .filter(|url| url.socket() == Some(&absolute))
        .ok_or_else(|| {
            format!(
                "CONTEXTPILOT_INDEX_URL cannot name {shown}: give --unix a path of at most 95 \
                 plain characters, without \":/\""
            )
        })?;
    match Listener::unix(&absolute) {
        Ok((listener, _)) => Ok((listener, url.to_string())),
        Err(BindError::InUse) => Err(format!(
            "Something listens at {shown}: stop it, or choose another path with --unix"
        )),
        Err(why) => Err(format!("Cannot listen at {shown} ({why}): check --unix")),
    }
}

/// Warns if others than this machine can reach the address.
pub(super) fn say_who_can_reach(address: SocketAddr) {
    if !address.ip().is_loopback() {
        say(format_args!(
            "{address} can be reached from other machines, and nobody is asked \
             who they are; use --host 127.0.0.1 to keep to this one"
        ));
    }
}

/// Listens at a port of an address. `flag`: the one that chooses the port, for messages.
pub(super) fn bind(host: &str, port: u16, flag: &str) -> Result<(TcpListener, SocketAddr), String> {
    // Accept an IPv6 address in brackets, as it is written before a port.
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    let bound = TcpListener::bind((host, port)).and_then(|listener| {
        rustix::net::listen(&listener, WAITING)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "Port {port} on {host} is in use: stop what listens there, \
             or choose another with {flag}"
        ),
        std::io::ErrorKind::PermissionDenied => {
            format!("Port {port} on {host} may not be used: choose one above 1023 with {flag}")
        }
        _ => format!("Cannot listen on {host} port {port} ({e}): check --host and {flag}"),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn many_may_connect_before_any_of_them_is_accepted() {
        let (_listener, address) = bind("127.0.0.1", 0, "--port").expect("a port");
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(900));
        let connected: Result<Vec<TcpStream>, _> = (0..300).map(connect).collect();
        assert_eq!(connected.expect("connections").len(), 300);
    }
}
