//! The sockets: one that publishes to subscribers, and one that answers requests for replays.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use contextpilot_kv_events::Feed;
use contextpilot_settings::KvEvents;
use contextpilot_zmtp::{Limits, Publisher, Router};

use super::Outlet;
use crate::kept::Kept;
use crate::shared::lock;
use crate::{Host, replay};

/// Connections of subscribers at a time, unless `CONTEXTPILOT_KV_EVENTS_CONNECTIONS` says otherwise. A quarter as
/// many may ask for replays.
pub const CONNECTIONS: usize = contextpilot_settings::DEFAULT_ROUTERS;
/// Bytes that may wait for one connection.
pub const QUEUED_BYTES: usize = 4 << 20;
/// Bytes that may wait for all of them.
pub const QUEUED_BYTES_OF_ALL: usize = 32 << 20;

#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) publisher: Option<Arc<Publisher>>,
    pub(super) router: Option<Router>,
    /// Why a socket is missing.
    pub(super) problem: Option<String>,
}

impl Outlet {
    /// Listens for subscribers, and tries until that succeeds. Then tries once to listen for replays.
    /// Also returns whether a failure of the latter was logged. `None`: the outlet was closed before.
    pub(super) fn open(&self, settings: &KvEvents, host: &Host) -> Option<(Kept, bool)> {
        let address = settings.publish;
        let mut said = false;
        let publisher = loop {
            match Publisher::bind(address, limits(settings.connections), host.on_thread) {
                Ok(publisher) => break publisher,
                Err(why) => self.complain(&mut said, host, "KV_EVENTS", address, &why),
            }
            self.pause()?;
        };
        let chosen = address.port() == 0;
        let (kept, next) = Kept::open(publisher.address(), chosen, host);
        let feed = Feed::new(settings.block_size, next);
        self.note(&feed);
        *lock(&self.feed) = Some(feed);
        let publish = publisher.address();
        lock(&self.sockets).publisher = Some(Arc::new(publisher));
        lock(&self.sockets).problem = None;
        let mut said = false;
        self.open_replay(settings, &mut said, host);
        self.announce(settings, publish, host);
        Some((kept, said))
    }

    /// Tries to listen for replays, unless it does already. `said`: a failure was logged already.
    pub(super) fn open_replay(&self, settings: &KvEvents, said: &mut bool, host: &Host) {
        let Some(address) = settings.replay else {
            return;
        };
        if lock(&self.sockets).router.is_some() {
            return;
        }
        match self.answer_at(settings, address, host) {
            Ok(router) => {
                let mut sockets = lock(&self.sockets);
                sockets.router = Some(router);
                sockets.problem = None;
            }
            Err(why) => self.complain(said, host, "KV_EVENTS_REPLAY", address, &why),
        }
    }

    fn answer_at(
        &self,
        settings: &KvEvents,
        address: SocketAddr,
        host: &Host,
    ) -> io::Result<Router> {
        let (feed, replays) = (Arc::clone(&self.feed), Arc::clone(&self.replays));
        let topic = settings.topic.clone();
        let limits = limits(settings.connections.div_ceil(4));
        Router::bind(address, limits, host.on_thread, move |question, send| {
            replay::answer(&replays, &feed, topic.as_bytes(), question, send)
        })
    }

    fn complain(&self, said: &mut bool, host: &Host, name: &str, at: SocketAddr, why: &io::Error) {
        let why = match why.kind() {
            io::ErrorKind::AddrInUse => "it is in use".to_owned(),
            _ => why.to_string(),
        };
        let problem = format!("cannot listen on tcp://{at}, {why}");
        if !std::mem::replace(said, true) {
            (host.log)(&format!(
                "[ContextPilot] KV cache events: {problem}. It is tried again; or set \
                 CONTEXTPILOT_{name} to another address and restart"
            ));
        }
        lock(&self.sockets).problem = Some(problem);
    }

    fn announce(&self, settings: &KvEvents, publish: SocketAddr, host: &Host) {
        let router = lock(&self.sockets).router.as_ref().map(Router::address);
        let replay = router.map_or("none".to_owned(), |at| format!("tcp://{at}"));
        let open = if settings.is_open() {
            "; other machines can connect, and read all prompts from them"
        } else {
            ""
        };
        (host.log)(&format!(
            "[ContextPilot] KV cache events: tcp://{publish}, replays {replay}, blocks of {} \
             tokens{open}",
            settings.block_size
        ));
    }
}

fn limits(connections: usize) -> Limits {
    Limits {
        connections,
        queued_bytes: QUEUED_BYTES,
        queued_bytes_of_all: QUEUED_BYTES_OF_ALL,
        ..Limits::default()
    }
}
