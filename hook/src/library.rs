//! Implements what the worker needs of the hook.

use std::ffi::OsString;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use contextpilot_control::{
    Engine, KeptBeginning, KeptTokens, Losses, ModelState, PrefixStore, Requests, Timestamp,
};
use contextpilot_journal::Recent;
use contextpilot_kept_tokens::{AnswerId, Answers};
use contextpilot_observer::{Now, Stored};
use contextpilot_residency::{Arrival, BufferId, RequestId, Token};
use contextpilot_server_flags::ServerFlags;
use contextpilot_worker::{Item, Library, Lost, Rest, Source, Withdrawn};

use crate::attach::claims::{self, Claim};
use crate::attach::{self, Attached, original};
use crate::base::status::STATUS;
use crate::base::{clock, environment, faults, guard, log, mode};
use crate::capture::{contexts, host_buffers, kept, listeners, model, recent, refused_ids};
use crate::channel::{self, Channel, Inbox};
use crate::store;

/// This library, attached to the host.
pub(crate) struct HookLibrary(pub(crate) Attached);

impl Library for HookLibrary {
    fn enter_thread(&self) {
        guard::enter_for_life();
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        log::line(line);
    }

    fn now(&self) -> Now {
        clock::now()
    }

    fn nudge(&self) {
        channel::nudge();
    }

    fn is_running(&self) -> bool {
        mode::is_running()
    }

    fn break_down(&self) {
        mode::disable_after_panic();
    }

    fn place_of_panic(&self) -> String {
        mode::place_of_panic()
    }

    fn engine(&self) -> Engine {
        self.0.describe()
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        environment::variable(name)
    }

    fn flags(&self) -> &ServerFlags {
        attach::flags()
    }

    fn sees_host_cache(&self) -> bool {
        self.0.sees_host_cache()
    }

    fn review_claims(&self) -> Option<Withdrawn> {
        attach::say_evaluated(store::is_on());
        while let Some(why) = refused_ids::newly_met() {
            log::line(format_args!(
                "The id of a request cannot be used ({why}), so its eviction is not reported: {}. This is said once; \
                 contextpilot-llama stats counts such requests",
                why.remedy()
            ));
        }
        let withdrawn = claims::review(host_buffers::seen())?;
        let lost = match withdrawn.claim {
            Claim::HostCache => {
                Lost::Buffers(host_buffers::refuse().into_iter().map(BufferId).collect())
            }
            Claim::KvCache | Claim::Requests => Lost::Everything,
        };
        let message = withdrawn.to_string();
        Some(Withdrawn { message, lost })
    }

    fn model_changes(&self) -> usize {
        contexts::changes()
    }

    fn model_settles(&self) -> Option<Duration> {
        model::is_there().then_some(model::SILENCE)
    }

    fn settle_model(&self) {
        model::settle();
    }

    fn model_state(&self) -> ModelState {
        match model::state() {
            // A program's model is loaded when there is a context, whether it is seen to be used or not.
            ModelState::Loading if attach::is_embedded() && claims::had_context() => {
                ModelState::Loaded
            }
            state => state,
        }
    }

    fn listening(&self) -> Vec<String> {
        listeners::now(original::called::SSL_accept.ever() || attach::flags().tls())
    }

    fn requests(&self) -> Requests {
        let (with_id, without_id) = (STATUS.with_id.get(), STATUS.without_id.get());
        let refused_id = STATUS.refused_id.get();
        Requests {
            seen: with_id + without_id + refused_id,
            with_id,
            without_id,
            refused_id,
            finished: 0,
        }
    }

    fn losses(&self) -> Losses {
        Losses {
            events: STATUS.events_lost.get(),
            gaps: STATUS.gaps.get(),
            ids: STATUS.ids_lost.get(),
            untracked_batches: STATUS.untracked_batches.get(),
            untracked_buffers: STATUS.untracked_buffers.get(),
            unreadable_connections: STATUS.unreadable_connections.get(),
            log_lines: STATUS.log_lines_lost.get(),
            claims: claims::count_withdrawn(),
        }
    }

    fn store(&self) -> Option<PrefixStore> {
        store::figures()
    }

    fn has_store(&self) -> bool {
        store::is_on()
    }

    fn store_keeps(&self) -> bool {
        store::figures::is_any_kept()
    }

    fn stored(&self, tokens: &[Token]) -> Option<Stored> {
        let found = store::beginning_of(tokens)?;
        Some(Stored {
            tokens: found.tokens as u64,
            least: store::LEAST_GAINED as u64,
            whole: !found.goes_back,
            kept: found.kept.map(|(tokens, until)| KeptBeginning {
                tokens: tokens as u64,
                until: Timestamp::from_unix_ms(until / 1_000_000),
            }),
        })
    }

    fn kept(&self) -> Option<KeptTokens> {
        kept::are_engaged().then(|| KeptTokens {
            prompts: STATUS.kept_prompts.get(),
            tokens: STATUS.kept_tokens.get(),
        })
    }

    fn keep_answer(&self, answer: AnswerId) {
        kept::keep_answer(answer);
    }

    fn answers(&self) -> Option<&'static Mutex<Answers>> {
        kept::answers()
    }

    fn note_turn(&self) {
        kept::note_turn();
    }

    fn count_gap(&self) {
        STATUS.gaps.add(1);
    }

    fn count_lost_log_line(&self) {
        STATUS.log_lines_lost.add(1);
    }

    fn keep_recent(&self, recent: Recent) {
        recent::use_for_life(recent);
    }

    fn piece(&self, token: Token) -> Option<Vec<u8>> {
        contexts::piece(token)
    }

    fn before_turn(&self) {
        faults::stall();
    }

    fn before_event(&self) {
        faults::at_event();
    }
}

/// The worker's end of the channel.
pub(crate) struct Events {
    channel: &'static Channel,
    inbox: Inbox,
    /// The channel knows which thread to wake.
    attends: bool,
}

impl Events {
    /// For the one worker. `None` if it was taken before.
    pub(crate) fn take() -> Option<Self> {
        let channel = channel::get();
        let inbox = channel.take_inbox()?;
        Some(Self {
            channel,
            inbox,
            attends: false,
        })
    }
}

impl Source for Events {
    fn next(&mut self) -> Option<Item> {
        if !self.attends {
            self.channel.attend();
            self.attends = true;
        }
        self.channel.next(&mut self.inbox)
    }

    fn close_gap(&mut self) -> bool {
        self.channel.close_gap()
    }

    fn stranded(&mut self) -> Option<(Arrival, RequestId)> {
        self.inbox.stranded()
    }

    fn rest(&mut self, rest: Rest) {
        self.channel.rest(&mut self.inbox, rest);
    }
}
