//! Addresses at which no process listens.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};

/// A loopback address with a port at which no process listens. On Linux none will begin to by chance:
/// other tests and programs use other addresses in 127.0.0.0/8.
///
/// # Panics
/// If no port is free at that address.
pub fn nowhere() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let own = match NUMBER.fetch_add(1, Ordering::Relaxed) {
        number if cfg!(target_os = "linux") => {
            let [.., high, low] = std::process::id().to_be_bytes();
            Ipv4Addr::new(127, 1 | high, low, number | 1)
        }
        _ => Ipv4Addr::LOCALHOST,
    };
    let free = TcpListener::bind((own, 0)).and_then(|free| free.local_addr());
    match free {
        Ok(address) => address,
        Err(error) => panic!("no port at {own}: {error}"),
    }
}
