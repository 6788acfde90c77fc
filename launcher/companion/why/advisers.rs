//! The last requests of a server, each with what would have helped it.

use contextpilot_client::Control;
use contextpilot_client::control::{Evaluated, Evaluation, Lost, Reason, RequestName, Timestamp};

use super::advice::{Advised, Case, Length, is_still_sent};
use crate::companion::adviser::{Adviser, Swap};
use crate::companion::connect::hook_says;

/// How far `--watch` looks back each time.
pub(super) const WATCHED: usize = 1000;

/// A request, and which of the adviser's requests it is.
pub(super) type Row = (Evaluated, Option<usize>);

/// The last requests, and what would have helped them.
pub(super) struct Advisers {
    /// The latest first.
    pub(super) latest: Vec<Row>,
    pub(super) adviser: Result<Adviser, String>,
}

impl Advisers {
    pub(super) fn ask(control: &Control) -> Result<Self, String> {
        let latest = control.latest(WATCHED);
        let latest = latest.map_err(|e| hook_says(control, &e))?.requests;
        let adviser = Adviser::of_server(control).map_err(|why| why.to_string());
        let places = match &adviser {
            Ok(adviser) => adviser.find(&latest),
            Err(_) => vec![None; latest.len()],
        };
        let mut latest: Vec<_> = latest.into_iter().zip(places).collect();
        if let Ok(adviser) = &adviser {
            for (evaluated, place) in &mut latest {
                let swap = place.and_then(|place| adviser.swap(place));
                if let Some(swap) = swap {
                    put_out(evaluated, swap);
                }
            }
        }
        Ok(Self { latest, adviser })
    }

    /// The request that had this id last.
    fn last_of(&self, id: &str) -> Option<&Row> {
        let mut latest = self.latest.iter();
        latest.find(|(evaluated, _)| evaluated.id.as_deref() == Some(id))
    }

    /// The evaluation of the request that had this id last, with what a router's swap took.
    pub(super) fn evaluation<'a>(&'a self, id: &str, known: &'a Evaluation) -> &'a Evaluation {
        self.last_of(id)
            .map_or(known, |(evaluated, _)| &evaluated.evaluation)
    }

    /// `row`: the request that it is of, if it is one of the latest.
    pub(super) fn advised(
        &self,
        evaluation: &Evaluation,
        row: Option<&Row>,
        worth: f64,
    ) -> Advised {
        let replayed = match (&self.adviser, row.and_then(|(_, place)| *place)) {
            (Ok(adviser), Some(place)) => Ok((adviser, place)),
            (Ok(_), None) => Err("it is none of the recent requests that the server keeps"),
            (Err(why), _) => Err(why.as_str()),
        };
        let is_still_sent = row.and_then(|(evaluated, _)| self.is_still_sent(evaluated));
        let case = Case {
            evaluation,
            replayed,
            is_still_sent: is_still_sent == Some(true),
        };
        case.advised(worth)
    }

    /// Whether a request still has what its prompt lacks of the earlier one. `None`: that is not known.
    fn is_still_sent(&self, evaluated: &Evaluated) -> Option<bool> {
        let diverged = evaluated.evaluation.diverged.as_ref()?;
        let name = diverged.request.as_ref()?;
        let is_earlier = |other: &Evaluated| match name {
            RequestName::Id(id) => other.number < evaluated.number && other.id.as_ref() == Some(id),
            RequestName::Number(number) => other.number == *number,
        };
        let mut latest = self.latest.iter().map(|(evaluated, _)| evaluated);
        let earlier = latest.find(|other| is_earlier(other))?;
        let [earlier, now] = [length(earlier)?, length(evaluated)?];
        Some(is_still_sent(earlier, now, diverged.deleted))
    }

    /// Of the request that had this id last.
    pub(super) fn advised_of(&self, id: &str, evaluation: &Evaluation, worth: f64) -> Advised {
        self.advised(evaluation, self.last_of(id), worth)
    }
}

/// `None`: it is no request for a chat.
fn length(evaluated: &Evaluated) -> Option<Length> {
    let sections = evaluated.sections?;
    Some(Length {
        bytes: sections.system + sections.tools + sections.messages,
        tokens: evaluated.evaluation.prompt_tokens,
    })
}

/// For the process that evaluated them, these tokens are new: the one before had them.
fn put_out(evaluated: &mut Evaluated, swap: Swap) {
    let Evaluation { causes, lost, .. } = &mut evaluated.evaluation;
    let new = swap.tokens.min(causes.new);
    let repeated = (swap.tokens - new).min(causes.repeated);
    let tokens = new + repeated;
    causes.new -= new;
    causes.repeated -= repeated;
    causes.evicted += tokens;
    if lost.as_ref().is_some_and(|lost| lost.tokens >= tokens) {
        return;
    }
    let before = u64::try_from(swap.before.as_millis()).unwrap_or(u64::MAX);
    let unix_ms = evaluated.at.unix_ms().saturating_sub(before);
    *lost = Some(Lost {
        when: Timestamp::from_unix_ms(unix_ms),
        reason: Reason::ContextFreed,
        by: None,
        through: Some(swap.through),
        tokens,
        chosen_by: None,
        similarity: None,
        kept: None,
    });
}
