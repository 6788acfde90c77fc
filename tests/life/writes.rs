//! How often the journal is written: a few times a second, however many requests come.

use std::fs;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Index, Request, Server};

use crate::support::{Home, PATIENCE, ask};

const REQUESTS: usize = 400;
/// The time between two writes of the journal, as in `contextpilot_journal::INTERVAL`.
const INTERVAL: Duration = Duration::from_millis(250);
/// How many writes more there may be: at the start, at the last moment, and if the worker had to wait
/// for a core so long that half of the ring of recent ids was full.
const OTHERS: u32 = 5;

/// How often the worker has called `write`. It writes nothing but the journal. `None` if the kernel
/// does not count these calls.
fn writes(server: &Server) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).ok()?;
    let worker = tasks.flatten().map(|task| task.path()).find(|task| {
        let name = fs::read_to_string(task.join("comm"));
        name.is_ok_and(|name| name.trim_end() == "contextpilot")
    });
    let counters = fs::read_to_string(worker?.join("io")).ok()?;
    let count = counters
        .lines()
        .find_map(|line| line.strip_prefix("syscw: "));
    count?.parse().ok()
}

#[test]
fn under_load_the_journal_is_written_a_few_times_a_second() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let server = home.server(&index, 4).spawn().unwrap();
    let Some(before) = writes(&server) else {
        contextpilot_testbed::skip("the system does not count a thread's calls");
        return;
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for n in (client..REQUESTS).step_by(4) {
                    let request = Request::completion(format!("{n} was asked here"));
                    let request = request.id(format!("req-{n}")).predict(1);
                    server.complete(&request).unwrap();
                }
            });
        }
    });
    // This id stays live, so it is written. Ids that are evicted before the next write are not.
    ask(&server, 0, "req-last");
    while !home.hold("req-last") {
        assert!(start.elapsed() < 3 * PATIENCE, "it is not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let most = start.elapsed().as_millis() / INTERVAL.as_millis();
    let most = u32::try_from(most).unwrap() + OTHERS;
    let written = writes(&server).unwrap() - before;
    println!(
        "{written} writes for {REQUESTS} requests in {:?}",
        start.elapsed()
    );
    assert!(written > 0, "they are counted");
    assert!(written <= most, "{written} writes, at most {most} are due");
}
