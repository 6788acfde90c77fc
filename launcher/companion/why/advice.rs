//! What would have saved an evaluation.

use contextpilot_client::control::{Causes, Evaluation, Reason};

/// A cause counts if it has at least this share of the evaluated tokens.
const WORTH: u64 = 20;

/// One sentence for each cause that counts.
pub(super) fn advice(evaluation: &Evaluation) -> Vec<String> {
    let Evaluation {
        evaluated, causes, ..
    } = evaluation;
    let matters = |tokens: u64| tokens > 1 && tokens * WORTH >= *evaluated;
    let Causes {
        new,
        evicted,
        elsewhere,
        no_way_back,
        uncached,
        moved,
        adapter,
        not_known,
        ..
    } = *causes;
    let mut advice = Vec::new();
    let mut say = |tokens: u64, text: &str| {
        if matters(tokens) {
            advice.push(text.to_owned());
        }
    };
    if let Some(diverged) = &evaluation.diverged {
        let late = diverged.same_after > diverged.differing;
        say(
            if late { new + evicted } else { 0 },
            "put what changes (a date, an id, a list of tools) behind what stays the same, and \
             write it in the same order each time",
        );
    }
    let lost = evaluation.lost.as_ref().map(|lost| lost.reason);
    say(evicted, keep(lost));
    say(
        elsewhere.pinned,
        "leave out id_slot, or name the slot that has the conversation",
    );
    say(
        elsewhere.busy,
        "wait for the answer before the next prompt of a conversation is sent: a slot at work \
         lends nothing",
    );
    say(
        elsewhere.similarity,
        "lower --slot-prompt-similarity: this is a small share of the prompt, and no slot is \
         chosen for less than that (0.1 by default)",
    );
    say(
        elsewhere.least_recently_used,
        "give --slot-prompt-similarity a value above 0: with 0, slots are chosen by age alone",
    );
    say(
        elsewhere.host_rule,
        "the host cache gives back an entry only if a quarter of it or more is used, and more of \
         it than of the slot: name a slot (id_slot) for prompts that share a short beginning",
    );
    say(
        no_way_back,
        "this context goes back to checkpoints only: raise --ctx-checkpoints, lower \
         --checkpoint-min-step, or use --swa-full (sliding window)",
    );
    say(
        uncached,
        "leave out \"cache_prompt\": false (embeddings and reranking never use the cache)",
    );
    say(
        moved,
        "start the server with --cache-reuse 256: the same tokens stood further on in the slot",
    );
    say(
        adapter,
        "a slot keeps tokens for one set of LoRA adapters: name a slot (id_slot) for each set",
    );
    say(not_known, "raise CONTEXTPILOT_EXPLAIN_MB to remember more");
    advice
}

/// What would have kept tokens that were lost for this reason.
fn keep(reason: Option<Reason>) -> &'static str {
    match reason {
        Some(Reason::DroppedFromHost) => "a larger --cache-ram would have kept them",
        Some(Reason::ContextFreed) => {
            "the server has unloaded its model since: see --sleep-idle-seconds"
        }
        Some(Reason::Shifted) => {
            "a larger context (-c) would have kept them: the slot was full, and its middle was cut \
             out"
        }
        _ => "more slots (--parallel), or a host prompt cache (--cache-ram), would have kept them",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_with_few_tokens_gets_no_advice() {
        let with = |moved| Evaluation {
            evaluated: 1000,
            causes: Causes {
                moved,
                new: 1000 - moved,
                ..Causes::default()
            },
            ..Evaluation::default()
        };
        assert_eq!(advice(&with(49)), Vec::<String>::new());
        let [only] = advice(&with(50)).try_into().expect("one");
        assert!(only.contains("--cache-reuse"), "{only}");
    }
}
