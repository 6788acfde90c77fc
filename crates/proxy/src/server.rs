//! Accepts connections and serves them.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_settings::AllowedHosts;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::{Body, Request, Response, guard};

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The future is dropped if the client leaves before it is done.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;
}

/// The limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; further ones wait in the system's queue.
    pub connections: usize,
    /// How long the head of a request may take to arrive, and how long a kept connection may be
    /// idle.
    pub head: Duration,
    /// How long answers may still take after the server was asked to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            head: Duration::from_secs(75),
            drain: Duration::from_secs(5),
        }
    }
}

/// The pause after an `accept` that failed for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is ready, then waits for the current answers. Requests by pages of other machines are
/// refused, and those with a `Host` that is not allowed (see the crate's documentation).
pub async fn serve(
    listener: TcpListener,
    handler: impl Handler,
    hosts: AllowedHosts,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let handler = Arc::new(handler);
    let local = listener.local_addr().is_ok_and(|at| at.ip().is_loopback());
    let hosts = Arc::new(if local { hosts } else { hosts.and_addresses() });
    let places = Arc::new(Semaphore::new(limits.connections));
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        // Collect ended connections when new ones come.
        while connections.try_join_next().is_some() {}
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
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
        let stopped = stopped.clone();
        connections.spawn(async move {
            connection(stream, handler, hosts, limits.head, stopped).await;
            drop(place);
        });
    }
    drop(listener);
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
    head: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    // If this fails, the connection is slower, but works.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let handler = Arc::clone(&handler);
        let request: Request = request.map(Body::new);
        let verdict = guard::judge(&request, &hosts);
        async move {
            let mut response = match verdict.refusal() {
                Some(refusal) => refusal,
                None => handler.handle(request).await,
            };
            verdict.close(response.headers_mut());
            Ok::<_, Infallible>(response)
        }
    });
    let mut serving = pin!(
        http1::Builder::new()
            .preserve_header_case(true)
            .auto_date_header(false)
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
    );
    let stop = pin!(async {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    });
    // The client reports a broken connection.
    if either(stop, serving.as_mut()).await.is_none() {
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}
