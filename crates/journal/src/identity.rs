//! What makes two starts of llama-server the same instance.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

#[cfg(test)]
mod tests;

/// Names one llama-server, the same at each of its starts: a digest of
///
/// - **the index** that it reports to: the ids mean nothing to another index;
/// - **the machine**, because several machines may share a home folder;
/// - **the addresses** it listens on (`--host`, `--port`): no two servers of a
///   machine can have the same. A child of llama-server's router mode has another
///   port at each start, so there it is the router's port and the model's name
///   instead.
///
/// Otherwise the model and all other flags are *not* part of it: whatever model is
/// started at an address next, what was cached there is gone and must be reported.
///
/// Two servers may still have the same identity: with `--port 0`, with `--reuse-port`,
/// or in containers that share a home but not a network. The lock on the journal keeps
/// them apart, see [`Journal::open`](crate::Journal::open).
///
/// An address in llama.cpp's own `config.ini` (newer servers read one) is not seen. So
/// servers whose addresses differ only there have the same identity, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([u8; Identity::LENGTH]);

/// Where a server is started, as far as [`Identity::of`] needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The machine's id, which stays the same after a reboot. Empty if it has none, as in
    /// many containers.
    pub machine: Vec<u8>,
    /// The folder that relative socket paths start from.
    pub folder: PathBuf,
}

impl Place {
    /// Reads `/etc/machine-id` and the working directory. It does not use the host name:
    /// that changes when a container is created again with the same volumes.
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

/// llama-server's own defaults.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: i64 = 8080;

/// Set by a router in the environment of its children.
const ROUTER_PORT: &str = "LLAMA_SERVER_ROUTER_PORT";

impl Identity {
    /// The length of an identity, in bytes.
    pub(crate) const LENGTH: usize = 16;

    /// `index`: the index's URL in the form that may be shown: normalised, without a
    /// password. `argv`: the server's arguments, its own name first. `env`: looks up
    /// environment variables.
    ///
    /// Flags are read as llama-server's `common_params_parse_ex` reads them. A flag
    /// and its value are two arguments (there is no `--port=8080`). `_` stands
    /// for `-` in names with two dashes. The last of several counts. The command
    /// line counts more than the environment. A port ends where its digits end
    /// (`std::stoi`). Other flags than these are not known here, so a *value* that
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

/// The name of a server's model: its alias, else the file or repository that it loads; empty if neither
/// is given. And whether the server is a child of llama-server's router mode. Flags are read as in
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
    /// The alias, which a router gives each child; else the file or repository that is loaded.
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
            // Only looked at: it may turn out to be a flag, and not a value.
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

    /// One entry for each address, in the order of the command line. The order is part of the
    /// identity, because overlapping addresses in another order can mean something else.
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

/// What `std::stoi` makes of `text`: it skips white space, reads a sign and digits, and ignores the rest.
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
    // Beyond an `int`, `std::stoi` throws and the server does not start.
    i32::try_from(if negative { -number } else { number })
        .ok()
        .map(i64::from)
}

/// FNV-1a with 128 bits: wide enough that no two servers of one user collide by chance.
/// It is not made to withstand an attacker, and need not be: only the user who can write
/// to the folder chooses what is hashed.
pub(crate) struct Digest(pub(crate) u128);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Hashes the field's name and length too, so that two different lists of fields are never
    /// the same bytes.
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
