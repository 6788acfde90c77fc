//! Two accounts of a server: by our reader, and by the server itself.

use std::collections::BTreeMap;

use contextpilot_server_flags::{Address, Generation, ServerFlags};

use crate::server::Said;

/// What is said of each thing.
pub(crate) type Account = BTreeMap<&'static str, String>;

/// What our reader says. Some things depend on more than flags: `said` has the size of the context, and
/// whether a slot was filled.
pub(crate) fn by_reader(flags: &ServerFlags, said: &Said) -> Account {
    let context = number(&said.log, "llama_context: n_ctx ").unwrap_or(u32::MAX);
    let on = |on: bool| if on { "on" } else { "off" }.to_owned();
    let mut account = Account::from([
        ("slots", flags.slots().to_string()),
        ("unified", on(flags.kv_unified())),
        // A batch is at most as large as the context.
        ("batch", flags.batch_size().min(context).to_string()),
        ("ubatch", flags.ubatch_size().min(context).to_string()),
        ("whole window", on(flags.swa_full())),
        ("addresses", addresses(flags)),
    ]);
    if let Some(mib) = flags.cache_ram() {
        let cache = match mib {
            0 => "off".to_owned(),
            ..0 => "no limit".to_owned(),
            mib => format!("{mib} MiB"),
        };
        account.insert("host prompt cache", cache);
        account.insert("idle slots", on(mib != 0 && flags.cache_idle_slots()));
        let checkpoints = match flags.ctx_checkpoints() {
            0 => "off".to_owned(),
            most => format!("{most}, {} apart", flags.checkpoint_min_step()),
        };
        account.insert("checkpoints", checkpoints);
    }
    if said.models.is_some() {
        let name = flags.model().map(|model| model.name);
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        account.insert("name", name);
        account.insert("cache reuse", flags.cache_reuse().to_string());
        let similarity = flags.slot_prompt_similarity();
        account.insert("similarity", format!("{similarity:.3}"));
        account.insert("suffix first", on(flags.spm_infill()));
    }
    if said.shifted.is_some() {
        account.insert("context shift", on(flags.context_shift()));
    }
    account
}

fn addresses(flags: &ServerFlags) -> String {
    let addresses = flags.addresses();
    let texts = addresses.iter().map(|address| match address {
        Address::Unix(path) => format!("unix://{}", path.display()),
        Address::Tcp(host, 0) => format!("http://{}", host.to_string_lossy()),
        Address::Tcp(host, port) => format!("http://{}:{port}", host.to_string_lossy()),
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// What the server says.
pub(crate) fn by_server(said: &Said, generation: Generation) -> Account {
    let log = &*said.log;
    let is_old = generation == Generation::Of2025;
    let on = |on: bool| if on { "on" } else { "off" }.to_owned();
    let mut account = Account::new();
    let mut note = |what, value: Option<String>| {
        account.extend(value.map(|value| (what, value)));
    };
    let text = |number: u32| number.to_string();
    note("slots", number(log, "n_slots =").map(text));
    note("batch", number(log, "llama_context: n_batch ").map(text));
    note("ubatch", number(log, "llama_context: n_ubatch ").map(text));
    let unified = after(log, "llama_context: kv_unified ");
    let unified = unified.map(|rest| on(rest.trim_start_matches([' ', '=']).starts_with("true")));
    note("unified", unified);
    note("addresses", Some(listening(said)));
    // An old server says nothing if the model has no window.
    if !is_old || log.contains("iswa") {
        let whole = ["swa_full is not supported", "using full-size SWA cache"];
        let whole = whole.iter().any(|words| log.contains(words));
        note("whole window", Some(on(whole)));
    }
    if log.contains("prompt cache is") {
        let limit = after(log, "prompt cache is enabled, size limit: ");
        let limit = limit.map_or("off", |rest| rest.lines().next().unwrap_or_default());
        note("host prompt cache", Some(limit.to_owned()));
        let idle = log.contains("idle slots will be saved");
        note("idle slots", Some(on(idle)));
    }
    if let Some(rest) = after(log, "context checkpoints enabled, max = ") {
        let line = rest.lines().next().unwrap_or_default();
        let checkpoints = line.replace(", min spacing = ", ", ") + " apart";
        note("checkpoints", Some(checkpoints));
    } else if log.contains("context checkpoints disabled") {
        note("checkpoints", Some("off".to_owned()));
    }
    if let Some(models) = &said.models {
        let name = models["data"][0]["id"].as_str();
        note("name", name.map(str::to_owned));
        let least = number(log, "trying to reuse chunks with size >");
        note("cache reuse", Some(least.unwrap_or(0).to_string()));
        // An old server says only that a slot was similar enough.
        let similarity = after(log, "checking sim = ").and_then(|rest| after(rest, " > "));
        let similarity = similarity.and_then(|rest| rest.split_whitespace().next());
        let similarity = similarity.unwrap_or("0.000").to_owned();
        note("similarity", Some(similarity).filter(|_| !is_old));
    }
    let suffix_first = said.infill.as_ref().and_then(|prompt| {
        let (prefix, suffix) = (prompt.find("PREFIX")?, prompt.find("SUFFIX")?);
        Some(on(suffix < prefix))
    });
    note("suffix first", suffix_first);
    note("context shift", said.shifted.map(on));
    account
}

fn listening(said: &Said) -> String {
    let urls = said.log.split("listening on ").skip(1);
    let urls = urls.filter_map(|rest| rest.split_whitespace().next());
    let urls = urls.map(|url| match url.rsplit_once(':') {
        Some((host, _)) if said.any_port && url.starts_with("http") => host,
        _ => url,
    });
    urls.collect::<Vec<_>>().join(" ")
}

fn after<'a>(log: &'a str, words: &str) -> Option<&'a str> {
    log.split_once(words).map(|(_, rest)| rest)
}

/// The number that follows these words, the last time they stand in the log.
fn number(log: &str, words: &str) -> Option<u32> {
    let (_, rest) = log.rsplit_once(words)?;
    let rest = rest.trim_start_matches([' ', '=']);
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}
