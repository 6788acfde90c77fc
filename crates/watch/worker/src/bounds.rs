//! Bounds of memory, and of work.

use std::time::Duration;

use contextpilot_admission::Allowance;

/// Connections to the control endpoint at a time, unless `CONTEXTPILOT_LISTEN_CONNECTIONS` says otherwise.
pub const CONNECTIONS: usize = contextpilot_settings::DEFAULT_LISTEN_CONNECTIONS;
/// Connections that are accepted in a second; each takes a thread for a moment. Others wait in the system's
/// queue.
pub const CONNECTIONS_EACH_SECOND: u32 = 200;
/// As many at once, if there were none for a while.
pub const AT_ONCE: usize = 256;
/// Bytes of a request's body: the tokens of a prompt.
pub const BODY: usize = 1 << 20;
/// Queries to the worker that may wait: as many as there may be connections at most.
pub const QUESTIONS: usize = 64;
/// Lines of the log file that may wait for the disk.
pub const LOG_LINES: usize = 4096;
/// Request ids in all these lines together.
pub const LOG_IDS: usize = 65_536;

/// Processor time that a connection to the control endpoint may cause. One that causes more is made to wait.
pub const WORK_OF_EACH: Allowance = Allowance {
    burst: Duration::from_secs(1),
    each_second: Duration::from_millis(100),
};
/// The same, of all connections together, on their threads and the worker's.
pub const WORK_OF_ALL: Allowance = Allowance {
    burst: Duration::from_secs(2),
    each_second: Duration::from_millis(200),
};
