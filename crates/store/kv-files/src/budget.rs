//! How large the store may become if no limit is given.

use std::io;

use crate::Folder;

/// Of what the disk would have free without the store, one part in so many.
const SHARE: u64 = 10;
/// Never more, bytes.
const MOST: u64 = 50_000_000_000;
/// With less than this nearly every model's store is of no use, bytes.
const LEAST: u64 = 1_000_000;

/// The default budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsualLimit {
    /// Bytes of all files.
    pub bytes: u64,
    /// Why that is next to nothing, and what to do, as the rest of a message.
    pub problem: Option<String>,
}

impl Folder {
    /// How large the store may become if no limit is given, when its files have `own` bytes: a tenth of what its disk would
    /// have free without them, and at most 50 GB. But what is there stays, also on a full disk.
    pub fn usual_limit(&self, own: u64) -> UsualLimit {
        usual(self.space().map(|(free, _)| free), own)
    }
}

fn usual(free: io::Result<u64>, own: u64) -> UsualLimit {
    const DO: &str = "start the server again, or set CONTEXTPILOT_STORE_GB";
    let share = free.map(|free| MOST.min(free.saturating_add(own) / SHARE));
    let bytes = *share.as_ref().unwrap_or(&0).max(&own);
    let problem = match share {
        Ok(LEAST..) => None,
        Ok(_) => Some(format!(
            "there is so little room on its disk that its budget is {bytes} bytes: make room there and {DO}"
        )),
        Err(error) => Some(format!(
            "the system does not say how much room is on its disk ({error}), so its budget is {bytes} bytes: {DO}"
        )),
    };
    UsualLimit { bytes, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(free: u64, own: u64) -> (u64, bool) {
        let limit = usual(Ok(free), own);
        (limit.bytes, limit.problem.is_some())
    }

    #[test]
    fn the_stores_own_files_count_as_free() {
        const GB: u64 = 1_000_000_000;
        assert_eq!(limit(100 * GB, 0), (10 * GB, false));
        assert_eq!(limit(90 * GB, 10 * GB), (10 * GB, false));
        assert_eq!(limit(10_000 * GB, 0), (50 * GB, false));
    }

    #[test]
    fn what_is_there_stays() {
        assert_eq!(limit(0, 700_000), (700_000, true));
        assert_eq!(limit(0, 70_000_000), (70_000_000, false));
        assert_eq!(limit(u64::MAX, 2 * MOST), (2 * MOST, false));
        assert_eq!(limit(0, 0), (0, true));
        let unknown = usual(Err(io::ErrorKind::Unsupported.into()), 70_000_000);
        assert_eq!(unknown.bytes, 70_000_000);
        assert!(unknown.problem.is_some_and(|why| why.contains("STORE_GB")));
    }
}
