//! Ids for requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `req-` and 12 hex digits, as the Python index has them. Not a secret.
pub(in crate::companion) fn new() -> String {
    /// With keys that the system drew when the process started.
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let drawn = KEYS.hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
    format!("req-{:012x}", drawn & 0xFFFF_FFFF_FFFF)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ_and_have_the_form() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| super::new()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(
            ids.iter()
                .all(|id| id.len() == 16 && id.starts_with("req-"))
        );
    }
}
