//! Where a process listens, as the system says. For servers that do not say it themselves: one in router
//! mode has no hook, and some servers cannot be hooked.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use contextpilot_client::control::nearest;
use rustix::process::Pid;

use crate::companion::engine::is_server;

/// The address among these at which a llama-server answers.
pub(in crate::companion) fn of_server(listening: &[String]) -> Option<String> {
    let reachable = listening
        .iter()
        .filter_map(|url| nearest(std::slice::from_ref(url)));
    let servers: Vec<String> = reachable.filter(|url| is_server(url)).collect();
    nearest(&servers)
}

/// The addresses at which a process listens, in the form of `Stats::listening`; or if it does not, its
/// children, as of a script that starts a server. `tls`: they speak TLS.
pub(in crate::companion) fn listening(process: Pid, tls: bool) -> Vec<String> {
    let mut generation = vec![process.as_raw_nonzero().get().unsigned_abs()];
    while !generation.is_empty() {
        let sockets = generation
            .iter()
            .flat_map(|process| sockets_of(*process, tls));
        let sockets: Vec<String> = sockets.collect();
        if !sockets.is_empty() {
            return sockets;
        }
        let children = generation.iter().flat_map(|process| children(*process));
        // The index listens, too.
        generation = children
            .filter(|&child| child != std::process::id())
            .collect();
    }
    Vec::new()
}

fn children(process: u32) -> Vec<u32> {
    let folder = fs::read_dir(format!("/proc/{process}/task"));
    let threads = folder.into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        let words = list.split_whitespace();
        words
            .filter_map(|word| word.parse().ok())
            .collect::<Vec<u32>>()
    });
    numbers.collect()
}

fn sockets_of(process: u32, tls: bool) -> Vec<String> {
    let own = inodes(process);
    let table = |name: &str| {
        let text = fs::read_to_string(format!("/proc/{process}/net/{name}"));
        text.unwrap_or_default()
    };
    let scheme = if tls { "https" } else { "http" };
    let (v4, v6, unix) = (table("tcp"), table("tcp6"), table("unix"));
    let tcp = v4.lines().chain(v6.lines()).filter_map(tcp);
    let tcp = tcp
        .filter(|(inode, _)| own.contains(inode))
        .map(|(_, address)| format!("{scheme}://{address}"));
    let folder = fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_default();
    let unix = unix.lines().filter_map(self::unix);
    let unix = unix.filter(|(inode, _)| own.contains(inode));
    let unix = unix.map(|(_, path)| format!("unix:{}", folder.join(path).display()));
    tcp.chain(unix).collect()
}

/// The inodes of its sockets.
fn inodes(process: u32) -> HashSet<u64> {
    let folder = fs::read_dir(format!("/proc/{process}/fd"));
    let descriptors = folder.into_iter().flatten().flatten();
    let links = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    let inode = |link: &Path| {
        let link = link.to_str()?.strip_prefix("socket:[")?;
        link.strip_suffix(']')?.parse().ok()
    };
    links.filter_map(|link| inode(&link)).collect()
}

/// Inode and address of a line of `/proc/net/tcp`, if it is of a socket that listens.
fn tcp(line: &str) -> Option<(u64, SocketAddr)> {
    const LISTENS: &str = "0A";
    let mut fields = line.split_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Each word is in the order of this machine.
    let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok();
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[4 * at..4 * at + 4].copy_from_slice(&word(at)?.to_ne_bytes());
            }
            bytes.into()
        }
        _ => return None,
    };
    (state == LISTENS).then(|| (inode, SocketAddr::new(ip, port)))
}

/// Inode and path of a line of `/proc/net/unix`, if it is of a socket that listens.
fn unix(line: &str) -> Option<(u64, &str)> {
    /// `__SO_ACCEPTCON`
    const LISTENS: u32 = 0x1_0000;
    let (mut words, mut path) = ([""; 7], line);
    for word in &mut words {
        path = path.trim_start();
        let end = path.find(' ').unwrap_or(path.len());
        (*word, path) = path.split_at(end);
    }
    let flags = u32::from_str_radix(words[3], 16).ok()?;
    let inode = words[6].parse().ok()?;
    let path = path.trim_start();
    let is_path = !path.is_empty() && !path.starts_with('@');
    (flags & LISTENS != 0 && is_path).then_some((inode, path))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_sockets_of_a_process_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b.sock");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = TcpListener::bind("[::1]:0").ok();
        let unix = UnixListener::bind(&path).unwrap();
        let here = std::process::id();
        let found = sockets_of(here, false);
        let of_tcp = |socket: &TcpListener| socket.local_addr().unwrap().to_string();
        assert!(
            found.contains(&format!("http://{}", of_tcp(&tcp))),
            "{found:?}"
        );
        if let Some(six) = &six {
            assert!(
                found.contains(&format!("http://{}", of_tcp(six))),
                "{found:?}"
            );
        }
        let path = format!("unix:{}", path.display());
        assert!(found.contains(&path), "{found:?}");
        assert!(sockets_of(here, true).contains(&format!("https://{}", of_tcp(&tcp))));
        let (gone, connected) = (of_tcp(&tcp), std::net::TcpStream::connect(of_tcp(&tcp)));
        drop((tcp, unix));
        let found = sockets_of(here, false);
        assert!(!found.contains(&format!("http://{gone}")), "{found:?}");
        assert!(!found.contains(&path), "{found:?}");
        drop(connected);
    }

    #[test]
    fn lines_of_the_systems_tables_are_read() {
        let line = "   0: 0100007F:26CB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        if cfg!(target_endian = "little") {
            assert_eq!(tcp(line), Some((4711, "127.0.0.1:9931".parse().unwrap())));
        }
        assert_eq!(tcp(&line.replace(" 0A ", " 01 ")), None, "it is connected");
        assert_eq!(tcp("  sl  local_address rem_address   st"), None);
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01    01 /run/a b.sock";
        assert_eq!(unix(line), Some((1, "/run/a b.sock")));
        assert_eq!(unix(&line.replace("00010000", "00000000")), None);
        assert_eq!(unix(&line.replace("/run/a b.sock", "@a")), None);
        assert_eq!(
            unix("Num       RefCount Protocol Flags    Type St Inode Path"),
            None
        );
    }
}
