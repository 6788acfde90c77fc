//! The file of a recording: its permissions, what is left after a kill, and its size limit.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use contextpilot_testbed::{Arch, Builder, Error, Model, Request, Result, Server};
use contextpilot_traffic::{Traffic, read};

use crate::prompts::text;
use crate::recorded::{LAUNCHER, SIGTERM};

const SIGKILL: i32 = 9;

pub(super) fn run() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("traffic");
    let server = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(1)
        .args(["-c", "1024"])
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_TRAFFIC_FILE", &path);

    let first = record(&server, &path, SIGTERM)?;
    expect(
        "all of it is there",
        first.requests.len() == 3 && first.damage.is_none(),
    )?;
    expect("the key is not", first.key.is_none())?;
    let mode = fs::metadata(&path)?.mode() & 0o777;
    expect("it is closed to others", mode == 0o600)?;

    let key = server.clone().env("CONTEXTPILOT_TRAFFIC_KEEP_KEY", "1");
    let killed = record(&key, &path, SIGKILL)?;
    expect("what a kill leaves is read", killed.requests.len() >= 2)?;
    expect("the key was asked for", killed.key.is_some())?;
    let aside = read(&fs::read(folder.path().join("traffic.1"))?);
    expect("the one before is set aside", aside.requests.len() == 3)?;

    // The folder does not exist, so nothing is recorded. The server works.
    let nowhere = server.env(
        "CONTEXTPILOT_TRAFFIC_FILE",
        folder.path().join("no/traffic"),
    );
    let mut nowhere = nowhere.spawn()?;
    nowhere.complete(&Request::completion(text(1, 60)))?;
    let said = nowhere.stderr();
    expect(
        "it is said",
        said.contains("CONTEXTPILOT_TRAFFIC_FILE is ") && said.contains("which cannot be written"),
    )?;
    nowhere.stop(SIGTERM)?;
    Ok("0600, killed, set aside, impossible".to_owned())
}

fn record(server: &Builder, path: &Path, signal: i32) -> Result<Traffic> {
    let mut server = server.spawn()?;
    for seed in 0..3 {
        server.complete(&Request::completion(text(seed, 60)))?;
    }
    server.stop(signal)?;
    Ok(read(&fs::read(path)?))
}

fn expect(what: &str, holds: bool) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::new(format!("not so: {what}")))
    }
}
