//! The same through a bucket of a server that speaks S3.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use contextpilot_testbed::{Certificate, KillOnDrop, or_return, script};

use super::*;

/// What that server lets in.
const KEY: &str = "S3RVER";
const BUCKET: &str = "tea-and-sea";

/// A server of the test's own, with one bucket.
struct Bucket {
    _process: KillOnDrop,
    data: TempDir,
    endpoint: String,
}

impl Bucket {
    /// `None`: there is none on this machine.
    fn start() -> Option<Self> {
        let program = program()?;
        Some(Self::start_at(&program, free_port(), None))
    }

    fn start_at(program: &Path, at: SocketAddr, certificate: Option<&Certificate>) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg("-d").arg(data.path()).args(["-a", "127.0.0.1"]);
        command.args(["-p", &at.port().to_string(), "--silent"]);
        command.args(["--configure-bucket", BUCKET]);
        let mut scheme = "http";
        if let Some(certificate) = certificate {
            command.arg("--key").arg(certificate.key_file());
            command.arg("--cert").arg(certificate.file());
            scheme = "https";
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let bucket = Self {
            _process: KillOnDrop(command.spawn().unwrap()),
            data,
            endpoint: format!("{scheme}://{at}"),
        };
        until("the S3 server answers", || TcpStream::connect(at).ok());
        bucket
    }

    /// What a server, or `store sync`, needs to know.
    fn variables(&self) -> Vec<(&'static str, String)> {
        variables(&self.endpoint)
    }

    /// The files of its chunks.
    fn chunks(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.data.path().join(BUCKET)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name().into_string().unwrap();
                match name.strip_suffix("._S3rver_object") {
                    _ if path.is_dir() => folders.push(path),
                    Some(name) if name != "news" => found.push(path),
                    _ => {}
                }
            }
        }
        found
    }
}

fn program() -> Option<PathBuf> {
    script("s3-server", &[])
        .inspect_err(|why| skip(why.why_skipped()))
        .ok()
        .map(PathBuf::from)
}

fn url() -> String {
    format!("s3://{BUCKET}/machines/of-ours")
}

fn variables(endpoint: &str) -> Vec<(&'static str, String)> {
    vec![
        ("CONTEXTPILOT_STORE_REMOTE", url()),
        ("AWS_ENDPOINT_URL", endpoint.to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
    ]
}

fn shared(bucket: &Bucket) -> Builder {
    let variables = bucket.variables().into_iter();
    variables.fold(one_slot(), |builder, (name, value)| {
        builder.env(name, value)
    })
}

/// `store sync --once --json` with these variables.
fn sync(folder: &Path, variables: &[(&'static str, String)]) -> Output {
    let mut command = companion_command(folder, &["sync", "--once", "--json"]);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    // Nothing listens there: for this machine no proxy is asked.
    command.env("HTTPS_PROXY", "http://127.0.0.1:1");
    command.output().unwrap()
}

fn once(folder: &Path, bucket: &Bucket) -> Value {
    good(&sync(folder, &bucket.variables()))
}

/// A server evaluates this prompt and ends.
fn evaluated(folder: &Path, prompt: &[u32]) {
    let mut stored = Stored::start(&one_slot(), folder);
    stored.ask(prompt);
    stored.server.stop(SIGTERM).unwrap();
}

#[test]
fn a_server_loads_what_another_machine_has_sent_to_a_bucket() {
    let bucket = or_return!(Bucket::start());
    let (here, there) = (folder(), folder());
    let mut one = Stored::start(&shared(&bucket), here.path());
    let mut other = Stored::start(&shared(&bucket), there.path());
    let plain = started(&one_slot());
    let (tea, sea) = (tokens(150, 700), tokens(151, 500));
    one.ask(&tea);
    one.await_written();
    until("the other one has all", || {
        has_all_of(&other, &there, &here)
    });
    let (_, account) = other.compare(&plain, &tea);
    assert_eq!(account.from.store, 699, "{account:?}");

    // The conversation goes on there, and comes back.
    let mut longer = tea.clone();
    longer.extend(tokens(153, 300));
    other.ask(&longer);
    other.ask(&sea);
    // What is only in the slot is stored when the server ends, and sent after that.
    other.server.stop(SIGTERM).unwrap();
    until("the first one has all", || has_all_of(&one, &here, &there));
    // Its slot still has the beginning.
    for (prompt, in_slot, loaded) in [(&longer, 700, 299), (&sea, 0, 499)] {
        let (_, account) = one.compare(&plain, prompt);
        let from = account.from;
        assert_eq!((from.slot, from.store), (in_slot, loaded), "{account:?}");
    }

    // A new machine gets all that was sent before it came, by a list and not by news.
    let elsewhere = folder();
    evaluated(elsewhere.path(), &tokens(154, 40));
    let moved = once(elsewhere.path(), &bucket);
    assert!(moved["fetched"].as_u64().unwrap() >= chunk_files(there.path()).len() as u64);
    let moved = once(elsewhere.path(), &bucket);
    assert_eq!((&moved["sent"], &moved["fetched"]), (&0.into(), &0.into()));
}

#[test]
fn what_is_damaged_in_a_bucket_is_not_taken() {
    let bucket = or_return!(Bucket::start());
    let (here, there) = (folder(), folder());
    evaluated(here.path(), &tokens(155, 400));
    evaluated(there.path(), &tokens(156, 40));
    let sent = once(here.path(), &bucket);
    let own = chunk_files(here.path()).len();
    assert_eq!(sent["sent"], own, "{sent}");
    let chunks = bucket.chunks();
    assert_eq!(chunks.len(), own);
    let damaged = &chunks[0];
    let mut bytes = fs::read(damaged).unwrap();
    bytes[3000] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let moved = once(there.path(), &bucket);
    assert_eq!(moved["damaged"], 1, "{moved}");
    assert!(!damaged.exists());
    // A folder that has it sends it again.
    assert_eq!(once(here.path(), &bucket)["sent"], 1);
    // With what continues it, if that was looked at first.
    let fetched = once(there.path(), &bucket)["fetched"].as_u64().unwrap();
    let before = moved["fetched"].as_u64().unwrap();
    assert_eq!(before + fetched, own as u64, "{moved}");
    let moved = once(there.path(), &bucket);
    assert_eq!(
        (&moved["fetched"], &moved["damaged"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn a_bucket_that_refuses_is_told_from_one_that_is_gone() {
    let bucket = or_return!(Bucket::start());
    let folder = folder();
    evaluated(folder.path(), &tokens(157, 40));
    let gone = format!("http://{}", free_port());
    for (name, value, said) in [
        ("AWS_ACCESS_KEY_ID", "nobody", "403, InvalidAccessKeyId"),
        (
            "CONTEXTPILOT_STORE_REMOTE",
            "s3://no-such-tea",
            "404, NoSuchBucket",
        ),
        ("AWS_ENDPOINT_URL", &gone, "Connection refused"),
        ("AWS_ENDPOINT_URL", "host", "AWS_ENDPOINT_URL is no address"),
        ("AWS_SECRET_ACCESS_KEY", "", "set AWS_ACCESS_KEY_ID and"),
    ] {
        let mut variables = bucket.variables();
        let one = variables.iter_mut().find(|(known, _)| *known == name);
        one.unwrap().1 = value.to_owned();
        let line = refused(&sync(folder.path(), &variables));
        assert!(line.contains(said), "{line}");
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let (grade, text) = doctor(folder.path(), &variables, "store remote");
        assert_eq!(grade, "limit");
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(bucket.chunks().len(), 0);
}

#[test]
fn over_tls_only_a_bucket_is_asked_whose_certificate_is_trusted() {
    let program = or_return!(program());
    let (certificate, stranger) = (Certificate::new().unwrap(), Certificate::new().unwrap());
    let bucket = Bucket::start_at(&program, free_port(), Some(&certificate));
    let folder = folder();
    evaluated(folder.path(), &tokens(158, 40));
    let with = |trusted: &Certificate| {
        let mut variables = bucket.variables();
        let file = trusted.file().into_os_string().into_string().unwrap();
        variables.push(("SSL_CERT_FILE", file));
        sync(folder.path(), &variables)
    };
    let line = refused(&with(&stranger));
    assert!(
        line.contains("name its PEM file in SSL_CERT_FILE"),
        "{line}"
    );
    assert_eq!(bucket.chunks().len(), 0);
    let moved = good(&with(&certificate));
    assert!(moved["sent"].as_u64().unwrap() > 0, "{moved}");
    assert_eq!(moved["sent"], bucket.chunks().len());
}

#[test]
fn a_bucket_that_is_gone_costs_a_line_and_gets_all_later() {
    let program = or_return!(program());
    let at = free_port();
    let bucket = Bucket::start_at(&program, at, None);
    let folder = folder();
    let mut stored = Stored::start(&shared(&bucket), folder.path());
    let plain = started(&one_slot());
    stored.compare(&plain, &tokens(159, 700));
    drop(bucket);
    let lines = |stored: &Stored| {
        let said = stored.server.stderr();
        let lines = said.lines();
        lines
            .filter(|line| line.contains("is not kept alike"))
            .count()
    };
    until("it is said that it is gone", || {
        (lines(&stored) > 0).then_some(())
    });
    let (_, account) = stored.compare(&plain, &tokens(160, 700));
    assert_eq!(account.from.store, 0, "{account:?}");
    // Soon, as it is asked again later and later. Another server at the same address, with an empty bucket.
    let bucket = Bucket::start_at(&program, at, None);
    until("it is said that it is there again", || {
        let said = stored.server.stderr();
        said.contains("is there again: ").then_some(())
    });
    let own = || chunk_files(folder.path()).len();
    until("all is sent", || {
        (own() > 0 && bucket.chunks().len() == own()).then_some(())
    });
    // A connection that was open may be cut before none can be made: no other line.
    assert!(lines(&stored) <= 2, "{}", stored.server.stderr());
    let (_, account) = stored.compare(&plain, &tokens(159, 700));
    assert_eq!(account.from.store, 699, "{account:?}");
}
