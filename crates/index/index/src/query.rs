//! Requests to the index.

use contextpilot_order::{BatchOptions, Linkage, OnlineOptions};
use serde_json::{Value, json};

use crate::context::Context;
use crate::numbering::Numbers;
use crate::validate::{Members, not_a_list, not_allowed, too_many};
use crate::{Endpoint, IndexAnswer, Limits, Mode};

/// A request that can be answered.
#[derive(Debug)]
pub enum Query {
    /// A request without a body.
    Plain(Endpoint),
    /// `/reorder`, `/build`, `/schedule`.
    Reorder(Box<Reorder>),
    /// `/deduplicate`.
    Deduplicate(Box<Reorder>),
    /// `/evict`: ids.
    Evict(Vec<String>),
    /// `/search`.
    Search(Context),
    /// `/insert`: a context and its tokens.
    Insert(Context, u64),
}

/// The body of a `/reorder`.
#[derive(Debug)]
pub struct Reorder {
    pub(crate) contexts: Vec<Context>,
    /// Their blocks, in the numbers of this call.
    pub(crate) numbers: Numbers,
    pub(crate) batch: BatchOptions,
    pub(crate) online: OnlineOptions,
    pub(crate) order: Wanted,
    pub(crate) note: bool,
    /// `/schedule`.
    pub(crate) stateless: bool,
    pub(crate) tokens: u64,
    pub(crate) deduplicate: bool,
    pub(crate) parents: Vec<Option<String>>,
    pub(crate) hint: Option<String>,
}

/// Whether an order is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Auto,
    /// Batches are clustered by distances, as in ContextPilot 0.5.0.
    Clustered,
    /// Contexts are tracked, and stay as they are.
    None,
}

impl Query {
    /// Reads a request.
    ///
    /// # Errors
    /// 422 for what is not understood, 413 beyond the limits.
    pub fn parse(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<Self, IndexAnswer> {
        match endpoint {
            Endpoint::Reorder
            | Endpoint::Schedule
            | Endpoint::Deduplicate
            | Endpoint::Evict
            | Endpoint::Search
            | Endpoint::Insert => {}
            plain => return Ok(Self::Plain(plain)),
        }
        let mut body = json(body)?;
        let members = Members::from_body(&body).map_err(|answer| *answer)?;
        let mut query = Self::of_members(endpoint, &members, limits).map_err(|answer| *answer)?;
        match &mut query {
            Self::Reorder(reorder) | Self::Deduplicate(reorder) => {
                let lists = body["contexts"].as_array_mut().into_iter().flatten();
                for (context, list) in reorder.contexts.iter_mut().zip(lists) {
                    context.take(list);
                }
                reorder.numbers = Numbers::new(&reorder.contexts);
            }
            Self::Search(context) | Self::Insert(context, _) => context.take(&mut body["context"]),
            Self::Evict(_) | Self::Plain(_) => {}
        }
        Ok(query)
    }

    fn of_members(
        endpoint: Endpoint,
        members: &Members<'_>,
        limits: &Limits,
    ) -> Result<Self, Box<IndexAnswer>> {
        let context = || Context::parse(members.list("context")?, &["context".into()], limits);
        Ok(match endpoint {
            Endpoint::Evict => {
                let given = members.list("request_ids")?.len();
                if given > limits.ids_in_call {
                    return Err(too_many("ids in one call", given, limits.ids_in_call));
                }
                Self::Evict(members.strings("request_ids")?)
            }
            Endpoint::Search => Self::Search(context()?),
            Endpoint::Insert => Self::Insert(context()?, members.count("total_tokens", 0)?),
            Endpoint::Deduplicate => Self::Deduplicate(Box::new(reorder(members, true, limits)?)),
            endpoint => {
                let stateless = endpoint == Endpoint::Schedule;
                Self::Reorder(Box::new(reorder(members, stateless, limits)?))
            }
        })
    }

    /// Bytes that it takes to work on this and to answer, beside [`weight`](crate::weight()) of the body.
    #[must_use]
    pub fn more_weight(&self, mode: Mode) -> usize {
        match self {
            Self::Reorder(reorder) => {
                let alone = mode == Mode::Stateless || reorder.stateless;
                let clustered = alone || reorder.order == Wanted::Clustered;
                let hints = if reorder.deduplicate {
                    reorder.hints()
                } else {
                    0
                };
                hints + if clustered { reorder.distances() } else { 0 }
            }
            Self::Deduplicate(reorder) => reorder.hints(),
            _ => 0,
        }
    }
}

impl Reorder {
    /// Bytes of the distances of contexts.
    fn distances(&self) -> usize {
        let contexts = self.contexts.len();
        4 * contexts * contexts
    }

    /// Bytes of hints, in the results and in the answer. What replaces a placeholder is at most three times as
    /// long.
    fn hints(&self) -> usize {
        let hint = self.hint.as_ref().map_or(100, String::len);
        let any = self.parents.iter().any(Option::is_some);
        if any { 6 * hint * self.blocks() } else { 0 }
    }

    /// Documents in all contexts.
    pub(crate) fn blocks(&self) -> usize {
        let contexts = self.contexts.iter();
        contexts.map(|context| context.keys.len()).sum()
    }

    pub(crate) fn is_small(&self) -> bool {
        self.contexts.len() == 1 && self.blocks() <= 64
    }
}

fn json(body: &[u8]) -> Result<Value, IndexAnswer> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("JSON decode error: {error}");
        IndexAnswer::invalid(
            "json_invalid",
            vec![json!(error.column())],
            &message,
            &json!({}),
        )
    })
}

fn reorder(
    members: &Members<'_>,
    stateless: bool,
    limits: &Limits,
) -> Result<Reorder, Box<IndexAnswer>> {
    let lists = members.list("contexts")?;
    if lists.len() > limits.contexts {
        return Err(too_many(
            "contexts in one call",
            lists.len(),
            limits.contexts,
        ));
    }
    let mut contexts = Vec::with_capacity(lists.len());
    let mut blocks = 0;
    for (at, list) in lists.iter().enumerate() {
        let path = [json!("contexts"), json!(at)];
        let Value::Array(list) = list else {
            return Err(not_a_list(path.to_vec(), list));
        };
        blocks += list.len();
        if blocks > limits.blocks_in_call {
            return Err(too_many(
                "documents in one call",
                blocks,
                limits.blocks_in_call,
            ));
        }
        contexts.push(Context::parse(list, &path, limits)?);
    }
    let method = members.string("linkage_method")?.unwrap_or("average");
    let linkage = Linkage::of_name(method).ok_or_else(|| {
        let message = "Invalid method: give average, complete, single or weighted";
        not_allowed("linkage_method", message, method)
    })?;
    let order = match members.string("order")?.unwrap_or("auto") {
        // ContextPilot's client always sends the default method, so another one is meant.
        "auto" if linkage == Linkage::Average => Wanted::Auto,
        "auto" | "clustered" => Wanted::Clustered,
        "none" => Wanted::None,
        other => {
            let message = "Input should be \"auto\", \"clustered\" or \"none\"";
            return Err(not_allowed("order", message, other));
        }
    };
    let hint = members.string("hint_template")?;
    if hint.is_some_and(|hint| hint.len() > limits.hint) {
        let given = hint.map_or(0, str::len);
        return Err(too_many("bytes of \"hint_template\"", given, limits.hint));
    }
    members.flag("use_gpu")?; // Checked as there; the work is done by the CPU.
    Ok(Reorder {
        numbers: Numbers::default(),
        contexts,
        batch: BatchOptions {
            alpha: members.number("alpha", 0.001)?,
            linkage,
        },
        online: OnlineOptions {
            keep_first: members
                .count("keep_first", 0)?
                .try_into()
                .unwrap_or(usize::MAX),
            stable: members.flag("stable")?,
        },
        order,
        note: members.flag("importance_note")?,
        stateless,
        tokens: members.count("initial_tokens_per_context", 0)?,
        deduplicate: members.flag("deduplicate")?,
        parents: members.optional_strings("parent_request_ids")?,
        hint: hint.map(str::to_owned),
    })
}
