//! `stats`: prints the hook's figures.

use clap::Args;
use contextpilot_client::control::{
    Engine, HostCache, KvEvents, Losses, Mode, ModelState, PrefixStore, ProgramContext, Reason,
    Recording, Requests, ReuseOver, Stats,
};

use super::connect::ControlAt;
use super::show::{Visible, bytes, count, counted, percent, print_as, seconds_of, span};
use super::store::remote_text;
use super::table::Table;
use super::under_way;
use super::words::reason;

/// Print what is in the cache, in numbers
///
/// Asks the hook of a server that was started with CONTEXTPILOT_LISTEN.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama stats --json | jq .reuse.last_minute.hit_ratio")]
pub(super) struct StatsOptions {
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON, as GET /stats answers
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &StatsOptions) -> Result<(), String> {
    let (_, stats) = options.control.stats()?;
    print_as(options.json, &stats, || text(&stats))
}

/// The figures as lines of text.
pub(super) fn text(stats: &Stats) -> String {
    let mut lines = vec![heading(stats)];
    if !stats.listening.is_empty() {
        lines.push(line("listening", &stats.listening.join(", ")));
    }
    let engine = &stats.engine;
    lines.push(line("attached", &attached(engine)));
    if engine.not_followed.is_none() {
        for missing in &engine.missing {
            lines.push(line("missing", missing));
        }
    }
    lines.push(String::new());
    if engine.not_followed.is_none() || !stats.slots.is_empty() {
        lines.push(slots(stats));
    }
    let evaluated = under_way::prompts(stats);
    lines.extend(
        evaluated.map(|prompt| line(&format!("slot {}", prompt.0.slot), &under_way::line(prompt))),
    );
    lines.extend(contexts(&stats.contexts));
    lines.push(line("host cache", &host(&stats.host)));
    let per_token = match stats.kv.bytes_per_token {
        Some(size) => format!(", {} each", bytes(size.round() as u64)),
        None => String::new(),
    };
    lines.push(line(
        "resident",
        &format!(
            "{}{per_token}; {} shared; {}",
            counted(stats.tokens.resident, "distinct token"),
            count(stats.tokens.shared),
            counted(stats.tokens.live_requests, "live request")
        ),
    ));
    lines.push(line("requests", &requests(&stats.requests)));
    lines.push(line("reuse", &reuse(&stats.reuse.total)));
    lines.push(line("last minute", &reuse(&stats.reuse.last_minute)));
    lines.push(line("ids evicted", &evictions(stats)));
    lines.push(line("index", &index(stats)));
    if let Some(store) = &stats.store {
        lines.push(line("store", &prefix_store(store)));
        if let Some(remote) = &store.remote {
            lines.push(line("store remote", &remote_text(remote)));
        }
    }
    if let Some(kept) = stats.kept {
        let text = format!(
            "{} in {}",
            count(kept.tokens),
            counted(kept.prompts, "prompt")
        );
        lines.push(line("kept tokens", &text));
    }
    if let Some(refused) = stats.control.map(|control| control.refused)
        && refused > 0
    {
        let refused = match refused {
            1 => "1 connection or request refused".to_owned(),
            many => format!("{} connections and requests refused", count(many)),
        };
        lines.push(line("endpoint", &refused));
    }
    if let Some(events) = &stats.kv_events {
        lines.push(line("kv events", &kv_events(events)));
    }
    if let Some(recording) = &stats.recording {
        lines.push(line("recording", &recorded(recording)));
    }
    lines.push(line("lost", &losses(&stats.losses)));
    lines.join("\n") + "\n"
}

/// What the hook sees of the engine, as far as there is evidence.
pub(super) fn attached(engine: &Engine) -> String {
    match (&engine.not_followed, engine.seen) {
        (Some(why), _) => format!("not followed: {}", Visible(why)),
        (None, Some(seen)) if !seen.evaluated => {
            format!("{}; nothing evaluated yet", engine.attached.join(", "))
        }
        _ => engine.attached.join(", "),
    }
}

fn recorded(recording: &Recording) -> String {
    let Recording {
        file,
        bytes: size,
        ended,
    } = recording;
    let ended = ended.as_ref().map(|why| format!("; it has ended: {why}"));
    format!(
        "{}, {}{}",
        Visible(file),
        bytes(*size),
        ended.unwrap_or_default()
    )
}

fn line(name: &str, what: &str) -> String {
    format!("{name:<12} {what}")
}

const NO_SLOT: &str = "No slot has been used yet";
const SLEEPS: &str = "llama-server sleeps, and its slots are gone: the next prompt wakes it";

/// What is so while there are no slots to show.
pub(super) fn no_slot(stats: &Stats) -> String {
    match stats.model_state {
        ModelState::Asleep if stats.engine.not_followed.is_none() => SLEEPS.to_owned(),
        _ => under_way::nothing_yet(stats, NO_SLOT),
    }
}

/// Engine, model and mode in one line.
pub(super) fn heading(stats: &Stats) -> String {
    let engine = &stats.engine;
    let version = engine.version.as_deref().unwrap_or("of unknown version");
    let build = match &engine.build {
        Some(build) => format!(" ({build})"),
        None => String::new(),
    };
    let model = match &stats.model {
        _ if stats.contexts.len() > 1 => format!(", {} contexts", stats.contexts.len()),
        Some(model) => format!(", {}", Visible(&model.name)),
        None => String::new(),
    };
    let mode = match stats.mode {
        Mode::Reporting => "reporting",
        Mode::Observing => "observing",
        Mode::Stopped => "STOPPED",
        Mode::Other => "in an unknown mode",
    };
    let is_silent = engine
        .seen
        .is_some_and(|seen| seen.loaded && !seen.evaluated);
    let state = match stats.model_state {
        _ if engine.not_followed.is_some() => ", NOT FOLLOWED",
        ModelState::Loading => ", loading the model",
        _ if is_silent => ", nothing evaluated yet",
        ModelState::Asleep => ", asleep",
        ModelState::Loaded | ModelState::Other => "",
    };
    let up = span(seconds_of(stats.uptime_seconds));
    format!(
        "{} {version}{build}{model}, up {up}, hook {} {mode}{state}",
        engine.name, stats.hook_version
    )
}

fn slots(stats: &Stats) -> String {
    if stats.slots.is_empty() {
        return no_slot(stats) + "\n";
    }
    let mut table = Table::new(
        &["slot", "", "tokens", "capacity", "bytes", "ids", "last"],
        &[1, 6],
    );
    for slot in &stats.slots {
        table.row(vec![
            slot.slot.to_string(),
            if slot.busy { "busy" } else { "" }.to_owned(),
            count(slot.tokens.into()),
            slot.capacity.map_or("?".to_owned(), |c| count(c.into())),
            slot.bytes.map_or("?".to_owned(), bytes),
            count(slot.requests_total),
            Visible(slot.last_request.as_deref().unwrap_or("–")).to_string(),
        ]);
    }
    table.text()
}

/// A line for each context of a program, if there are several.
fn contexts(contexts: &[ProgramContext]) -> Vec<String> {
    let several = contexts.iter().filter(|_| contexts.len() > 1);
    let described = several.map(|context| {
        let model = Visible(context.model.as_deref().unwrap_or("unknown model")).to_string();
        let reused = reuse(&context.reuse);
        line(
            &format!("context {}", context.context),
            &format!("{model}: {reused}"),
        )
    });
    described.collect()
}

/// The host prompt cache in words.
pub(super) fn host(host: &HostCache) -> String {
    let limit = match host.limit_bytes {
        Some(0) => return "off".to_owned(),
        Some(limit) => format!(" of {}", bytes(limit)),
        None if host.limit_from == "unlimited" => " without limit".to_owned(),
        None if host.limit_from == "off" => return "off".to_owned(),
        None if host.limit_from == "unknown" && host.entries == 0 => {
            return "none in this server, or none that can be followed".to_owned();
        }
        None => String::new(),
    };
    let checkpoints = match host.checkpoints {
        0 => String::new(),
        number => format!(
            "; {}, {}",
            counted(number, "checkpoint"),
            bytes(host.checkpoint_bytes)
        ),
    };
    let entries = match host.entries {
        1 => "1 entry".to_owned(),
        number => format!("{} entries", count(number)),
    };
    format!(
        "{entries}, {}, {}{limit}{checkpoints}",
        counted(host.tokens, "token"),
        bytes(host.bytes)
    )
}

/// The requests by their ids; the parts add up to those that were seen.
fn requests(requests: &Requests) -> String {
    let refused = match requests.refused_id {
        0 => String::new(),
        refused => format!(
            ", {} with an id that cannot be used (an id is a string of 1 to 512 bytes)",
            count(refused)
        ),
    };
    format!(
        "{} seen, {} with an id, {} without{refused}; {} finished",
        count(requests.seen),
        count(requests.with_id),
        count(requests.without_id),
        count(requests.finished)
    )
}

fn reuse(reuse: &ReuseOver) -> String {
    format!(
        "{} of prompt tokens ({} reused, {} evaluated; prompts: {})",
        percent(reuse.hit_ratio),
        count(reuse.reused),
        count(reuse.evaluated),
        count(reuse.prompts)
    )
}

/// The total, and by reason, the commonest first.
pub(super) fn evictions(stats: &Stats) -> String {
    // These never were in the cache, and so are no evictions.
    let never = stats.evictions.get(&Reason::NeverCached).copied();
    let mut by: Vec<_> = stats.evictions.iter().collect();
    by.retain(|&(reason, _)| *reason != Reason::NeverCached);
    by.sort_by_key(|&(reason, number)| (std::cmp::Reverse(*number), *reason));
    let numbers = by.iter().map(|(_, number)| **number);
    let total = numbers.fold(0, u64::saturating_add);
    let parts: Vec<String> = by
        .iter()
        .map(|(why, number)| format!("{} {}", reason(**why), count(**number)))
        .collect();
    let mut text = if parts.is_empty() {
        "none".to_owned()
    } else {
        format!("{}: {}", count(total), parts.join(", "))
    };
    if let Some(never) = never.filter(|&never| never > 0) {
        text += &format!("; {} never cached", count(never));
    }
    text
}

/// The state of delivery to the index, in words.
pub(super) fn index(stats: &Stats) -> String {
    let delivery = match (&stats.delivery, &stats.index_in_front) {
        (Some(delivery), _) => delivery,
        (None, Some(index)) => {
            return format!(
                "{} stands in front, and asks what is cached",
                Visible(index)
            );
        }
        (None, None) => return "none is told (CONTEXTPILOT_INDEX_URL is not set)".to_owned(),
    };
    let mut parts = vec![format!("{} told", counted(delivery.sent, "id"))];
    for (number, what) in [
        (
            delivery.waiting.saturating_add(delivery.in_flight),
            "waiting",
        ),
        (delivery.set_aside, "of them refused when sent alone"),
        (delivery.not_needed, "not needed"),
        (delivery.rejected, "refused"),
        (delivery.dropped, "dropped"),
    ] {
        if number > 0 {
            parts.push(format!("{} {what}", count(number)));
        }
    }
    if let (true, Some(error)) = (delivery.failures_in_a_row > 0, &delivery.last_error) {
        parts.push(format!("FAILING: {}", Visible(error)));
    }
    format!("{}: {}", delivery.endpoint, parts.join(", "))
}

/// The prefix store, in words.
pub(super) fn prefix_store(store: &PrefixStore) -> String {
    if store.lost {
        let why = store
            .problem
            .as_deref()
            .unwrap_or("its folder cannot be used");
        return format!("none, PROBLEM: {}", Visible(why));
    }
    let mut parts = vec![
        format!("{} of {}", bytes(store.bytes), bytes(store.limit_bytes)),
        format!("{} loaded", counted(store.loaded_tokens, "token")),
        format!("{} stored", count(store.saved_tokens)),
    ];
    if store.kept.prompts > 0 {
        let prompts = counted(store.kept.prompts, "prompt");
        parts.push(format!("{prompts} kept ({})", bytes(store.kept.bytes)));
    }
    parts.extend(under_way::not_in_use(store));
    for (number, what, how) in [
        (
            store.encodings_loaded,
            "image",
            "loaded in place of encoding",
        ),
        (store.fetched_chunks, "chunk", "fetched for a prompt"),
        (store.failed_loads, "state", "refused by the engine"),
        (store.lost_chunks, "chunk", "not kept"),
    ] {
        if number > 0 {
            parts.push(format!("{} {how}", counted(number, what)));
        }
    }
    let refused = store.refusals().map(|(why, times)| match times {
        0 | 1 => format!("REFUSED: {why}"),
        _ => format!("REFUSED: {why} ({times} times)"),
    });
    parts.extend(refused);
    if let Some(problem) = &store.problem {
        parts.push(format!("PROBLEM: {}", Visible(problem)));
    }
    format!("{}; {}", parts.join(", "), Visible(&store.folder))
}

/// What is published for routers, in words.
pub(super) fn kv_events(events: &KvEvents) -> String {
    let mut parts = vec![
        format!("{} in slots", counted(events.gpu_blocks, "block")),
        format!("{} in the host cache", count(events.cpu_blocks)),
    ];
    if events.disk_blocks > 0 {
        parts.push(format!("{} in the store", count(events.disk_blocks)));
    }
    parts.push(counted(events.subscribers, "subscriber"));
    for (number, singular, plural) in [
        (events.batches, "batch", "batches"),
        (events.replays, "replay", "replays"),
        (events.dropped, "dropped", "dropped"),
        (events.started_over, "new beginning", "new beginnings"),
        (events.refused, "connection refused", "connections refused"),
        (events.displaced, "displaced", "displaced"),
    ] {
        parts.extend(some(number, singular, plural));
    }
    if let Some(problem) = &events.problem {
        parts.push(format!("PROBLEM: {}", Visible(problem)));
    }
    let publish = events.publish.as_deref().unwrap_or("not published");
    format!("{publish}: {}", parts.join(", "))
}

/// A number of things in words; `None`: there are none.
fn some(number: u64, singular: &str, plural: &str) -> Option<String> {
    match number {
        0 => None,
        1 => Some(format!("1 {singular}")),
        _ => Some(format!("{} {plural}", count(number))),
    }
}

fn losses(losses: &Losses) -> String {
    let parts: Vec<String> = [
        (losses.events, "event", "events"),
        (losses.gaps, "new beginning", "new beginnings"),
        (losses.ids, "id", "ids"),
        (
            losses.untracked_batches,
            "batch not tracked",
            "batches not tracked",
        ),
        (
            losses.untracked_buffers,
            "saved sequence not tracked",
            "saved sequences not tracked",
        ),
        (
            losses.unreadable_connections,
            "connection not readable",
            "connections not readable",
        ),
        (losses.log_lines, "line of the log", "lines of the log"),
        (
            losses.claims,
            "claim that was withdrawn",
            "claims that were withdrawn",
        ),
    ]
    .into_iter()
    .filter_map(|(number, singular, plural)| some(number, singular, plural))
    .collect();
    if parts.is_empty() {
        "nothing".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_whose_folder_cannot_be_used_is_not_said_to_be_read() {
        let store = PrefixStore {
            lost: true,
            problem: Some("\"/proc/x\" cannot be used".to_owned()),
            ..PrefixStore::default()
        };
        let none = "none, PROBLEM: \"/proc/x\" cannot be used";
        assert_eq!(prefix_store(&store), none);
        let reading = PrefixStore::default();
        assert!(prefix_store(&reading).contains("its folder is still being read"));
    }

    #[test]
    fn a_server_without_a_host_cache_is_not_said_to_have_an_empty_one() {
        let of = |limit_from: &str, limit_bytes| HostCache {
            limit_from: limit_from.to_owned(),
            limit_bytes,
            ..HostCache::default()
        };
        assert!(host(&of("unknown", None)).starts_with("none in this server"));
        assert_eq!(host(&of("off", Some(0))), "off");
        let empty = "0 entries, 0 tokens, 0 B of 8.0 GiB";
        assert_eq!(host(&of("default of 0.7", Some(8 << 30))), empty);
        let host_cache = HostCache {
            entries: 1,
            ..of("default of 0.7", Some(8 << 30))
        };
        assert_eq!(host(&host_cache), empty.replace("0 entries", "1 entry"));
    }
}
