//! What is worth a copy.
//!
//! Saving copies a sequence out of the engine, and loading copies one in. Both count as copies of *all* its tokens,
//! and are weighed against the tokens that then need not be evaluated. (Of a large one that is mostly stored, only what is new
//! is copied out. That takes less.) How many times as long as copying a
//! token evaluating it takes is a *ratio*, which is measured.

/// A load that brings fewer tokens than these, beyond what the engine holds, is not made. Callers ask this first: it is the same
/// for all sequences, and [`loading`] then weighs how long the sequence is.
pub const LEAST_GAINED: usize = 8;

/// Fewer lost tokens are not worth a copy of their sequence.
pub const LEAST_LOST: usize = 8;

/// Evaluating what is new must have taken this many times as long as copying the whole sequence, for a copy
/// that may turn out to be needless: one that is made in case of a crash.
pub const MARGIN: usize = 50;

/// Steps of an answer between two looks at whether such a copy is worth it.
pub const STEPS: usize = 256;

/// How many times as long as copying a token evaluating it takes, at least: as on a fast graphics card. It
/// also counts where evaluating seems to take less, because a device may go on after the call.
const LEAST_RATIO: f64 = 64.0;
/// And at most: what is measured in microseconds is not that sure. On processors it was some four hundred.
const MOST_RATIO: f64 = 1024.0;

/// The ratio. Both in seconds a token; `None`: not measured yet.
pub fn ratio(evaluating: Option<f64>, copying: Option<f64>) -> usize {
    let ratio = match (evaluating, copying) {
        (Some(evaluating), Some(copying)) if copying > 0.0 => evaluating / copying,
        _ => LEAST_RATIO,
    };
    ratio.clamp(LEAST_RATIO, MOST_RATIO) as usize
}

/// Whether a sequence of `tokens` tokens, which is about to keep only its first `kept`, is to be copied out.
/// `there`: how many of its first tokens the store has. What it has not must have taken `margin` times as long
/// to evaluate as the whole sequence takes to copy.
pub fn saving(tokens: usize, kept: usize, there: usize, ratio: usize, margin: usize) -> bool {
    let lost = tokens.saturating_sub(there.max(kept));
    let missing = tokens.saturating_sub(there);
    lost >= LEAST_LOST && missing * ratio >= margin * tokens
}

/// A smaller state is copied as a whole, through memory that is used again; bytes. To find and clear memory for a larger one
/// takes longer than whatever does without.
pub const LARGE: usize = 8 << 20;

/// Whether of a large sequence only what is new is copied out: the store has its first `there` tokens, which are three
/// quarters or more. What is new goes to fresh memory. More of it, with all the rest, goes to memory that is ready.
pub fn is_mostly_stored(tokens: usize, there: usize) -> bool {
    4 * tokens.saturating_sub(there) < tokens
}

/// On the way through a prompt of a context that cannot go back, states are that far apart, in tokens, or farther.
const MIDWAY: usize = 4096;

/// Whether a state of such a context is worth taking on the way through a prompt, of which it holds so many tokens. `last`: how
/// many of them the store has a state of.
pub fn midway(tokens: usize, last: usize) -> bool {
    tokens.saturating_sub(last) >= MIDWAY
}

/// More tokens of such a context do not wait for a state that lies ahead: a prompt that turns off just before it would wait for
/// all of them at once.
pub const MOST_PENDING: usize = 32_768;

/// Whether a sequence of `all` tokens, of which the engine holds the first `held`, is to be loaded.
pub fn loading(held: usize, all: usize, ratio: usize) -> bool {
    all.saturating_sub(held) * ratio >= all
}

/// Whether a sequence of `tokens` tokens is to be copied out for another one, with which it shares the first
/// `shared`. `stored`: how many of these the other one has without that.
pub fn sharing(tokens: usize, shared: usize, stored: usize, ratio: usize) -> bool {
    let more = shared.saturating_sub(stored);
    more >= LEAST_GAINED && more * ratio >= tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_weighed_against_what_need_not_be_evaluated() {
        assert_eq!(ratio(None, Some(1.0)), 64);
        assert_eq!(
            ratio(Some(1.0), Some(0.0)),
            64,
            "it was too fast to measure"
        );
        assert_eq!(ratio(Some(4e-3), Some(1e-5)), 400);
        assert_eq!(ratio(Some(1.0), Some(1e-9)), 1024);
        assert_eq!(ratio(Some(1e-9), Some(1.0)), 64);

        assert!(saving(6400, 0, 6300, 64, 1));
        assert!(
            !saving(6401, 0, 6301, 64, 1),
            "more than 64 times as much to copy"
        );
        assert!(!saving(6400, 6393, 0, 64, 1), "seven tokens are lost");
        assert!(saving(400, 0, 350, 400, MARGIN));
        assert!(!saving(401, 0, 351, 400, MARGIN));

        assert!(is_mostly_stored(400, 301) && is_mostly_stored(400, 400));
        assert!(!is_mostly_stored(400, 300) && !is_mostly_stored(0, 0));

        assert!(midway(5000, 904) && !midway(5000, 905) && !midway(10, 20));

        assert!(loading(6300, 6400, 64));
        assert!(!loading(6301, 6400, 64));

        assert!(sharing(640, 110, 100, 64));
        assert!(!sharing(641, 110, 100, 64));
        assert!(!sharing(100, 107, 100, 64));
    }
}
