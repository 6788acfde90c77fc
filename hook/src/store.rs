//! The prefix store (`CONTEXTPILOT_STORE`): a prompt's beginning that some earlier prompt had is loaded,
//! and not evaluated again.
//!
//! It works below the server. The server asks the engine to evaluate a batch. If the store has the KV of
//! a sequence's tokens so far and of the next ones, they are put into the context, and left out of the
//! batch. The server does not know. Positions, states, outputs and answers are as if each token had been
//! evaluated.
//!
//! ```text
//!  server ── batch ──► evaluate ── search ──► index (tree, files)          crates/store
//!                         │ load: the sequence's state, composed of chunks
//!                         ▼
//!                       engine ── state of a sequence that is about to lose tokens ──► index
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`evaluate`] | what comes before and after an evaluation: searching, loading, leaving out |
//! | [`change`] | what comes after any other change of a sequence |
//! | [`save`] | what is copied out, and when: what would be lost, if it is worth it (`kv-store`'s `worth`); what is kept on request |
//! | [`bounded`] | contexts that cannot go back to any position |
//! | [`state`] | states that the server itself saves and restores |
//! | [`waiting`] | what waits until it is known under which name it is stored |
//! | [`ahead`] | tokens that the engine holds and the server has not asked for yet |
//! | [`outputs`] | indexes of outputs |
//! | [`hidden`], [`hidden_rows`] | hidden states of tokens, for drafts (MTP, EAGLE-3) |
//! | [`purpose`] | contexts and batches from which nothing may be left out |
//! | [`media`] | images and sounds |
//! | [`encodings`] | what the encoder has made of them |
//! | [`metadata`] | what KV depends on by the model's metadata: the context's length, tokens behind |
//! | [`params`] | what a program that is no llama-server creates its contexts and models with |
//! | [`context`] | what is known of each context: its sequences, and what its KV depends on |
//! | [`conditions`] | the adapters that tokens were evaluated under |
//! | [`records`] | where that is kept, and which thread may touch it |
//! | [`calls`] | which calls the store acts on, and what puts a context right after an error |
//! | [`host`] | all of this as `crates/store/kv-engine` sees it, which decides how the engine is brought to what is loaded |
//! | [`index`] | the store itself: its tree, its folder, its writer |
//! | [`neighbours`] | other processes that use the same folder |
//! | [`elsewhere`] | what the folder does not have, and the remote may |
//! | [`content`] | digests of models, adapters and engines |
//! | [`surroundings`] | the engine's version, and flags, on which KV may depend |
//! | [`config`] | llama.cpp's own configuration, whose lines are flags |
//! | [`flow`] | rows that go from the files into the engine without a copy of the state in between |
//! | [`only_new`] | what is new of a sequence is copied out of the engine, and no more |
//! | [`rates`] | how long evaluating and copying take here |
//! | [`engine`] | a context of the engine, and the calls that are made of it |
//! | [`own_batch`] | batches that the store makes |
//! | [`announced`] | what is announced to routers of the store |
//! | [`figures`] | counters |
//! | [`working`] | whether the store works, and whether engines are at work |
//!
//! **Ahead.** All of a stored prompt is loaded at once, at the first batch, although the server asks for it
//! batch by batch: loading replaces the whole sequence, so loading for each batch would be quadratic. What
//! the engine then holds beyond the server's view is *ahead*. Evaluations that go on with the same tokens
//! leave them out; at a token that differs they are cut off. Every other call that could see them cuts
//! them off first.
//!
//! **Whose thread.** Everything here runs on the thread that called the engine, but for what the index's writer does with
//! files; and while a large state is loaded, others read ahead for that thread. What is known of a context has a lock of its own,
//! which no other thread takes ([`records`]).
//! The index has one that threads of ours hold for some ten microseconds at a time ([`announced`], [`neighbours`]), or for
//! longer if they lose the processor, which they get last. So a prompt waits for them a few milliseconds at most, a
//! generated token not at all ([`index::held`]); a call that does not get the index goes on as before its folder was read. A
//! server uses one context with one thread; in a program that uses several contexts at the same time, a prompt waits
//! while a state of another context is put together or taken apart.
//!
//! **After an error of ours** on any thread, each context is put right by its own next call: [`calls`].
//!
//! **If anything is not known** (a batch, a layout, a call, a failed load), tokens are evaluated as ever.
//! After a failed load the hook itself evaluates what the engine lost.

pub(crate) mod ahead;
mod announced;
pub(crate) mod bounded;
mod calls;
pub(crate) mod change;
mod conditions;
mod config;
pub(crate) mod content;
mod context;
mod elsewhere;
pub(crate) mod encodings;
pub(crate) mod engine;
pub(crate) mod evaluate;
pub(crate) mod figures;
pub(crate) mod flow;
pub(crate) mod hidden;
mod hidden_rows;
mod host;
mod index;
pub(crate) mod media;
mod metadata;
mod neighbours;
pub(crate) mod only_new;
pub(crate) mod outputs;
mod own_batch;
pub(crate) mod params;
pub(crate) mod purpose;
mod rates;
mod records;
pub(crate) mod save;
pub(crate) mod state;
mod surroundings;
mod waiting;
mod working;

use std::sync::atomic::Ordering;
use std::time::Duration;

use contextpilot_control::PrefixStore;
use contextpilot_kv_publisher::Stored;
use contextpilot_settings::StoreAt;

pub(crate) use self::engine::Context;
use self::index::StoreIndex;
pub(crate) use self::index::held::finish;
use self::index::held::{on_index, wait_for};
pub(crate) use self::records::FLUSH;
use self::working::works;
pub(crate) use self::working::{engage, is_on};

/// What `/stats` says of the store; `None`: none is asked for.
pub(crate) fn figures() -> Option<PrefixStore> {
    figures::all(content::being_read())
}

/// Opens the folder and starts the threads. Called once, when the server begins to load its model. The
/// folder is read on a thread of its own, and until that is done nothing is found. `routers`: what there is is announced to them.
///
/// # Errors
/// Why there is no store, as the rest of a message.
pub(crate) fn start(at: &StoreAt, routers: Option<Stored>, strict: bool) -> Result<(), String> {
    figures::set_folder(&at.folder);
    context::want_bounded(at.bounded);
    surroundings::begin();
    // On a thread of ours, which needs no guard.
    let ready = |index: StoreIndex| {
        on_index(|ours| *ours = Some(index));
        figures::FOLDER_READ.store(true, Ordering::Release);
    };
    let opened = StoreIndex::open(at, strict, ready, neighbours::follow);
    let opened = opened.and_then(|()| routers.map_or(Ok(()), announced::start));
    if let Err(why) = &opened {
        working::give_up();
        figures::FOLDER_LOST.store(true, Ordering::Release);
        figures::set_problem(figures::Kind::Start, why);
    }
    opened
}

pub(crate) use contextpilot_kv_store::worth::LEAST_GAINED;

/// What the store has of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    /// How many tokens would be loaded if the server had nothing of it, and the request named no adapter.
    pub(crate) tokens: usize,
    /// The context can go back to any position, so a part of what a slot holds is of use, too.
    pub(crate) goes_back: bool,
    /// How many of these tokens are kept on request, and until when, in nanoseconds since 1970.
    pub(crate) kept: Option<(usize, u64)>,
}

/// What the store has of a prompt. On a thread of ours.
pub(crate) fn beginning_of(tokens: &[i32]) -> Option<Beginning> {
    if !works() {
        return None;
    }
    let basis = records::oldest()?;
    let fingerprint = basis.fingerprint(&[])?;
    let goes_back = basis.goes_back();
    // No prompt has others; a chunk may.
    let of_vocabulary = tokens.iter().take_while(|token| **token >= 0).count();
    let tokens = &tokens[..of_vocabulary];
    // This thread also reports evictions. A prompt that is being loaded may have the index for a second, and they do not
    // wait for that.
    let mut index = wait_for(Duration::from_millis(10))?;
    // While the folder is read, this may find less than a prompt would: looking that up reads files.
    let index = index.as_mut()?;
    // No more is loaded than there are hidden states of, if the server needs these.
    let usable = match basis.fingerprint_of_hidden() {
        Some(of_rows) => index.length_of(&of_rows, tokens),
        None => tokens.len(),
    };
    let there = if goes_back {
        index.length_of(&fingerprint, &tokens[..usable])
    } else {
        // A state behind the last token, which is always evaluated, is of no use.
        let most = tokens.len().saturating_sub(1);
        index.last_state_in(&fingerprint, &tokens[..usable.min(most)])
    };
    let kept = index.kept_of(&fingerprint, &tokens[..there]);
    Some(Beginning {
        tokens: there,
        goes_back,
        kept,
    })
}
