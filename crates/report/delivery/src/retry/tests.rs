use contextpilot_random::Random;
use proptest::prelude::*;

use super::*;

#[test]
fn the_longest_delay_doubles_from_50_ms_to_5_s() {
    let policy = RetryPolicy::default();
    let ms: Vec<u128> = (0..=9).map(|n| policy.ceiling(n).as_millis()).collect();
    assert_eq!(ms, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    for failures in [32, 33, 34, 1000, u32::MAX] {
        assert_eq!(policy.ceiling(failures), Duration::from_secs(5));
    }
}

#[test]
fn delays_are_spread_evenly_from_zero_to_the_longest() {
    let policy = RetryPolicy::default();
    assert_eq!(policy.delay(1, 0), Duration::ZERO);
    assert_eq!(policy.delay(1, 1 << 63), Duration::from_millis(25));
    let most = policy.delay(9, u64::MAX);
    assert!(most > Duration::from_millis(4999) && most < Duration::from_secs(5));
    // Each quarter of the range gets about a quarter of the delays.
    let mut random = Random(7);
    let mut quarters = [0; 4];
    for _ in 0..4000 {
        let delay = policy.delay(9, random.draw()).as_millis();
        quarters[usize::try_from(delay / 1250).expect("at most 3")] += 1;
    }
    assert!(
        quarters.iter().all(|n| (900..1100).contains(n)),
        "{quarters:?}"
    );
}

#[test]
fn after_a_success_the_delays_start_again() {
    let mut backoff = Backoff::new(RetryPolicy::default());
    for failures in 1..=20 {
        backoff.failed(u64::MAX, None);
        assert_eq!(backoff.failures(), failures);
    }
    backoff.succeeded();
    assert_eq!(backoff.failures(), 0);
    assert!(backoff.failed(u64::MAX, None) < Duration::from_millis(50));
}

#[test]
fn retry_after_lengthens_the_delay_up_to_a_minute() {
    let mut backoff = Backoff::new(RetryPolicy::default());
    let wish = |s| Some(Duration::from_secs(s));
    assert_eq!(backoff.failed(0, wish(2)), Duration::from_secs(2));
    assert_eq!(backoff.failed(0, wish(59)), Duration::from_secs(59));
    assert_eq!(backoff.failed(0, wish(3600)), Duration::from_secs(60));
    assert_eq!(backoff.failed(0, wish(u64::MAX)), Duration::from_secs(60));
    // A wish for less than the backoff shortens nothing.
    let most = backoff.failed(u64::MAX, wish(0));
    assert!(most > Duration::from_millis(799), "{most:?}");
}

proptest! {
    #[test]
    fn never_beyond_the_ceiling_nor_the_cap(
        base in 0u64..10_000,
        cap in 0u64..100_000,
        failures in any::<u32>(),
        random in any::<u64>(),
    ) {
        let policy = RetryPolicy {
            base: Duration::from_millis(base),
            cap: Duration::from_millis(cap),
            ..RetryPolicy::default()
        };
        let delay = policy.delay(failures, random);
        prop_assert!(delay <= policy.ceiling(failures));
        prop_assert!(policy.ceiling(failures) <= policy.cap);
        prop_assert!(policy.ceiling(failures) <= policy.ceiling(failures.saturating_add(1)));
    }
}
