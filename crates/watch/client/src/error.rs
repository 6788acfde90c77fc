use std::fmt;

/// Why a call failed. `Display` is one line: what happened, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The address is not valid.
    Address {
        /// As it was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing answers at the address.
    Unreachable {
        /// The address that was tried.
        address: String,
        /// What the connection ended with.
        why: String,
    },
    /// A server answers with TLS, but its certificate is not trusted, or is not for this address.
    Untrusted {
        /// The address that was tried.
        address: String,
        /// What is wrong with the certificate.
        why: String,
    },
    /// What listens there does not speak TLS, and the address is `https://`.
    NoTls {
        /// The address that was tried.
        address: String,
    },
    /// The client's time limit is over.
    TimedOut {
        /// The address that was asked.
        address: String,
    },
    /// The model is still being loaded (503).
    Loading,
    /// A key or token is missing or wrong (401, 403).
    Unauthorized {
        /// What the server says.
        message: String,
    },
    /// The server was started without what this needs (501).
    Disabled {
        /// The flag of llama-server that turns it on.
        flag: &'static str,
    },
    /// No slot has this id. llama-server itself would use another slot, because
    /// it takes the id modulo the number of slots.
    NoSuchSlot {
        /// The id.
        slot: u32,
        /// How many slots there are, from 0.
        slots: u32,
    },
    /// The slot is busy. llama-server would let the call wait until the slot's request
    /// has ended; see [`LlamaServer::wait_idle`](crate::LlamaServer::wait_idle).
    Busy {
        /// The slot.
        slot: u32,
    },
    /// Not the name of a file in the folder of saved slots. The name must not contain a path.
    FileName {
        /// As it was given.
        name: String,
    },
    /// A saved slot could not be read. llama-server does not say why: no such
    /// file, a file of another model, or not enough room. The slot is empty now.
    NotRestored {
        /// The slot.
        slot: u32,
        /// The file.
        file: String,
    },
    /// A prompt and its answer do not fit into the slot (400).
    TooLong {
        /// What the server says.
        message: String,
    },
    /// Any other answer that is an error.
    Refused {
        /// The HTTP status.
        status: u16,
        /// What the server says, in one line.
        message: String,
    },
    /// An answer that llama-server would not give: another program listens there.
    Unexpected {
        /// The address that was asked.
        address: String,
        /// Why it is not llama-server's.
        why: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { given, why } => write!(
                f,
                "{given:?} is no address ({why}): write http://host:port or unix:/path"
            ),
            Self::Unreachable { address, why } => {
                write!(f, "{address} does not answer ({why})")
            }
            Self::Untrusted { address, why } => write!(
                f,
                "{address} has a certificate that is not trusted ({why}): set SSL_CERT_FILE to the PEM file \
                 of its authority, and write the host name that it is for"
            ),
            Self::NoTls { address } => {
                write!(f, "{address} does not speak TLS: write http://")
            }
            Self::TimedOut { address } => write!(
                f,
                "{address} did not answer in time: look whether it is busy, or allow more time"
            ),
            Self::Loading => f.write_str("the model is still being loaded: try again in a while"),
            Self::Unauthorized { message } => write!(
                f,
                "access is refused ({message}): give the key or token that the server was started with"
            ),
            Self::Disabled { flag } => {
                write!(f, "the server does not offer this: start it with {flag}")
            }
            Self::NoSuchSlot { slot, slots } => match slots {
                1 => write!(f, "there is no slot {slot}: the only one is 0"),
                _ => write!(
                    f,
                    "there is no slot {slot}: they are 0 to {}",
                    slots.saturating_sub(1)
                ),
            },
            Self::Busy { slot } => {
                write!(
                    f,
                    "slot {slot} works on a request: wait until that has ended"
                )
            }
            Self::FileName { name } => write!(
                f,
                "{name:?} cannot be the name of a saved slot: give a plain file name, \
                 which lies in the folder of the server's --slot-save-path"
            ),
            Self::NotRestored { slot, file } => write!(
                f,
                "slot {slot} could not be restored from {file:?}, and is empty now: check that \
                 the file is in the folder of --slot-save-path, was saved with this model, \
                 and that its tokens fit into the slot"
            ),
            Self::TooLong { message } => write!(
                f,
                "the prompt does not fit into a slot ({message}): shorten it, or start the \
                 server with a larger --ctx-size"
            ),
            Self::Refused { status, message } => {
                write!(f, "the server refuses: {message} (status {status})")
            }
            Self::Unexpected { address, why } => write!(
                f,
                "what answers at {address} is not what was asked for ({why}): check the address"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// Text from outside as part of one line.
pub(crate) fn one_line(text: &str) -> String {
    contextpilot_settings::one_line(text, 300)
}
