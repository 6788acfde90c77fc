//! What makes two starts of llama-server the same instance.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use contextpilot_server_flags::{Address, Flag, ServerFlags};

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
/// **The usual port** depends on the server's version (9931 since 0.7.0, before that 8080), so with a new
/// llama-server the same command line can mean another address, and another identity. An engine that does
/// not tell its version is older than 0.7.0. If that were wrong, the identity would still be the same at
/// each start. It could only be that of another server at port 8080, and the lock keeps them apart.
///
/// An address in llama.cpp's own `config.ini` (newer servers read one) is not seen. So
/// servers whose addresses differ only there have the same identity, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    digest: [u8; Identity::LENGTH],
    /// A digest of the index and the machine alone. A server takes over what dead servers with the same one left.
    family: [u8; Identity::LENGTH],
}

/// Where a server is started, as far as [`Identity::of`] needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The machine's id, which stays the same after a reboot. Empty if it has none, as in
    /// many containers.
    pub machine: Vec<u8>,
    /// The folder that relative socket paths start from.
    pub folder: PathBuf,
}

impl Origin {
    /// Reads `/etc/machine-id`; `folder` is the working directory of the server when it started. It does not use the
    /// host name: that changes when a container is created again with the same volumes.
    pub fn at(folder: PathBuf) -> Self {
        Self {
            machine: machine_id().unwrap_or_default(),
            folder,
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

impl Identity {
    /// The length of an identity, in bytes.
    pub(crate) const LENGTH: usize = 16;

    /// `index`: the index's URL in the form that may be shown: normalised, without a
    /// password.
    pub fn of(index: &str, flags: &ServerFlags, place: &Origin) -> Self {
        let (mut digest, family) = family(index, place);
        if let Some(router) = flags.router_port() {
            let model = [Flag::Alias, Flag::Model, Flag::HfRepo]
                .into_iter()
                .find_map(|flag| flags.text(flag));
            digest.field("router", router.as_bytes());
            digest.field("model", model.unwrap_or_default().as_bytes());
        } else {
            // In the order of the command line, because overlapping addresses in another order can
            // mean something else.
            for address in flags.addresses() {
                digest.field("address", &bytes_of(&address, place));
            }
        }
        Self {
            digest: digest.0.to_be_bytes(),
            family,
        }
    }

    /// A process that only reports what dead servers with this index left on this machine.
    pub fn watcher(index: &str, place: &Origin) -> Self {
        let (mut digest, family) = family(index, place);
        digest.field("watcher", b"");
        Self {
            digest: digest.0.to_be_bytes(),
            family,
        }
    }

    /// Another server with the same index on the same machine, whose identity is shown like this.
    pub(crate) fn relative(&self, shown: &str) -> Option<Self> {
        let is_shown_so = |identity: &Self| identity.to_string() == shown;
        let digest = u128::from_str_radix(shown, 16).ok()?.to_be_bytes();
        Some(Self { digest, ..*self }).filter(is_shown_so)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LENGTH] {
        &self.digest
    }

    /// The digest of the index and the machine, as 32 hexadecimal digits.
    pub(crate) fn family(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.family))
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

/// What all identities with the same index on the same machine begin with, and its digest.
fn family(index: &str, place: &Origin) -> (Digest, [u8; Identity::LENGTH]) {
    let mut digest = Digest::new();
    digest.field("index", index.as_bytes());
    digest.field("machine", &place.machine);
    let family = digest.0.to_be_bytes();
    (digest, family)
}

fn bytes_of(address: &Address, place: &Origin) -> Vec<u8> {
    match address {
        // An absolute path stays what it is.
        Address::Unix(path) => place
            .folder
            .join(path)
            .into_os_string()
            .into_encoded_bytes(),
        Address::Tcp(host, port) => {
            let mut address = host.as_bytes().to_ascii_lowercase();
            address.extend(format!(" {port}").bytes());
            address
        }
    }
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
