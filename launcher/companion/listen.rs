//! A receiver that speaks `/evict` as the index does, and shows what arrives.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;

use crate::say::say;

mod api;
mod http;
mod print;

use print::Printer;

/// A thread each. The hook keeps one connection, a person with curl a second.
const MOST_CONNECTIONS: usize = 64;

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
    let places = Arc::new(Places::new(MOST_CONNECTIONS));
    loop {
        let place = Places::take(&places);
        match listener.accept() {
            Ok((stream, _)) => serve(stream, place, Arc::clone(&printer)),
            Err(e) if is_the_peers_fault(&e) => {}
            Err(e) => {
                say(format_args!(
                    "A connection could not be accepted ({e}); trying again"
                ));
                // Such as no free file descriptors: it takes time to change.
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
}

fn bind(host: &str, port: u16) -> Result<TcpListener, String> {
    // Brackets are how people write IPv6 addresses next to ports.
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    TcpListener::bind((host, port)).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => format!(
            "Port {port} on {host} is in use: stop what listens there, \
             or choose another with --port"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("Port {port} on {host} may not be used: choose one above 1023 with --port")
        }
        _ => format!("Cannot listen on {host} port {port} ({e}): check --host and --port"),
    })
}

fn is_the_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

fn serve(stream: TcpStream, place: Place, printer: Arc<Printer>) {
    let thread = std::thread::Builder::new().name("connection".into());
    let spawned = thread.spawn(move || {
        let _place = place;
        // A connection that breaks is the client's to report.
        let _ = http::serve(&stream, |request| api::answer(request, &printer));
    });
    if let Err(e) = spawned {
        say(format_args!(
            "A connection was dropped, no thread could be started ({e})"
        ));
    }
}

/// How many connections may still be opened.
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// The right to one connection, given back on drop.
struct Place(Arc<Places>);

impl Places {
    fn new(free: usize) -> Self {
        Self {
            free: Mutex::new(free),
            freed: Condvar::new(),
        }
    }

    /// Waits for a free place.
    fn take(places: &Arc<Self>) -> Place {
        let free = places.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = places
            .freed
            .wait_while(free, |free| *free == 0)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Place(Arc::clone(places))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free += 1;
        self.0.freed.notify_one();
    }
}
