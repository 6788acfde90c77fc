//! What is committed is what the sources build, and it keeps to its own policy.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contextpilot_page::{Request, answer, report};
use contextpilot_testbed::{script, skip};
use sha2::{Digest, Sha256};

/// Bytes that the page may have.
const MOST: usize = 150 << 10;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn built(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("built")
        .join(name);
    fs::read_to_string(path).unwrap()
}

/// What is between two texts.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap();
    rest.split_once(to).unwrap().0
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found)
        } else {
            found.push(path)
        }
    }
}

/// This needs no node. It sees that a source has changed, not what the build makes of it.
#[test]
fn the_page_was_built_from_these_sources() {
    let page = repository().join("page");
    let mut sources: Vec<PathBuf> = [
        "build.mjs",
        "package-lock.json",
        "package.json",
        "tsconfig.json",
    ]
    .map(|name| page.join(name))
    .to_vec();
    files(&page.join("src"), &mut sources);
    let mut lines: Vec<String> = sources
        .iter()
        .map(|path| {
            let digest = Sha256::digest(fs::read(path).unwrap());
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digest}  {}", path.strip_prefix(&page).unwrap().display())
        })
        .collect();
    lines.sort_by(|a, b| a[64..].cmp(&b[64..]));
    let known = built("sources.txt");
    assert_eq!(lines, known.lines().collect::<Vec<_>>(), "run scripts/page");
}

#[test]
fn a_build_gives_what_is_committed() {
    if let Err(why) = script("page", &["check"]) {
        skip(why.why_skipped());
    }
}

#[test]
fn the_policy_names_the_hashes_of_script_and_style_and_allows_nothing_else() {
    let page = built("page.html");
    let policy = built("policy.txt");
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let script = between(&page, "<script>", "</script>");
    let style = between(&page, "<style>", "</style>");
    let expected = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'\n",
        hash(script),
        hash(style)
    );
    assert_eq!(policy, expected);
    let meta = format!("content=\"{}\"", policy.trim_end());
    assert!(page.contains(&meta), "the page has the same policy");
}

#[test]
fn the_page_is_small_and_whole_and_makes_no_markup_of_text() {
    let page = built("page.html");
    assert!(page.len() <= MOST, "{} bytes", page.len());
    let (markup, script) = page.split_once("<script>").unwrap();
    for outside in ["http://", "https://", "src=", "href=\"/", "@import", "url("] {
        assert!(!markup.contains(outside), "{outside}");
    }
    for sink in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
        "srcdoc",
        "javascript:",
        "importScripts",
    ] {
        assert!(!script.contains(sink), "{sink}");
    }
}

fn ask(headers: &[(&str, &str)]) -> Request {
    let headers = headers.iter();
    Request {
        method: "GET".to_owned(),
        target: "/".to_owned(),
        keep_alive: true,
        headers: headers
            .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: Vec::new(),
    }
}

#[test]
fn browsers_get_the_page_and_others_do_not() {
    let browser = [
        ("accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
    ];
    let page = answer(&ask(&browser)).unwrap();
    let header = |name: &str| {
        let of_name = page.headers.iter().find(|(given, _)| *given == name);
        of_name.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    assert_eq!(header("Content-Encoding"), "deflate");
    let policy = header("Content-Security-Policy");
    assert!(
        policy.starts_with(built("policy.txt").trim_end()),
        "{policy}"
    );
    assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");
    let contextpilot_http_server::Body::Whole(body) = &page.body else {
        panic!("it has an end");
    };
    let body = miniz_oxide::inflate::decompress_to_vec_zlib(body).unwrap();
    assert_eq!(String::from_utf8(body).unwrap(), built("page.html"));
    assert!(answer(&ask(&[("accept", "*/*")])).is_none());
    assert!(
        answer(&ask(&browser[..1])).is_none(),
        "it could not read it"
    );
}

#[test]
fn a_report_is_the_page_with_data() {
    let page = built("page.html");
    let report = report("eJxLAAAAYgBi");
    let with = page.replace("id=\"data\">", "id=\"data\">eJxLAAAAYgBi");
    assert_ne!(report, page);
    assert_eq!(report, with);
}
