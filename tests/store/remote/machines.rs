//! Two machines and a Redis on a third, as far as the network goes: each in a network namespace of its own, with a cable
//! from each of the two to the third, which can be pulled.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::thread;

use contextpilot_testbed::{KillOnDrop, or_return, skip_optional};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;

/// A network namespace. It is there as long as a process of it is, so nothing stays if the test is killed.
struct Network {
    /// Ends when the test does: it reads what the test never writes.
    holder: KillOnDrop,
}

impl Network {
    /// `None`: this test may not make any.
    fn new() -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut one = Self {
            holder: KillOnDrop(command.stderr(Stdio::null()).spawn().ok()?),
        };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        until("the namespace is there, or refused", || {
            if one.holder.try_wait().unwrap().is_some() {
                return Some(None);
            }
            let apart = std::fs::read_link(one.path()).ok()? != own;
            apart.then_some(Some(()))
        })?;
        Some(one)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// Does something there: with its connections, and its processes.
    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).unwrap();
        let moved = || {
            // Of this thread alone.
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        let name = thread::current().name().unwrap_or_default().to_owned();
        thread::scope(|scope| {
            let builder = thread::Builder::new().name(name);
            let done = builder.spawn_scoped(scope, moved).unwrap().join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// `ip WORDS` there.
    fn ip(&self, words: &str) -> bool {
        self.within(|| {
            let status = Command::new("ip").args(words.split(' ')).status();
            status.is_ok_and(|status| status.success())
        })
    }
}

/// The machine that both reach, and the two, of which neither reaches the other.
struct Machines {
    middle: Network,
    two: [Network; 2],
}

impl Machines {
    fn new() -> Option<Self> {
        let machines = Self {
            middle: Network::new()?,
            two: [Network::new()?, Network::new()?],
        };
        machines.connect().then_some(machines)
    }

    fn connect(&self) -> bool {
        let cable = |number: usize| {
            let (one, holder) = (&self.two[number], self.two[number].holder.id());
            let near = Self::address(number);
            self.middle.ip(&format!(
                "link add cable{number} type veth peer name cable netns {holder}"
            )) && self
                .middle
                .ip(&format!("address add {near}/24 dev cable{number}"))
                && self.middle.ip(&format!("link set cable{number} up"))
                && one.ip(&format!("address add 10.91.{number}.2/24 dev cable"))
                && one.ip("link set cable up")
                && one.ip("link set lo up")
        };
        self.middle.ip("link set lo up") && cable(0) && cable(1)
    }

    /// Of the machine in the middle, as one of the two sees it.
    fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 91, u8::try_from(number).unwrap(), 1)
    }

    /// A Redis in the middle. `None`: there is none on this machine.
    fn redis(&self) -> Option<Redis> {
        let [at, also] = [0, 1].map(Self::address);
        let bind = ["--bind", &at.to_string(), &also.to_string()];
        let open = ["--protected-mode", "no"];
        let arguments = [&bind[..], &open].concat();
        let at = SocketAddr::new(at.into(), 6379);
        self.middle.within(|| Redis::start_at(at, &arguments))
    }
}

/// With the Redis in the middle as one of the two machines sees it.
fn of_machine(number: usize, redis: &Redis) -> Builder {
    let at = SocketAddr::new(Machines::address(number).into(), redis.at.port());
    one_slot().env("CONTEXTPILOT_STORE_REMOTE", format!("redis://{at}"))
}

#[test]
fn a_conversation_moves_to_another_machine_and_waits_for_no_cable() {
    let Some(machines) = Machines::new() else {
        skip_optional(
            "no network namespaces can be made; run it as root, with iproute2 and util-linux",
        );
        return;
    };
    let redis = or_return!(machines.redis());
    let [here, there] = &machines.two;
    let folders = [folder(), folder()];
    let [mut one, mut other] = [0, 1].map(|number| {
        machines.two[number]
            .within(|| Stored::start(&of_machine(number, &redis), folders[number].path()))
    });
    let plain = there.within(|| started(&one_slot()));
    // They have nothing else in common than the machine in the middle.
    let across = SocketAddr::new(Ipv4Addr::new(10, 91, 1, 2).into(), 6379);
    assert!(here.within(|| TcpStream::connect(across)).is_err());

    let tea = tokens(146, 700);
    here.within(|| one.ask(&tea));
    here.within(|| one.ask(&tokens(147, 40)));
    here.within(|| one.await_written());
    there.within(|| {
        other.ask(&tokens(148, 40));
        until("the other one has the conversation", || {
            has_all_of(&other, &folders[1], &folders[0])
        });
        let (_, account) = other.compare(&plain, &tea);
        assert_eq!(account.from.store, 699, "{account:?}");
    });

    // A cable that is pulled closes no connection: there are just no answers any more.
    assert!(machines.middle.ip("link set cable1 down"));
    let sea = [&tea[..], &tokens(149, 400)].concat();
    there.within(|| {
        let (_, account) = other.compare(&plain, &sea);
        assert_eq!(account.from.slot + account.from.store, 700, "{account:?}");
    });
    there.within(|| other.ask(&tokens(150, 40)));
    there.within(|| other.await_written());
    until("it is said that nobody answers", || {
        let said = other.server.stderr();
        said.contains("is not kept alike").then_some(())
    });
    assert!(machines.middle.ip("link set cable1 up"));
    // What it wrote meanwhile comes to the first one.
    here.within(|| {
        until("the first one has the rest of it", || {
            has_all_of(&one, &folders[0], &folders[1])
        });
        let (_, account) = one.ask(&sea);
        assert_eq!(account.from.store, sea.len() as u64 - 1, "{account:?}");
    });
}
