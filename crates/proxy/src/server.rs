//! Accepts connections and serves them.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_settings::AllowedHosts;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::arriving::Arriving;
use crate::places::{Permit, Places, Progress, Step, Tally};
use crate::stream::{BUFFER, Watched};
use crate::{Body, Request, Response, Tap, error_response, guard};

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The future is dropped if the client leaves before it is done.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;

    /// Whether a request must not wait until others leave a place: few, small, and answered at once.
    fn urgent(&self, _request: &Request) -> bool {
        false
    }
}

/// The limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Further ones, for urgent requests alone.
    pub reserve: usize,
    /// How long the head of a request may take to arrive.
    pub head: Duration,
    /// How long the body of a request may take to arrive, and a second more for each 64 KiB.
    pub body: Duration,
    /// How long a kept connection may be idle.
    pub idle: Duration,
    /// How long a client may read nothing of its answer.
    pub answer: Duration,
    /// How long answers may still take after the server was asked to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            reserve: 64,
            head: Duration::from_secs(20),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            answer: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

/// The pause after an `accept` that failed for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// How often to look for connections that take too long.
const SWEEP: Duration = Duration::from_millis(500);

/// Serves until `stop` is ready, then waits for the current answers. Requests by pages of other machines are
/// refused, and those with a `Host` that is not allowed (see the crate's documentation).
pub async fn serve(
    listener: TcpListener,
    handler: impl Handler,
    hosts: AllowedHosts,
    limits: Limits,
    tally: Arc<Tally>,
    stop: impl Future<Output = ()>,
) {
    let handler = Arc::new(handler);
    let local = listener.local_addr().is_ok_and(|at| at.ip().is_loopback());
    let hosts = Arc::new(if local { hosts } else { hosts.and_addresses() });
    let places = Places::new(limits, tally);
    let swept = Arc::clone(&places);
    let sweeping = tokio::spawn(async move {
        loop {
            tokio::time::sleep(SWEEP).await;
            swept.sweep();
        }
    });
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        // Collect ended connections when new ones come.
        while connections.try_join_next().is_some() {}
        let next = async {
            let accepted = listener.accept().await;
            (accepted, places.enter().await)
        };
        let (accepted, place) = match either(stop.as_mut(), pin!(next)).await {
            None => break,
            Some(next) => next,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (handler, hosts) = (Arc::clone(&handler), Arc::clone(&hosts));
        let (places, stopped) = (Arc::clone(&places), stopped.clone());
        let task = place.task();
        let handle = connections.spawn(async move {
            connection(stream, handler, hosts, (places, place), limits, stopped).await;
        });
        let _ = task.set(handle);
    }
    drop(listener);
    sweeping.abort();
    stopping.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    // Those that are not done in time are dropped with the set.
    let _ = tokio::time::timeout(limits.drain, all).await;
}

/// The second's result, unless the first is ready before.
async fn either<F: Future<Output = ()> + Unpin, G: Future + Unpin>(
    mut first: F,
    mut second: G,
) -> Option<G::Output> {
    std::future::poll_fn(|context| {
        if std::pin::Pin::new(&mut first).poll(context).is_ready() {
            return std::task::Poll::Ready(None);
        }
        std::pin::Pin::new(&mut second).poll(context).map(Some)
    })
    .await
}

async fn connection<H: Handler>(
    stream: TcpStream,
    handler: Arc<H>,
    hosts: Arc<AllowedHosts>,
    (places, place): (Arc<Places>, Permit),
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    // If this fails, the connection is slower, but works.
    let _ = stream.set_nodelay(true);
    let stream = Watched::new(stream, Arc::clone(&place.progress));
    let (places, place) = (&places, &place);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let handler = Arc::clone(&handler);
        let progress = Arc::clone(&place.progress);
        let (mut parts, body) = request.into_parts();
        let body = Arriving::new(body, limits.body, progress, Arc::clone(places));
        parts.extensions.insert(body.fault());
        let request = Request::from_parts(parts, Body::new(body));
        let verdict = guard::judge(&request, &hosts);
        let full = !handler.urgent(&request) && !place.is_for_all();
        let answered = Answered(Arc::clone(&place.progress));
        async move {
            let mut response = match verdict.refusal() {
                Some(refusal) => {
                    places.tally.forbidden();
                    refusal
                }
                None if full => {
                    places.tally.refused();
                    all_taken(limits.connections)
                }
                None => handler.handle(request).await,
            };
            verdict.close(response.headers_mut());
            Ok::<_, Infallible>(response.map(|body| body.tapped(answered)))
        }
    });
    let mut serving = pin!(
        http1::Builder::new()
            .preserve_header_case(true)
            .auto_date_header(false)
            .max_buf_size(BUFFER)
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle + limits.head)
            .serve_connection(stream, service)
            .with_upgrades()
    );
    let stop = pin!(async {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    });
    let ended = match either(stop, serving.as_mut()).await {
        Some(ended) => ended,
        None => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    // The client reports a broken connection.
    if ended.is_err_and(|error| error.is_parse_too_large()) {
        places.tally.refused();
    }
}

/// Notes that an answer was passed on, and the client may begin its next request.
struct Answered(Arc<Progress>);

impl Tap for Answered {
    fn data(&mut self, _: &[u8]) {}

    fn end(&mut self, _: bool) {
        self.0.step(Step::Idle);
    }
}

fn all_taken(connections: usize) -> Response {
    let why = format!(
        "{connections} requests are being answered, and no more are allowed: try again in a moment"
    );
    let mut response = error_response(503, "unavailable_error", &why);
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
