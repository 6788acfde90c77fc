//! Whether two outputs have the same shape: the same words, whatever the numbers, times, paths and
//! random parts of names are.

use std::collections::BTreeSet;

use serde_json::Value;

/// What stands for left-out parts of an output on a page.
const MORE: &str = "…";

/// Compares a page's text with an output.
///
/// Lines are compared as sets: an output may have more or fewer lines of a kind. With a line `…`, the
/// output may have more kinds of lines than the page.
///
/// # Errors
/// What one has and the other has not.
pub(crate) fn compare(page: &str, output: &str) -> Result<(), String> {
    let shapes = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().map(line);
        lines.filter(|line| !line.is_empty()).collect()
    };
    let (mut page, output) = (shapes(page), shapes(output));
    let is_excerpt = page.remove(MORE);
    let missing: Vec<_> = page
        .iter()
        .filter(|page| !output.iter().any(|output| is_like(page, output)))
        .collect();
    let surplus: Vec<_> = output
        .iter()
        .filter(|output| !page.iter().any(|page| is_like(page, output)))
        .collect();
    if missing.is_empty() && (is_excerpt || surplus.is_empty()) {
        return Ok(());
    }
    let list = |lines: &[&String]| {
        let lines = lines.iter().map(|line| format!("    {line}\n"));
        lines.collect::<String>()
    };
    Err(format!(
        "only on the page:\n{}  only in the output:\n{}",
        list(&missing),
        list(&surplus)
    ))
}

/// Whether a line of the page, which may have `…` in it, is like a line of the output.
fn is_like(page: &str, output: &str) -> bool {
    match page.split_once(MORE) {
        None => page == output,
        Some((before, after)) => {
            output.len() >= before.len() + after.len()
                && output.starts_with(before)
                && output.ends_with(after)
        }
    }
}

/// The shape of a line.
pub(crate) fn line(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for found in text.split_whitespace() {
        let found = word(found);
        let after_number = words.last().is_some_and(|last| last.ends_with('0'));
        words.push(match found.trim_end_matches([',', ';', ':']) {
            "B" | "KiB" | "MiB" | "GiB" if after_number => found.replace(['K', 'M', 'G', 'i'], ""),
            "ms" | "µs" | "s" | "min" | "h" if after_number => found
                .replace("ms", "s")
                .replace("µs", "s")
                .replace("min", "s")
                .replace('h', "s"),
            _ => found,
        });
    }
    let mut shape = words.join(" ");
    // A minute and some seconds are one time.
    while shape.contains("0 s 0 s") {
        shape = shape.replace("0 s 0 s", "0 s");
    }
    shape
}

/// The shape of a word: a path is `/`, and each number or random part is `0`.
fn word(text: &str) -> String {
    let bare = text.trim_start_matches(['(', '"', '\'']);
    let is_path = bare.starts_with(['/', '~']) || (bare.contains('/') && !bare.contains("://"));
    // A path that is cut short on the page has the same shape as a whole one.
    if is_path && !bare.starts_with("/v1") {
        let start = &text[..text.len() - bare.len()];
        let end: String = {
            let kept = bare.chars().rev().take_while(|c| "),;:\"'".contains(*c));
            kept.collect::<Vec<_>>().into_iter().rev().collect()
        };
        return format!("{start}/{end}");
    }
    let mut shape = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = rest.len() - rest.trim_start_matches(is_alphanumeric).len();
        if run == 0 {
            shape.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (part, after) = rest.split_at(run);
        shape += &part_of(part);
        rest = after;
    }
    // 1,002 and 0.3 and 09:51:29 are one number each.
    for joined in ["0,0", "0.0", "0:0", "0-0", "00"] {
        while shape.contains(joined) {
            shape = shape.replace(joined, "0");
        }
    }
    shape
}

fn is_alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

/// The shape of letters and digits.
fn part_of(part: &str) -> String {
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if digits > 0 && (is_hex && part.len() >= 6 || part.len() >= 16) {
        return "0".to_owned();
    }
    let mut shape = String::new();
    for c in part.chars() {
        if !c.is_ascii_digit() {
            shape.push(c);
        } else if !shape.ends_with('0') {
            shape.push('0');
        }
    }
    shape
}

/// Compares a page's JSON with an output's: the same members, of the same types. `…` before a `}`
/// stands for more members.
///
/// # Errors
/// Where they differ.
pub(crate) fn compare_json(page: &str, output: &str) -> Result<(), String> {
    let is_excerpt = page.contains(MORE);
    // Members, elements, and values of a list that is not shown as such.
    let page = page
        .replace(", …", "")
        .replace("…, ", "")
        .replace("},\n{", "}\n{");
    let read = |text: &str, whose| {
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let values: Result<Vec<_>, _> = values.collect();
        values.map_err(|e| format!("the {whose} is not JSON: {e}: {text}"))
    };
    let (page, output) = (read(&page, "page")?, read(output, "output")?);
    let (page, output) = (Value::Array(page), Value::Array(output));
    differ("", &page, &output, is_excerpt).map_or(Ok(()), Err)
}

/// Where and how the second differs from the first.
fn differ(at: &str, page: &Value, output: &Value, is_excerpt: bool) -> Option<String> {
    match (page, output) {
        (Value::Null, _) | (_, Value::Null) => None,
        (Value::Object(page), Value::Object(output)) => {
            let missing = page.keys().find(|name| !output.contains_key(*name));
            if let Some(name) = missing {
                return Some(format!("{at}.{name} is only on the page"));
            }
            let surplus = output.keys().find(|name| !page.contains_key(*name));
            if let Some(name) = surplus.filter(|_| !is_excerpt) {
                return Some(format!("{at}.{name} is only in the output"));
            }
            let mut members = page.iter();
            members.find_map(|(name, value)| {
                differ(&format!("{at}.{name}"), value, &output[name], is_excerpt)
            })
        }
        // Each element must be like one of the others.
        (Value::Array(page), Value::Array(output)) => {
            let mut pairs = page.iter().map(|one| (one, output)).collect::<Vec<_>>();
            if output.is_empty() {
                pairs.clear();
            }
            pairs.into_iter().find_map(|(one, others)| {
                let mut found = others
                    .iter()
                    .map(|other| differ(at, one, other, is_excerpt));
                if found.clone().any(|difference| difference.is_none()) {
                    None
                } else {
                    found
                        .next()
                        .flatten()
                        .map(|why| format!("{why} (in a list)"))
                }
            })
        }
        _ if std::mem::discriminant(page) == std::mem::discriminant(output) => None,
        _ => Some(format!(
            "{at} is {page} on the page and {output} in the output"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_sizes_and_paths_do_not_matter() {
        for (page, output) in [
            (
                "09:51:29.496  evicted  req-1",
                "23:01:02.003 evicted  req-17",
            ),
            (
                "1,002 tokens, 1.9 MiB of 2.0 MiB",
                "7 tokens, 8 KiB of 8.0 GiB",
            ),
            ("took 14.9 ms", "took 2 s"),
            ("saves 14.9 ms: do it", "saves 2 s: do it"),
            ("up 57 s, hook 0", "up 1 min 12 s, hook 0"),
            ("ok hook ~/.cache/x-58fd.so", "ok hook /tmp/y.so"),
            (
                "hook (~/.cache/x.so), http://127.0.0.1:1",
                "hook (/y/z), http://127.0.0.1:65000",
            ),
            ("lib-58fdb9b556dc6c1c.so", "lib-ec839d327cdf6d3e.so"),
        ] {
            assert_eq!(line(page), line(output));
        }
        for (page, output) in [
            ("1 token", "1 tokens"),
            ("evicted  a", "cached  a"),
            ("on", "on 1"),
        ] {
            assert_ne!(line(page), line(output));
        }
    }

    #[test]
    fn each_kind_of_line_must_be_on_both_sides() {
        let output = "slot 0 a\nslot 1 a\nlost nothing\n";
        assert!(compare("slot 5 a\nlost nothing\n", output).is_ok());
        assert!(compare("slot 5 a\n…\n", output).is_ok());
        assert!(compare("slot 5 a\nlost …\n", output).is_ok());
        let why = compare("slot 5 a\nfound nothing\n", output).unwrap_err();
        assert!(
            why.contains("found nothing") && why.contains("lost nothing"),
            "{why}"
        );
        assert!(compare("slot 5 a\n", output).is_err());
    }

    #[test]
    fn json_has_the_same_members() {
        let output = r#"{"a": 1, "b": {"c": ["x", "y"]}, "d": null}"#;
        assert!(compare_json(r#"{"a": 7, "b": {"c": ["z"]}, "d": "?"}"#, output).is_ok());
        assert!(compare_json(r#"{"a": 7, …}"#, output).is_ok());
        for page in [
            r#"{"a": 7, "b": {"c": ["z"]}}"#,
            r#"{"a": "7", …}"#,
            r#"{"e": 7, …}"#,
            r#"{"b": {"c": [1]}, …}"#,
        ] {
            assert!(compare_json(page, output).is_err(), "{page}");
        }
        assert!(compare_json("{}", "oops").is_err());
    }
}
