//! Accepts connections and serves them.
//!
//! A connection that begins with an urgent request is served on the thread that accepts. All others are handed over to
//! further threads once the first bytes of their requests are there. So whatever those threads have to do, an urgent
//! request waits for nothing but the processor.

use std::convert::Infallible;
use std::io;
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
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::arriving::Arriving;
use crate::places::{Limits, Permit, Places, Progress, Step, Tally};
use crate::stream::{BUFFER, Watched};
use crate::{Body, Request, Response, Tap, error_response, guard};

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request. The future is dropped if the client leaves before it is done.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;

    /// Whether a request with this method and path must not wait until others leave a place: few, small, and answered
    /// at once.
    fn urgent(&self, _method: &str, _path: &str) -> bool {
        false
    }
}

/// The pause after an `accept` that failed for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// How often to look for connections that take too long.
const SWEEP: Duration = Duration::from_millis(500);

/// Bytes of a request that say whether it is urgent.
const START: usize = 128;

/// Serves for as long as the process lives: urgent requests on this thread, others on threads of its own.
///
/// # Errors
/// The system has no threads or sockets left.
pub fn run(
    listener: std::net::TcpListener,
    handler: impl Handler,
    hosts: AllowedHosts,
    limits: Limits,
    tally: Arc<Tally>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let others = Builder::new_multi_thread().enable_all().build()?;
    let own = Builder::new_current_thread().enable_all().build()?;
    own.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let others = others.handle().clone();
        let stop = std::future::pending();
        serve(listener, handler, hosts, limits, tally, others, stop).await;
        Ok(())
    })
}

/// Serves until `stop` is ready, then waits for the current answers: urgent requests on the calling thread, whose runtime
/// has no other, and `others` on theirs. Requests by pages of other machines are
/// refused, and those with a `Host` that is not allowed (see the crate's documentation).
pub async fn serve<H: Handler>(
    listener: TcpListener,
    handler: H,
    hosts: AllowedHosts,
    limits: Limits,
    tally: Arc<Tally>,
    others: Handle,
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
        let task = place.task();
        let client = Client {
            place,
            places: Arc::clone(&places),
            handler: Arc::clone(&handler),
            hosts: Arc::clone(&hosts),
            limits,
            stopped: stopped.clone(),
        };
        let handle = connections.spawn(client.begin(stream, others.clone()));
        let _ = task.set(handle);
        // When many connect at once, what this one has sent is looked at before others are accepted, who might need its
        // place: an urgent request that has arrived is no slow client.
        tokio::task::yield_now().await;
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

/// One connection, and what it takes to serve it.
struct Client<H> {
    place: Permit,
    places: Arc<Places>,
    handler: Arc<H>,
    hosts: Arc<AllowedHosts>,
    limits: Limits,
    stopped: watch::Receiver<bool>,
}

impl<H: Handler> Client<H> {
    /// Serves it, here or elsewhere.
    async fn begin(mut self, stream: TcpStream, others: Handle) {
        let mut start = [0; START];
        let (stop, peeked) = (ended(&mut self.stopped), stream.peek(&mut start));
        let Some(Ok(count)) = either(pin!(stop), pin!(peeked)).await else {
            return;
        };
        let first = request_line(&start[..count]);
        if first.is_some_and(|(method, path)| self.handler.urgent(method, path)) {
            return self.serve(stream, Some(others)).await;
        }
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let serving = async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                self.serve(stream, None).await;
            }
        };
        done_by(&others, serving).await;
    }

    /// `others`: those who answer what is not urgent, if not this thread.
    async fn serve(mut self, stream: TcpStream, others: Option<Handle>) {
        // If this fails, the connection is slower, but works.
        let _ = stream.set_nodelay(true);
        let stream = Watched::new(stream, Arc::clone(&self.place.progress));
        let limits = self.limits;
        let (places, place, handler) = (&self.places, &self.place, &self.handler);
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let (handler, others) = (Arc::clone(handler), others.clone());
            let progress = Arc::clone(&place.progress);
            let (mut parts, body) = request.into_parts();
            let body = Arriving::new(body, limits.body, progress, Arc::clone(places));
            parts.extensions.insert(body.fault());
            let request = Request::from_parts(parts, Body::new(body));
            let verdict = guard::judge(&request, &self.hosts);
            let urgent = handler.urgent(request.method().as_str(), request.uri().path());
            let full = !urgent && !place.is_for_all();
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
                    None => match others.filter(|_| !urgent) {
                        Some(others) => handled_by(&others, handler, request).await,
                        None => handler.handle(request).await,
                    },
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
        let stop = pin!(ended(&mut self.stopped));
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
}

async fn ended(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Does this on other threads. It is dropped when this future is. `None`: it has panicked.
async fn done_by<T: Send + 'static>(
    others: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let mut there = JoinSet::new();
    there.spawn_on(work, others);
    there.join_next().await?.ok()
}

/// Answers a request on other threads than that which serves its connection.
async fn handled_by<H: Handler>(others: &Handle, handler: Arc<H>, request: Request) -> Response {
    let response = done_by(others, async move { handler.handle(request).await });
    response.await.unwrap_or_else(|| {
        let why = "the work for this request failed, which is a bug: report it";
        error_response(500, "server_error", why)
    })
}

/// The method and the path, if these bytes have all of them.
fn request_line(start: &[u8]) -> Option<(&str, &str)> {
    let end = start.iter().position(|byte| *byte == b'\r');
    let line = std::str::from_utf8(&start[..end.unwrap_or(start.len())]).ok()?;
    let mut words = line.split(' ');
    let (method, target, _) = (words.next()?, words.next()?, words.next()?);
    Some((method, target.split('?').next()?))
}

/// Notes that an answer was passed on, and only its end is still to be written.
struct Answered(Arc<Progress>);

impl Tap for Answered {
    fn data(&mut self, _: &[u8]) {}

    fn end(&mut self, _: bool) {
        self.0.step(Step::End);
    }
}

fn all_taken(connections: usize) -> Response {
    let why = format!(
        "as many requests as are allowed ({connections}) are being answered: try again in a moment"
    );
    let mut response = error_response(503, "unavailable_error", &why);
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_line_is_read_if_all_of_it_is_there() {
        let read = |start: &str| request_line(start.as_bytes()).map(|(m, p)| format!("{m} {p}"));
        let line = "POST /evict?x=1 HTTP/1.1\r\nHost: a b\r\n";
        assert_eq!(read(line).as_deref(), Some("POST /evict"));
        assert_eq!(read("GET /ready ").as_deref(), Some("GET /ready"));
        for short in ["", "GET", "GET ", "GET /ready", "GET /ready\r\n a b"] {
            assert_eq!(read(short), None);
        }
        assert_eq!(request_line(b"GET /\xff HTTP/1.1\r\n"), None);
    }
}
