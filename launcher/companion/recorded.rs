//! Recorded traffic: of a file, or the last requests of a running server.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_client::Control;
use contextpilot_private_folder::{Base, PrivateFolder};
use contextpilot_settings::TrafficFile;
use contextpilot_simulate::Setting;
use contextpilot_traffic::{DamageKind, MAGIC, Traffic, read};

use super::adviser::{Adviser, NoAdviser};
use super::connect::{ControlAt, hook_says};
use super::show::{count, counted};
use crate::say::say;
use crate::variables::of_process;

/// The bytes of a file, if it begins as a recording does, else its beginning: what is something else may have no end.
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    let magic = MAGIC.len() as u64;
    file.by_ref().take(magic).read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        let more = file.take(MOST_BYTES).read_to_end(&mut bytes)? as u64;
        if more == MOST_BYTES {
            let why = format!("it has more than {}", super::show::bytes(MOST_BYTES));
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
    }
    Ok(bytes)
}

/// The recording of one model of a llama-server in router mode.
pub(super) struct OfModel {
    /// As the file's name has it.
    pub(super) model: String,
    pub(super) path: PathBuf,
}

impl OfModel {
    /// The title of what is said about it.
    pub(super) fn title(&self) -> String {
        format!("Model {}, {}", self.model, self.path.display())
    }
}

/// The recordings of a router's models, each of which stands beside the file that the setting names, as `<file>.<model>`. None:
/// this is a file itself, or there is nothing of that name.
pub(super) fn of_router(path: &Path) -> Vec<OfModel> {
    let Some(named) = path.file_name().filter(|_| path.metadata().is_err()) else {
        return Vec::new();
    };
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let beside = folder.unwrap_or(Path::new(".")).read_dir();
    let mut all: Vec<OfModel> = beside
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| {
            let name = file.file_name();
            let model = name.to_str()?.strip_prefix(named.to_str()?)?;
            let model = model.strip_prefix('.')?.to_owned();
            let path = path.with_file_name(&name);
            (!TrafficFile::is_aside(&model) && is_recording(&path))
                .then_some(OfModel { model, path })
        })
        .collect();
    all.sort_by(|a, b| a.model.cmp(&b.model));
    all
}

/// The same, each with its traffic. One without requests is left out, and a line says why.
pub(super) fn open_all(models: &[OfModel]) -> Result<Vec<(&OfModel, Traffic, Setting)>, String> {
    let mut all = Vec::new();
    let mut why = String::new();
    for model in models {
        match open(&model.path) {
            Ok((traffic, recorded)) => all.push((model, traffic, recorded)),
            Err(error) if models.len() == 1 => return Err(error),
            Err(error) => {
                say(&error);
                why = error;
            }
        }
    }
    if all.is_empty() { Err(why) } else { Ok(all) }
}

/// Whether a file begins as a recording does.
pub(super) fn is_recording(path: &Path) -> bool {
    let mut begin = [0; MAGIC.len()];
    // What is no file may not come again once it was read.
    let file = Some(path).filter(|path| path.is_file());
    let read = file.and_then(|path| File::open(path).ok()?.read_exact(&mut begin).ok());
    read.is_some() && begin == *MAGIC
}

/// A file that is larger is no recording: at 64 MiB it ends, if nothing else is set.
const MOST_BYTES: u64 = 16 << 30;

/// Reads a recording. Prints a message if it is damaged.
pub(super) fn open(path: &Path) -> Result<(Traffic, Setting), String> {
    let shown = path.display();
    let bytes =
        bytes_of(path).map_err(|e| format!("{shown} cannot be read ({e}): check the path"))?;
    let traffic = read(&bytes);
    let good = traffic.requests.len();
    match (&traffic.damage, good) {
        (Some(_), 0) if bytes.is_empty() => return Err(format!("{shown} is empty")),
        (Some(damage), 0) if damage.kind == DamageKind::NotARecording => {
            return Err(format!("{shown}: {damage}"));
        }
        (Some(damage), 0) => return Err(format!("{shown}: {damage}, before its first request")),
        (Some(damage), 1) => say(format!("{shown}: {damage}; the request before it is good")),
        (Some(damage), _) => say(format!(
            "{shown}: {damage}; the {good} requests before it are good"
        )),
        (None, 0) => {
            return Err(format!(
                "{shown} has no requests yet: each is recorded when its slot is used again, or the \
                 server ends"
            ));
        }
        (None, _) => {}
    }
    let recorded =
        Setting::recorded(&traffic).ok_or(format!("{shown} does not say what server it is of"))?;
    Ok((traffic, recorded))
}

/// The last requests of a running server, and where the others are. See [`of_running`].
pub(super) fn of_server(control: &ControlAt) -> Result<(Traffic, Setting), String> {
    let client = control.client_or(ended)?;
    let (traffic, recorded) = of_running(&client)?;
    if let Some(recording) = recording(&client)? {
        say(format_args!(
            "Of {}: name {} to have all that was recorded",
            match traffic.requests.len() {
                1 => "the last request".to_owned(),
                many => format!("the last {}", counted(many as u64, "request")),
            },
            recording.display()
        ));
    }
    Ok((traffic, recorded))
}

/// The recording that `agent` or `up` made last in the state folder, for who asks when the server has ended; empty: there
/// is none with requests.
pub(super) fn ended() -> String {
    let folder = PrivateFolder::look_for(Base::State, of_process);
    let files = folder.ok().and_then(|folder| folder.read_dir().ok());
    let mut all: Vec<_> = files
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "traffic"))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .collect();
    all.sort_unstable();
    let last = all.into_iter().rev().find(|(_, path)| has_requests(path));
    last.map_or_else(String::new, |(_, path)| {
        let path = path.display();
        format!(", or name the recording of one that has ended: {path}")
    })
}

/// The last requests, which `why`, `top` and `report` replay, too, so that all say the same. If the server keeps none, what it
/// is recording.
pub(super) fn of_running(control: &Control) -> Result<(Traffic, Setting), String> {
    let (why, answered) = match await_requests(control)? {
        Ok(adviser) => return Ok((adviser.traffic, adviser.recorded)),
        Err(none) => none,
    };
    let recording = recording(control)?;
    match (recording, why) {
        // A file has no more than these, but for one that was too large for the memory of them.
        (Some(file), _) if has_requests(&file) => open(&file),
        (_, NoAdviser::NoRequest) if answered > 0 => Err(format!(
            "{} evaluated, and not kept yet: ask again in some seconds",
            match answered {
                1 => "1 prompt was".to_owned(),
                many => format!("{} prompts were", count(many)),
            }
        )),
        (_, NoAdviser::NoRequest) => Err(
            "No prompt was evaluated yet: ask again when the server has answered one".to_owned(),
        ),
        (Some(file), _) => open(&file),
        (None, _) => Err(format!(
            "{why}: start the server with CONTEXTPILOT_TRAFFIC_FILE=traffic, or name a recording"
        )),
    }
}

/// The last requests. One is kept when it is certain that nothing of it follows, which of some (embeddings) is known only when the
/// server has been silent for a while. `Err`: why there are none, and how many prompts have been evaluated.
fn await_requests(control: &Control) -> Result<Result<Adviser, (NoAdviser, u64)>, String> {
    let begun = Instant::now();
    loop {
        let why = match Adviser::of_server(control) {
            Ok(adviser) => return Ok(Ok(adviser)),
            Err(why) => why,
        };
        let answered = match why {
            NoAdviser::NoRequest => {
                let stats = control.stats().map_err(|e| hook_says(control, &e))?;
                stats.reuse.total.prompts
            }
            NoAdviser::NotKept | NoAdviser::NoFlags => 0,
        };
        if answered == 0 || begun.elapsed() >= KEPT_WITHIN {
            return Ok(Err((why, answered)));
        }
        thread::sleep(PAUSE);
    }
}

/// How long the hook takes at most to keep what was answered, on a machine that is not too busy.
const KEPT_WITHIN: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(100);

fn has_requests(path: &Path) -> bool {
    bytes_of(path).is_ok_and(|bytes| !read(&bytes).requests.is_empty())
}

/// The file that a running server is recording to.
pub(super) fn under_way(control: &ControlAt) -> Result<PathBuf, String> {
    let control = control.client()?;
    recording(&control)?.ok_or_else(|| {
        format!(
            "The server at {} records no traffic: start it with CONTEXTPILOT_TRAFFIC_FILE=traffic, \
             or say what it has evaluated again and why with contextpilot-llama why --last 20",
            control.address()
        )
    })
}

/// The same; `None`: it records nothing.
fn recording(control: &Control) -> Result<Option<PathBuf>, String> {
    let stats = control.stats().map_err(|e| hook_says(control, &e))?;
    Ok(stats.recording.map(|recording| {
        if let Some(why) = recording.ended {
            say(format!(
                "The recording has ended ({why}): the advice is for what came before"
            ));
        }
        recording.file.into()
    }))
}
