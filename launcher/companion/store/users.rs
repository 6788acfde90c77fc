//! The servers that use the folder, and the budget that they give it.

use std::path::Path;

use contextpilot_client::control::PrefixStore;
use contextpilot_kv_files::Folder;
use contextpilot_settings::{env, read_gigabytes};

use crate::companion::servers::Running;
use crate::companion::show::Visible;
use crate::variables::{Lookup, of_process};

/// A server that uses the folder.
pub(super) struct User<'a> {
    pub(super) process: u32,
    pub(super) store: &'a PrefixStore,
}

impl User<'_> {
    /// How large it lets the store become, bytes.
    fn limit(&self) -> u64 {
        self.store.limit_bytes
    }
}

/// The servers that use this folder.
pub(super) fn users<'a>(running: &'a [Running], folder: &Path) -> Vec<User<'a>> {
    let users = running.iter().filter_map(|server| {
        let store = server.stats.as_ref().ok()?.store.as_ref()?;
        is_same(Path::new(&store.folder), folder).then_some(User {
            process: server.process(),
            store,
        })
    });
    users.collect()
}

/// The budget: as of a server that runs on the folder, else as a server would have it that is started now.
pub(super) fn limit(folder: &Folder, path: &Path, running: &[Running]) -> Result<u64, String> {
    if let Some(text) = of_process.text(env::STORE_GB) {
        return read_gigabytes(&text).ok_or_else(|| {
            format!(
                "{} is {}: give a number of 10⁹ bytes",
                env::STORE_GB,
                Visible(&text)
            )
        });
    }
    let of_servers = users(running, path).into_iter().map(|user| user.limit());
    if let Some(limit) = of_servers.filter(|limit| *limit > 0).min() {
        return Ok(limit);
    }
    let there = folder
        .headers()
        .map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    let own = there.map(|header| header.chunk.cost()).sum();
    Ok(folder.usual_limit(own).bytes)
}

/// Whether two paths lead to the same folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}
