//! Draws the panels of the Grafana dashboard from a real run: two llama-servers
//! under the launcher with a load, which publish KV cache events, the second with a prefix store, scraped by a real
//! Prometheus, which also computes the panels' queries. Grafana itself takes no part.
//!
//! Run it by `scripts/panels`.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use contextpilot_testbed::{
    Arch, Connection, Index, Model, Random, Request, Server, Spec, try_until,
};
use contextpilot_zmtp::encode;
use peer::Peer;
use serde_json::Value;

mod draw;
#[allow(dead_code, reason = "the tests that it is made for use the rest")]
#[path = "../../crates/fleet/zmtp/tests/support/mod.rs"]
mod peer;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds for a `rate`: what Grafana would choose, four scrapes.
const RATE: &str = "8s";

/// A panel: its place on a grid of 24 columns, and a line for each series.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) is_number: bool,
    pub(crate) place: [u32; 4],
    pub(crate) series: Vec<Series>,
}

pub(crate) struct Series {
    pub(crate) name: String,
    /// Seconds since the beginning, and the value.
    pub(crate) points: Vec<(f64, f64)>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A program for people, and its one error message.
            eprintln!("[ContextPilot] The panels were not drawn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [prometheus, launcher, dashboard, out, seconds] = &arguments[..] else {
        return Err("run scripts/panels".into());
    };
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(dashboard)?)?;
    let index = Index::start()?;
    let spec = Spec {
        layers: 4,
        width: 256,
        ..Spec::new(Arch::Llama)
    };
    let folder = tempfile::tempdir()?;
    let server = |has_store| {
        let builder = Server::builder()
            .model(&Model::of(&spec))
            .args(["--parallel", "3", "--ctx-size", "6144", "--no-kv-unified"])
            .args(["--cache-ram", "12"])
            .launcher(launcher)
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .env("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0")
            .index_url(index.url());
        if has_store {
            builder.env("CONTEXTPILOT_STORE", folder.path().join("store"))
        } else {
            builder
        }
        .spawn()
    };
    // The first one has to evaluate again what it has lost.
    let servers = [server(false)?, server(true)?];
    let controls = [endpoint(&servers[0])?, endpoint(&servers[1])?];
    // A router follows the first one.
    let router = follow(&servers[0])?;
    let prometheus = Prometheus::start(prometheus.as_ref(), folder.path(), &controls)?;
    let span: f64 = seconds.parse()?;
    load(&servers, Duration::from_secs_f64(span))?;
    let end = prometheus.now()?;
    router.shutdown(std::net::Shutdown::Both)?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let panels = panels
        .iter()
        .map(|panel| prometheus.panel(panel, end - span, end))
        .collect::<Result<Vec<Panel>>>()?;
    let empty = panels.iter().filter(|panel| panel.series.is_empty());
    for panel in empty {
        eprintln!("{}: no data", panel.title);
    }
    std::fs::write(out, draw::svg(&panels)?)?;
    Ok(())
}

fn endpoint(server: &Server) -> Result<String> {
    const SAYS: &str = "[ContextPilot] Control endpoint: http://";
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = server.stderr();
        if let Some(address) = log.lines().find_map(|line| line.strip_prefix(SAYS)) {
            return Ok(address.to_owned());
        }
        if Instant::now() > deadline {
            return Err("the hook does not say where it listens".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Follows a server's KV cache events as a router does, on a thread of its own, until the connection is shut down.
fn follow(server: &Server) -> Result<TcpStream> {
    let control = server.await_control()?;
    let address = try_until("the server publishes", || {
        let mut connection = Connection::open(control)?;
        let stats = connection.exchange("GET", "/stats", b"")?.json()?;
        let publish = stats["kv_events"]["publish"].as_str();
        let address = publish.and_then(|at| at.strip_prefix("tcp://")?.parse().ok());
        Ok(address)
    })?;
    let mut peer = Peer::ready(address, "SUB");
    peer.say(&encode(&[b"\x01"]));
    peer.stream.set_read_timeout(None)?;
    let mut reading = peer.stream.try_clone()?;
    std::thread::spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
    Ok(peer.stream)
}

/// Questions about a few documents, the first ones more often; two clients of each server.
fn load(servers: &[Server; 2], span: Duration) -> Result<()> {
    let deadline = Instant::now() + span;
    let client = |number: u64| -> std::result::Result<(), String> {
        let server = &servers[(number % 2) as usize];
        let mut source = Random(number + 1);
        let mut asked = 0;
        while Instant::now() < deadline {
            let random = source.draw();
            let document = (random >> 32) % 9 * ((random >> 20) % 9) / 8;
            let text = format!("Document {document}: ").repeat(40 + document as usize * 4);
            asked += 1;
            let request = Request::completion(format!("{text} Question {asked} of {number}?"));
            let id = format!("req-{number}-{asked}");
            let request = match asked % 6 {
                0 => request,
                _ => request.id(id),
            };
            server.complete(&request).map_err(|e| e.to_string())?;
            std::thread::sleep(Duration::from_millis(random >> 32 & 127));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let clients = [0, 1, 2, 3].map(|number| scope.spawn(move || client(number)));
        clients
            .into_iter()
            .try_for_each(|client| match client.join() {
                Ok(result) => result.map_err(Into::into),
                Err(_) => Err("a client panicked".into()),
            })
    })
}

/// A running Prometheus, ended with its value.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    fn start(program: &Path, folder: &Path, controls: &[String; 2]) -> Result<Self> {
        let config = folder.join("prometheus.yml");
        let [one, two] = [(&controls[0], "first"), (&controls[1], "second")]
            .map(|(at, name)| format!("{{targets: [\"{at}\"], labels: {{instance: {name}}}}}"));
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
             - {{job_name: llama, static_configs: [{one}, {two}]}}\n"
        );
        std::fs::write(&config, text)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let log = std::fs::File::create(folder.join("prometheus.log"))?;
        let flag = |name: &str, value: PathBuf| format!("--{name}={}", value.display());
        let child = Command::new(program)
            .arg(flag("config.file", config))
            .arg(flag("storage.tsdb.path", folder.join("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let prometheus = Self { child, port };
        let deadline = Instant::now() + PATIENCE;
        while prometheus.ask("query=up").is_err() {
            if Instant::now() > deadline {
                return Err("Prometheus does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(prometheus)
    }

    fn get(&self, path: &str) -> Result<Value> {
        let mut connection = Connection::open(([127, 0, 0, 1], self.port).into())?;
        let answer = connection.exchange("GET", path, b"")?.json()?;
        if answer["status"] == "success" {
            Ok(answer["data"]["result"].clone())
        } else {
            Err(format!("{path}: {answer}").into())
        }
    }

    fn ask(&self, what: &str) -> Result<Value> {
        self.get(&format!("/api/v1/query?{what}"))
    }

    fn now(&self) -> Result<f64> {
        let answer = self.ask("query=time()")?;
        answer[0].as_f64().ok_or_else(|| "no time".into())
    }

    fn panel(&self, panel: &Value, begin: f64, end: f64) -> Result<Panel> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut series = Vec::new();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = text(&target["expr"])
                .replace("$__rate_interval", RATE)
                .replace("$model", ".*")
                .replace("$instance", ".*");
            let path = format!(
                "/api/v1/query_range?start={begin}&end={end}&step=1&query={}",
                encoded(&query)
            );
            for result in self.get(&path)?.as_array().into_iter().flatten() {
                let values = result["values"].as_array().into_iter().flatten();
                let points: Vec<(f64, f64)> = values
                    .filter_map(|pair| {
                        let value: f64 = pair[1].as_str()?.parse().ok()?;
                        Some((pair[0].as_f64()? - begin, value)).filter(|_| value.is_finite())
                    })
                    .collect();
                if !points.is_empty() {
                    let name = legend(&text(&target["legendFormat"]), &result["metric"]);
                    series.push(Series { name, points });
                }
            }
        }
        let place = ["x", "y", "w", "h"]
            .map(|side| panel["gridPos"][side].as_u64().unwrap_or_default() as u32);
        Ok(Panel {
            title: text(&panel["title"]),
            unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
            is_number: panel["type"] == "stat",
            place,
            series,
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `slot {{slot}}` with the labels of a series.
fn legend(format: &str, labels: &Value) -> String {
    let mut text = format.to_owned();
    for (name, value) in labels.as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        text = text.replace(&format!("{{{{{name}}}}}"), value);
    }
    text
}

fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
