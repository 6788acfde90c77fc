//! Limits for clients of what listens beside the server: the index and the gateway.

use std::time::Duration;

use clap::{Args, value_parser};
use contextpilot_proxy::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::say::say;

/// Descriptors that are none of a client's connection.
const OTHERS: u64 = 64;

/// A moment later than this is none that the clock can say.
pub(super) const MOST_SECONDS: u64 = 365 * 24 * 3600;

/// The number that an argument is. `what`: which numbers fit.
pub(super) fn number(text: &str, fits: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| fits(*number));
    number.ok_or_else(|| what.to_owned())
}

/// Whether a number can be a speed.
pub(super) fn is_speed(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

/// What clients may take up.
#[derive(Args, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections at a time. If all wait for answers, there are 64 more for health
    /// checks and evictions alone
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    max_connections: usize,
    /// Seconds that the head of a request may take to arrive
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(1..=MOST_SECONDS), default_value_t = Limits::default().head.as_secs())]
    head_time: u64,
    /// Seconds that its body may take, and one more for each 64 KiB
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(1..=MOST_SECONDS), default_value_t = Limits::default().body.as_secs())]
    body_time: u64,
    /// Seconds that a connection may be idle
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(1..=MOST_SECONDS), default_value_t = Limits::default().idle.as_secs())]
    idle_time: u64,
    /// Seconds that a client may read nothing of its answer
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(1..=MOST_SECONDS), default_value_t = Limits::default().answer.as_secs())]
    read_time: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_connections: limits.connections,
            head_time: limits.head.as_secs(),
            body_time: limits.body.as_secs(),
            idle_time: limits.idle.as_secs(),
            read_time: limits.answer.as_secs(),
        }
    }
}

impl Bounds {
    /// The limits, as far as the system has descriptors for so many connections. Makes it allow all that it can.
    pub(super) fn limits(&self) -> Limits {
        let limits = Limits::default();
        let connections = fitting(self.max_connections, limits.reserve, descriptors());
        if connections < self.max_connections {
            say(format_args!(
                "The system allows this process too few open files for --max-connections {}, so \
                 there may be {connections}; allow more with ulimit -n",
                self.max_connections
            ));
        }
        Limits {
            connections,
            head: Duration::from_secs(self.head_time),
            body: Duration::from_secs(self.body_time),
            idle: Duration::from_secs(self.idle_time),
            answer: Duration::from_secs(self.read_time),
            ..limits
        }
    }
}

/// A request that is passed on has two connections, the client's and ours.
fn fitting(connections: usize, reserve: usize, descriptors: u64) -> usize {
    let half = descriptors.saturating_sub(OTHERS) / 2;
    let fits = usize::try_from(half).unwrap_or(usize::MAX);
    connections.min(fits.saturating_sub(reserve)).max(1)
}

/// How many files this process may have open, after it has asked for as many as it can have.
fn descriptors() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_connections_than_descriptors() {
        assert_eq!(fitting(1024, 64, u64::MAX), 1024);
        assert_eq!(fitting(1024, 64, 4096), 1024);
        assert_eq!(fitting(1024, 64, 1024), 416);
        assert_eq!(fitting(1024, 64, 10), 1);
    }
}
