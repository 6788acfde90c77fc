//! Contexts of a program that is no llama-server.
//!
//! A server has one context whose sequences are the slots. A program may have several side by side: a chat and
//! an embedding model, or several objects with one sequence each. The ledger follows [one context](PROGRAM), so
//! theirs are told apart by numbers: sequence 3 of the context at [place](ContextId) 2 is slot 2003, and its tokens
//! are other tokens than those of another context. Nothing that one context holds is of use to another one,
//! which may even have another vocabulary.

use crate::entries::Entry;
use crate::event::Event;
use crate::ids::{ContextId, SequenceId};
use crate::token::Token;

/// Stands for all contexts of a program. In events that are not yet [told so](told_of_program), a context of a
/// program is named by its place: 0 for the first, and the place of one that was freed is used again.
pub const PROGRAM: ContextId = ContextId(usize::MAX);

/// Sequences of a context that are told apart. The engine allows a quarter of that.
pub const SLOTS_OF_CONTEXT: SequenceId = 1000;

/// Tokens of a vocabulary that are told apart. The largest known has a quarter of that.
const TOKENS_OF_CONTEXT: Token = 1 << 20;

/// Contexts that are told apart: more would make tokens that are taken for placeholders.
const CONTEXTS: usize = 512;

/// The slot of a context's sequence. Negative numbers, which mean all sequences, stay as they are.
#[must_use]
pub fn slot_of(context: ContextId, sequence: SequenceId) -> SequenceId {
    match (sequence, SequenceId::try_from(context.0 % CONTEXTS)) {
        (0.., Ok(place)) => place * SLOTS_OF_CONTEXT + sequence.min(SLOTS_OF_CONTEXT - 1),
        _ => sequence,
    }
}

/// The context of a slot, and which of its sequences that is.
#[must_use]
pub fn sequence_of(slot: SequenceId) -> (ContextId, SequenceId) {
    let place = usize::try_from(slot / SLOTS_OF_CONTEXT).unwrap_or(0);
    (ContextId(place), slot % SLOTS_OF_CONTEXT)
}

/// The token of a context's vocabulary. Media and placeholders stay as they are.
fn token_of(context: ContextId, token: Token) -> Token {
    match (token, Token::try_from(context.0 % CONTEXTS)) {
        (0..TOKENS_OF_CONTEXT, Ok(place)) => place * TOKENS_OF_CONTEXT + token,
        _ => token,
    }
}

/// The context that a token belongs to, and the token in that context's vocabulary.
#[must_use]
pub fn token_in(token: Token) -> (ContextId, Token) {
    let place = usize::try_from(token / TOKENS_OF_CONTEXT).unwrap_or(0);
    (ContextId(place), token % TOKENS_OF_CONTEXT)
}

/// The context that an event is about, by its place. `None`: it is about none.
#[must_use]
pub fn context_of(event: &Event) -> Option<ContextId> {
    match event {
        // The slot is that of the program.
        Event::Launched { sequence, .. } => Some(sequence_of(*sequence).0),
        _ => event.context(),
    }
}

/// The same event, of the whole program.
#[must_use]
pub fn told_of_program(mut event: Event) -> Event {
    match &mut event {
        Event::ContextCreated { context }
        | Event::Bounded { context, .. }
        | Event::WholeWindows { context, .. }
        | Event::Rewinds { context, .. }
        | Event::ContextFreed { context }
        | Event::Adapters { context, .. }
        | Event::Cleared { context } => *context = PROGRAM,
        Event::Submitted { context, entries } => {
            let of = std::mem::replace(context, PROGRAM);
            if of != ContextId(0) {
                let told = |entry: &Entry| Entry {
                    sequence: slot_of(of, entry.sequence),
                    token: token_of(of, entry.token),
                    ..*entry
                };
                *entries = entries.iter().map(told).collect();
            }
        }
        Event::Evaluated {
            context, failed, ..
        } => {
            let of = std::mem::replace(context, PROGRAM);
            for (sequence, _) in failed {
                *sequence = slot_of(of, *sequence);
            }
        }
        Event::Copied {
            context,
            source,
            target,
            ..
        } => {
            let of = std::mem::replace(context, PROGRAM);
            *source = slot_of(of, *source);
            *target = slot_of(of, *target);
        }
        Event::Replaced {
            context,
            sequence,
            tokens,
        } => {
            let of = std::mem::replace(context, PROGRAM);
            *sequence = slot_of(of, *sequence);
            for token in tokens {
                *token = token_of(of, *token);
            }
        }
        Event::Loaded {
            context, sequence, ..
        }
        | Event::Reaches {
            context, sequence, ..
        }
        | Event::Checkpointed {
            context, sequence, ..
        }
        | Event::CheckpointLoaded {
            context, sequence, ..
        }
        | Event::Removed {
            context, sequence, ..
        }
        | Event::Kept { context, sequence }
        | Event::Shifted {
            context, sequence, ..
        }
        | Event::Obscured { context, sequence }
        | Event::Saved {
            context, sequence, ..
        }
        | Event::Restored {
            context, sequence, ..
        } => {
            let of = std::mem::replace(context, PROGRAM);
            *sequence = slot_of(of, *sequence);
        }
        _ => {}
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{media_token, unseen_token};

    #[test]
    fn slots_and_tokens_of_contexts_are_told_apart_and_found_again() {
        for place in [0, 1, 63, CONTEXTS - 1] {
            let context = ContextId(place);
            for sequence in [0, 1, 255] {
                assert_eq!(sequence_of(slot_of(context, sequence)), (context, sequence));
            }
            for token in [0, 1, TOKENS_OF_CONTEXT - 1] {
                let told = token_of(context, token);
                assert_eq!(token_in(told), (context, token));
                assert!(crate::token::is_of_vocabulary(told));
            }
            let others = [media_token(7), unseen_token(1, 2)];
            assert_eq!(others.map(|token| token_of(context, token)), others);
            assert_eq!(slot_of(context, -1), -1);
        }
    }

    #[test]
    fn the_first_context_keeps_its_numbers() {
        let entry = Entry {
            sequence: 3,
            position: 4,
            token: 5,
            output: true,
        };
        let of = |place| Event::Submitted {
            context: ContextId(place),
            entries: [entry][..].into(),
        };
        let Event::Submitted { entries, .. } = told_of_program(of(0)) else {
            unreachable!()
        };
        assert_eq!(*entries, [entry]);
        let Event::Submitted { entries, context } = told_of_program(of(2)) else {
            unreachable!()
        };
        assert_eq!((context, entries[0].sequence), (PROGRAM, 2003));
        assert_ne!(entries[0].token, entry.token);
    }
}
