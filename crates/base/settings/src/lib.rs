//! What configures the hook: environment variables, and the index URL.
//!
//! The launcher checks every value before it execs the server, and the hook
//! reads the same values again inside the server. Both use [`Settings::from`],
//! so both accept the same values. Nothing here reads the environment,
//! the file system or the network: values come from a function.
//!
//! Secrets (an index token, a password in the index URL) are [`Secret`]s, which
//! no `Debug` or `Display` of this crate shows.

#![forbid(unsafe_code)]

mod browser;
mod kv_events;
mod listen;
pub mod percent;
mod secret;
mod settings;
mod store;
pub mod table;
mod url;

pub use browser::{AllowedHosts, BrowserHeaders};
pub use kv_events::{KvEvents, KvEventsOf, NotPublished};
pub use listen::{LONGEST_PATH, Listen, ListenAddress, ListenAddressError};
pub use secret::{Secret, one_line};
pub use settings::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_LISTEN_CONNECTIONS, DEFAULT_RECENT_BYTES, DEFAULT_ROUTERS,
    DEFAULT_TIMEOUT, Error, Settings, TrafficFile, Watcher, flag, idle, is_wanted,
};
pub use store::{
    BUCKET_SCHEME, REDIS_SCHEMES, REMOTE_FORMS, StoreAt, read_gigabytes, shown_remote,
};
pub use table::env;
pub use url::{Credentials, IndexUrl, IndexUrlError, Problem, Scheme};
