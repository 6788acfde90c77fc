//! The control endpoint's threads: one that listens, one for each connection.

use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread;

use contextpilot_admission::{Pace, STACK, give_way};
use contextpilot_http_server::{
    BindError, Bound, Limits, Listener, Pool, Request, accept_for_ever, serve,
};
use contextpilot_settings::{Listen, ListenAddress};

use super::answers::{Answers, refuse};
use crate::bounds::{AT_ONCE, CONNECTIONS_EACH_SECOND};
use crate::library::Library;

/// The control endpoint, for as long as the process lives.
pub(crate) struct Endpoint {
    /// The path of the Unix socket, if there is one, to remove the socket at the end.
    bound: OnceLock<Bound>,
    answers: RwLock<Arc<Answers>>,
}

impl Endpoint {
    /// Removes the file of the Unix socket, if there is one.
    pub(crate) fn remove_socket(&self) {
        if let Some(bound) = self.bound.get() {
            bound.remove();
        }
    }

    /// The next request is answered by these, also on a connection that is open.
    pub(crate) fn replace(&self, answers: Answers) {
        let mut now = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(answers);
    }

    fn answers(&self) -> Arc<Answers> {
        let now = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&now)
    }
}

/// Starts the thread that listens. The caller has blocked all signals. If settings are `strict`, listens before it returns.
///
/// # Errors
/// No thread can be had; it cannot listen, and settings are strict.
pub(crate) fn start(
    library: &'static dyn Library,
    listen: Listen,
    limits: Limits,
    answers: Answers,
    strict: bool,
) -> io::Result<Arc<Endpoint>> {
    let endpoint = Arc::new(Endpoint {
        bound: OnceLock::new(),
        answers: RwLock::new(Arc::new(answers)),
    });
    let place = Arc::clone(&endpoint);
    let at = listen.clone();
    let bound = move || {
        let at = address(library, &at)?;
        let listener = bind(&at, &place.bound).map_err(|why| why.to_string())?;
        Ok::<_, String>((listener, at))
    };
    // A server that is to end without it must know before it loads.
    let early = match strict.then(&bound) {
        Some(Err(why)) => {
            let text = format!("CONTEXTPILOT_LISTEN: cannot listen on {listen}, {why}");
            return Err(io::Error::other(text));
        }
        bound => bound,
    };
    let shared = Arc::clone(&endpoint);
    let thread = thread::Builder::new()
        .name("contextpilot-web".to_owned())
        .stack_size(STACK);
    thread.spawn(move || {
        library.enter_thread();
        // On this thread, not on the host's: a socket may be somewhere slow.
        match early.unwrap_or_else(bound) {
            Ok((listener, at)) => accept(library, &listener, &at, limits, shared),
            Err(why) => library.say(format_args!(
                "Control endpoint: cannot listen on {listen}, {why}. The server runs as usual, \
                 without the endpoint: set CONTEXTPILOT_LISTEN to another address and restart"
            )),
        }
    })?;
    Ok(endpoint)
}

/// The address to listen at.
fn address(library: &'static dyn Library, listen: &Listen) -> Result<ListenAddress, String> {
    match listen {
        Listen::At(address) => Ok(address.clone()),
        Listen::Auto => contextpilot_discovery::place(|name| library.variable(name))
            .map(ListenAddress::Unix)
            .map_err(|why| why.to_string()),
    }
}

fn bind(address: &ListenAddress, place: &OnceLock<Bound>) -> Result<Listener, BindError> {
    match address {
        ListenAddress::Tcp(address) => Listener::tcp(*address),
        ListenAddress::Unix(path) => {
            let (listener, bound) = Listener::unix(path)?;
            let _ = place.set(bound);
            Ok(listener)
        }
    }
}

fn accept(
    library: &'static dyn Library,
    listener: &Listener,
    at: &ListenAddress,
    limits: Limits,
    endpoint: Arc<Endpoint>,
) {
    match listener.tcp_address() {
        Some(address) => library.say(format_args!("Control endpoint: http://{address}")),
        None => library.say(format_args!("Control endpoint: {at}")),
    }
    let clients = Arc::clone(&endpoint.answers().asker.clients);
    accept_for_ever(
        listener,
        Pool::new(limits.connections).paced(Pace::new(CONNECTIONS_EACH_SECOND, AT_ONCE)),
        || {
            clients.refuse();
            refuse(503, "too many connections: close one, or try again later")
        },
        |problem| library.say(format_args!("Control endpoint: {problem}")),
        move |stream, _| {
            library.enter_thread();
            // The server's threads go first.
            give_way();
            let clients = Arc::clone(&endpoint.answers().asker.clients);
            let peer = clients.work.peer();
            let mut meter = peer.meter();
            let answer = |request: &Request| {
                let answer = endpoint.answers().answer(request);
                meter.pay();
                answer
            };
            let malformed = |status, why: &str| {
                clients.refuse();
                refuse(status, why)
            };
            // A connection that breaks is the client's to report.
            let ended = serve(stream, &limits, answer, malformed);
            if ended.is_err_and(|error| is_late(&error)) {
                clients.refuse();
            }
        },
    )
}

/// The client was silent for too long, or did not read.
fn is_late(error: &io::Error) -> bool {
    use io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}
