//! The page for a browser that cannot reach the control endpoint itself: served on a loopback port, its queries
//! passed on. Every user of this machine can connect to that port, so each query must carry a token.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_http_server::{
    Body, Follow, Limits, Listener, Pool, Request, Response, accept_for_ever, serve,
};
use contextpilot_settings::BrowserHeaders;
use tempfile::NamedTempFile;

use crate::companion::{advise, listen};
use crate::say::say;

const LIMITS: Limits = Limits {
    body: 0,
    patience: Duration::from_secs(30),
    whole_request: Duration::from_secs(30),
    connections: 32,
};

/// For connections beyond the first half: those that ask nothing are closed soon.
const CROWDED: Limits = Limits {
    patience: Duration::from_secs(1),
    whole_request: Duration::from_secs(2),
    ..LIMITS
};

/// What the page asks for. Nothing here changes anything.
const QUERIES: [&str; 3] = ["/stats", "/tree", "/requests/"];

pub(super) struct Bridge {
    listener: Listener,
    url: String,
    answers: Arc<Answers>,
}

struct Answers {
    control: Control,
    token: String,
}

impl Bridge {
    pub(super) fn listen(control: Control, port: u16) -> Result<Self, String> {
        let (listener, address) = listen::bind("127.0.0.1", port, "--port")?;
        let token = random()?;
        Ok(Self {
            listener: Listener::Tcp(listener),
            url: format!("http://{address}/#token={token}"),
            answers: Arc::new(Answers { control, token }),
        })
    }

    /// The address of the page, with the token.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// A file that leads a browser to the page. It is removed when it is dropped.
    pub(super) fn ticket(&self) -> Result<NamedTempFile, String> {
        let why = |e: std::io::Error| {
            format!("no file can be written for the browser ({e}): use --no-browser")
        };
        // With mode 0600.
        let file = tempfile::Builder::new()
            .prefix("contextpilot-llama-")
            .suffix(".html")
            .tempfile();
        let mut file = file.map_err(why)?;
        let page = format!(
            "<!doctype html><meta charset=\"utf-8\"><title>KV cache</title>\
             <meta http-equiv=\"refresh\" content=\"0; url={0}\"><a href=\"{0}\">the page</a>\n",
            self.url
        );
        file.write_all(page.as_bytes()).map_err(why)?;
        Ok(file)
    }

    /// Serves for ever.
    pub(super) fn serve(self) -> Result<(), String> {
        let answers = self.answers;
        accept_for_ever(
            &self.listener,
            Pool::new(LIMITS.connections),
            || refuse(503, "too many connections: close one, or try again later"),
            |problem| say(problem),
            move |stream, open| {
                let is_crowded = open > LIMITS.connections / 2;
                let limits = if is_crowded { CROWDED } else { LIMITS };
                // The browser reports a broken connection.
                let _ = serve(stream, &limits, |request| answers.answer(request), refuse);
            },
        )
    }
}

impl Answers {
    fn answer(&self, request: &Request) -> Response {
        let browser = BrowserHeaders::of(|name| request.header(name).collect());
        if !browser.names_this_machine() {
            return refuse(
                421,
                "the Host is not this machine's: use 127.0.0.1 or localhost",
            );
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return refuse(405, "use GET here").with("Allow", "GET");
        }
        if request.path() == "/" {
            // It has no data in it.
            let page = contextpilot_page::answer(request);
            return page
                .unwrap_or_else(|| refuse(406, "a browser that reads HTML gets a page here"));
        }
        if browser.from_another_page() {
            return refuse(403, "other web pages are not answered");
        }
        if !request.bears(&self.token) {
            return refuse(
                401,
                "send the token of the address that contextpilot-llama open printed",
            );
        }
        match request.path() {
            "/events" => self.events(request),
            "/advice" => self.advice(),
            path if QUERIES.iter().any(|query| path.starts_with(query)) => self.pass_on(request),
            _ => refuse(404, "nothing here"),
        }
    }

    fn pass_on(&self, request: &Request) -> Response {
        match self.control.raw(&request.target) {
            Ok((status, text)) => no_store(Response::json(status, text)),
            Err(error) => refuse(503, &format!("the server's endpoint: {error}")),
        }
    }

    fn events(&self, request: &Request) -> Response {
        let last = request.header("Last-Event-ID").next();
        let last = last.and_then(|last| std::str::from_utf8(last).ok());
        match self.control.raw_events(last) {
            Ok(stream) => no_store(Response {
                body: Body::Endless(Box::new(Passed(stream))),
                ..Response::whole(200, "text/event-stream", Vec::new())
            }),
            Err(error) => refuse(503, &format!("the server's endpoint: {error}")),
        }
    }

    /// What the simulator says of the server's last requests or, if it keeps none, of the recording that it is making.
    fn advice(&self) -> Response {
        match advise::json_of(&self.control) {
            Ok(json) => no_store(Response::json(200, json)),
            Err(why) => refuse(404, &why),
        }
    }
}

/// Events as they arrive. The endpoint sends something every five seconds.
struct Passed(Box<dyn Read + Send>);

impl Follow for Passed {
    fn next(&mut self, _longest: Duration) -> Option<Vec<u8>> {
        let mut piece = vec![0; 16 << 10];
        let read = self.0.read(&mut piece).ok().filter(|&read| read > 0)?;
        piece.truncate(read);
        Some(piece)
    }
}

fn refuse(status: u16, why: &str) -> Response {
    let body = serde_json::json!({ "error": why });
    no_store(Response::json(status, body.to_string()))
}

fn no_store(response: Response) -> Response {
    response
        .with("Cache-Control", "no-store")
        .with("X-Content-Type-Options", "nosniff")
}

/// 128 random bits.
fn random() -> Result<String, String> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| format!("/dev/urandom cannot be read ({e}): without it there is no token"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
