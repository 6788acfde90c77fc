//! The control endpoint's threads: one that listens, one for each connection.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use contextpilot_http_server::{BindError, Bound, Limits, Listener, Pool, accept_for_ever, serve};
use contextpilot_settings::ListenAddress;

use super::answers::{Answers, refuse};
use crate::base::bounds::{BODY, CONNECTIONS};
use crate::base::{guard, log};

const LIMITS: Limits = Limits {
    body: BODY,
    patience: Duration::from_secs(20),
    whole_request: Duration::from_secs(20),
    connections: CONNECTIONS,
};

/// Where a Unix socket stands, to be taken away at the end.
static SOCKET: OnceLock<Bound> = OnceLock::new();

/// Starts the thread that listens. The caller has blocked all signals.
pub(crate) fn start(address: ListenAddress, answers: Answers) -> io::Result<()> {
    let answers = Arc::new(answers);
    let thread = thread::Builder::new().name("contextpilot-web".to_owned());
    thread.spawn(move || {
        guard::enter_for_life();
        // On this thread, not on the host's: a socket may be somewhere slow.
        match bind(&address) {
            Ok(listener) => listen(&listener, &answers),
            Err(why) => log::line(format_args!(
                "Control endpoint: cannot listen on {address}, {why}. The server runs as usual, \
                 without the endpoint: set CONTEXTPILOT_LISTEN to another address and restart"
            )),
        }
    })?;
    Ok(())
}

/// The process ends.
pub(crate) fn remove_socket() {
    if let Some(socket) = SOCKET.get() {
        socket.remove();
    }
}

fn bind(address: &ListenAddress) -> Result<Listener, BindError> {
    match address {
        ListenAddress::Tcp(address) => Listener::tcp(*address),
        ListenAddress::Unix(path) => {
            let (listener, bound) = Listener::unix(path)?;
            let _ = SOCKET.set(bound);
            Ok(listener)
        }
    }
}

fn listen(listener: &Listener, answers: &Arc<Answers>) {
    match listener.tcp_address() {
        Some(address) => log::line(format_args!("Control endpoint: http://{address}")),
        None => log::line(format_args!("Control endpoint: {}", answers.address())),
    }
    let answers = Arc::clone(answers);
    accept_for_ever(
        listener,
        &Pool::new(LIMITS.connections),
        || refuse(503, "too many connections: close one, or try again later"),
        |problem| log::line(format_args!("Control endpoint: {problem}")),
        move |stream| {
            guard::enter_for_life();
            // A connection that breaks is the client's to report.
            let _ = serve(stream, &LIMITS, |request| answers.answer(request), refuse);
        },
    )
}
