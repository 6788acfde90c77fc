//! A relay between a server and its router. It can cut the connections.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use contextpilot_testbed::Result;

/// Passes on connections to two consecutive ports.
pub(crate) struct Relay {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    streams: Vec<TcpStream>,
}

impl Relay {
    /// Listens at `port` and the next port. Passes connections on to `to` and the port after `to`.
    pub(crate) fn start(port: u16, to: u16) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        for nth in 0..2 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port + nth))?;
            let state = Arc::clone(&state);
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let _ = pass(&client, to + nth, &state);
                }
            });
        }
        Ok(Self { port, state })
    }

    /// Closes all connections, and each new one, until [`Relay::mend`] is called.
    pub(crate) fn cut(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cut = true;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cut = false;
    }
}

fn pass(client: &TcpStream, to: u16, state: &Mutex<State>) -> std::io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.cut {
        return Ok(());
    }
    for (from, to) in [(client, &server), (&server, client)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || copy(from, to));
        state.streams.push(client.try_clone()?);
    }
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
