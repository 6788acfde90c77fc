//! What makes two starts of llama-server the same instance.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

#[cfg(test)]
mod tests;

/// Names one llama-server, the same at each of its starts: a digest of
///
/// - **the index** that it reports to: ids mean nothing to another one;
/// - **the machine**, for home folders that several machines share;
/// - **the addresses** it listens on (`--host`, `--port`): no two servers of a
///   machine can have the same. For a child of llama-server's router mode, whose
///   port is another one each time, the router's port and the model's name
///   instead.
///
/// The model and all other flags are *not* part of it: whatever model comes up
/// at an address next, what was cached there is gone and the index must hear it.
///
/// Two servers may still come out as the same: `--port 0`, `--reuse-port`,
/// containers with a network each and one home. They are kept apart by the
/// lock on the journal, see [`Journal::open`](crate::Journal::open).
///
/// Not seen are addresses given in llama.cpp's own `config.ini` (newer servers
/// read one): servers that differ in nothing else, and so read the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([u8; Identity::LENGTH]);

/// The surroundings of a start, as far as [`Identity::of`] asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The machine's name for itself, the same after a reboot; empty if it has
    /// none (many containers).
    pub machine: Vec<u8>,
    /// What relative socket paths are relative to.
    pub folder: PathBuf,
}

impl Place {
    /// Reads `/etc/machine-id` and the working directory. Not the host name:
    /// that changes when a container is made anew, and its volumes stay.
    pub fn here() -> Self {
        Self {
            machine: machine_id().unwrap_or_default(),
            folder: std::env::current_dir().unwrap_or_default(),
        }
    }
}

fn machine_id() -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut id = Vec::new();
    std::fs::File::open("/etc/machine-id")?
        .take(64)
        .read_to_end(&mut id)?;
    Ok(id.trim_ascii().to_vec())
}

/// llama-server's own, when nothing is said.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: i64 = 8080;

/// Set by a router in the environment of its children.
const ROUTER_PORT: &str = "LLAMA_SERVER_ROUTER_PORT";

impl Identity {
    /// Of an identity in a file, bytes.
    pub(crate) const LENGTH: usize = 16;

    /// `index`: the index's URL in the form that may be shown, without a
    /// password, normalised. `argv`: the server's, its own name first. `env`:
    /// looks environment variables up.
    ///
    /// Flags are read as llama-server's `common_params_parse_ex` does: a flag
    /// and its value are two arguments (there is no `--port=8080`), `_` stands
    /// for `-` in names with two dashes, the last of several wins, the command
    /// line goes before the environment, and a port ends where its digits end
    /// (`std::stoi`). Only the flags asked for here are known, so a *value* that
    /// reads `--port` is taken for the flag if a number follows it.
    pub fn of(
        index: &str,
        argv: impl IntoIterator<Item = OsString>,
        env: impl Fn(&str) -> Option<OsString>,
        place: &Place,
    ) -> Self {
        let flags = Flags::of(argv, &env);
        let mut digest = Digest::new();
        digest.field("index", index.as_bytes());
        digest.field("machine", &place.machine);
        if let Some(router) = env(ROUTER_PORT) {
            digest.field("router", router.as_bytes());
            digest.field("model", flags.model.unwrap_or_default().as_bytes());
        } else {
            for address in flags.addresses(place) {
                digest.field("address", &address);
            }
        }
        Self(digest.0.to_be_bytes())
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

/// What a server's model is called: by its alias, else by what it loads; empty if neither is told. And
/// whether a llama-server in router mode has started it, and others beside it. Flags are read as in
/// [`Identity::of`].
pub fn model_name(
    argv: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<OsString>,
) -> (String, bool) {
    let name = Flags::of(argv, &env).model.unwrap_or_default();
    let routed = env(ROUTER_PORT).is_some();
    (name.to_string_lossy().into_owned(), routed)
}

#[derive(Default)]
struct Flags {
    host: Option<OsString>,
    port: Option<i64>,
    /// The name that a router gives its child, else what the child loads.
    model: Option<OsString>,
}

impl Flags {
    fn of(
        argv: impl IntoIterator<Item = OsString>,
        env: &impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let mut host = env("LLAMA_ARG_HOST");
        let mut port = env("LLAMA_ARG_PORT").and_then(|value| leading_number(&value));
        let mut alias = env("LLAMA_ARG_ALIAS");
        let mut model = env("LLAMA_ARG_MODEL");
        let mut repository = env("LLAMA_ARG_HF_REPO");
        let mut argv = argv.into_iter().skip(1).peekable();
        while let Some(argument) = argv.next() {
            // The value stays in line until it is known to be one.
            let Some(value) = argv.peek() else { break };
            match name_of(&argument).as_slice() {
                b"--port" => match leading_number(value) {
                    Some(number) => port = Some(number),
                    None => continue,
                },
                b"--host" => host = Some(value.clone()),
                b"-a" | b"--alias" => alias = Some(value.clone()),
                b"-m" | b"--model" => model = Some(value.clone()),
                b"-hf" | b"-hfr" | b"--hf-repo" => repository = Some(value.clone()),
                _ => continue,
            }
            argv.next();
        }
        Self {
            host,
            port,
            model: alias.or(model).or(repository),
        }
    }

    /// One for each address, in order; the order is not ours to judge, as
    /// overlapping addresses do not mean the same in another one.
    fn addresses(&self, place: &Place) -> Vec<Vec<u8>> {
        let default = OsString::from(DEFAULT_HOST);
        let host = self.host.as_ref().unwrap_or(&default);
        let port = self.port.unwrap_or(DEFAULT_PORT);
        host.as_bytes()
            .split(|&byte| byte == b',')
            .map(<[u8]>::trim_ascii)
            .filter(|address| !address.is_empty())
            .map(|address| {
                if address.ends_with(b".sock") {
                    // An absolute path stays what it is.
                    let socket = place.folder.join(OsStr::from_bytes(address));
                    socket.into_os_string().as_bytes().to_vec()
                } else {
                    let mut address = address.to_ascii_lowercase();
                    address.extend(format!(" {port}").bytes());
                    address
                }
            })
            .collect()
    }
}

fn name_of(argument: &OsStr) -> Vec<u8> {
    let mut name = argument.as_bytes().to_vec();
    if name.starts_with(b"--") {
        for byte in &mut name {
            if *byte == b'_' {
                *byte = b'-';
            }
        }
    }
    name
}

/// What `std::stoi` makes of `text`: white space, a sign, digits, and whatever.
fn leading_number(text: &OsStr) -> Option<i64> {
    let text = text.as_bytes();
    let start = text
        .iter()
        .position(|&b| !(b.is_ascii_whitespace() || b == 0x0b))?;
    let (negative, digits) = match text[start..].split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, &text[start..]),
    };
    let length = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let number: i64 = std::str::from_utf8(&digits[..length]).ok()?.parse().ok()?;
    // Beyond an `int` it throws, and the server does not start.
    i32::try_from(if negative { -number } else { number })
        .ok()
        .map(i64::from)
}

/// FNV-1a, 128 bits: wide enough that no two servers of a person meet by chance.
/// It need not withstand anybody: what goes in is the command line of the one
/// user who can write to the folder.
pub(crate) struct Digest(pub(crate) u128);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Names and lengths go in too, so that no two lists of fields are one text.
    fn field(&mut self, name: &str, value: &[u8]) {
        self.write(name.as_bytes());
        self.write(&(value.len() as u64).to_be_bytes());
        self.write(value);
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 ^= u128::from(byte);
            self.0 = self.0.wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }
}
