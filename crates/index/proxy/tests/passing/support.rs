//! A server that the test plays itself, and a proxy in front of it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use contextpilot_proxy::{
    Counts, Handler, Limits, Request, Response, Tally, Upstream, json_response, serve,
};
use contextpilot_settings::AllowedHosts;
use http_body_util::BodyExt;
use tokio::sync::oneshot;

/// Longer than anything here takes on a busy machine: what does not come fails then.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Fake(TcpListener);

impl Fake {
    pub(crate) fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("an address"))
    }

    pub(crate) fn accept(&mut self) -> TcpStream {
        let (stream, _) = self.0.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream
    }
}

/// The server, and its address.
struct Own(Upstream, String);

impl Handler for Own {
    fn urgent(&self, _: &str, path: &str) -> bool {
        matches!(path, "/own" | "/block-all")
    }

    async fn handle(&self, request: Request) -> Response {
        match request.uri().path() {
            "/own" => json_response(200, "mine"),
            "/block" | "/block-all" => {
                let address = self.1.strip_prefix("http://").expect("a URL");
                let mut stream = TcpStream::connect(address).expect("the test listens");
                let blocked = stream.read(&mut [0]).expect("a byte");
                json_response(200, blocked.to_string())
            }
            "/pieces" => json_response(200, largest_piece(request).await.to_string()),
            _ => self.0.forward(request).await,
        }
    }
}

/// Bytes of the largest piece in which the body of a request arrives.
async fn largest_piece(request: Request) -> usize {
    let (mut body, mut most) = (request.into_body(), 0);
    while let Some(frame) = body.frame().await {
        let piece = frame.expect("all of the body");
        most = most.max(piece.data_ref().map_or(0, |data| data.len()));
    }
    most
}

pub(crate) struct Proxied {
    address: std::net::SocketAddr,
    tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Proxied {
    pub(crate) fn start(upstream: &str) -> Self {
        Self::at("127.0.0.1", upstream)
    }

    /// Listens at this address.
    pub(crate) fn at(host: &str, upstream: &str) -> Self {
        Self::within(Limits::default(), host, upstream)
    }

    /// With these limits for clients.
    pub(crate) fn within(limits: Limits, host: &str, upstream: &str) -> Self {
        let tally = Arc::<Tally>::default();
        let counted = Arc::clone(&tally);
        let server = Upstream::new(upstream).expect("an address");
        let service = Own(server, upstream.to_owned());
        let listener = TcpListener::bind((host, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let running = std::thread::spawn(move || {
            let others = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            let own = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            own.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let stopped = async {
                    let _ = stopped.await;
                };
                let hosts = AllowedHosts::default();
                let threads = others.handle().clone();
                serve(listener, service, hosts, limits, tally, threads, stopped).await;
            });
        });
        Self {
            address,
            tally: counted,
            stop,
            running,
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.tally.counts()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream =
            TcpStream::connect(("127.0.0.1", self.address.port())).expect("the proxy listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream
    }

    pub(crate) fn stop(self) -> JoinHandle<()> {
        self.stop.send(()).expect("it runs");
        self.running
    }
}

/// A server, a proxy in front of it, and a connection to the proxy.
pub(crate) fn connected() -> (Fake, Proxied, TcpStream) {
    let fake = Fake::start();
    let proxy = Proxied::start(&fake.url());
    let client = proxy.connect();
    (fake, proxy, client)
}

pub(crate) fn get(client: &mut TcpStream, path: &str) {
    let asked = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(asked.as_bytes()).expect("sent");
}

/// Reads until it ends with `end`.
pub(crate) fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(end.as_bytes()) {
        match stream.read(&mut byte) {
            Ok(1) => text.push(byte[0]),
            other => panic!(
                "{other:?} before {end:?}: {}",
                String::from_utf8_lossy(&text)
            ),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

pub(crate) fn head(stream: &mut TcpStream) -> String {
    read_to(stream, "\r\n\r\n")
}
