//! The table of settings in `docs/settings.md` is that of the code. `UPDATE=1 cargo test -p contextpilot-settings --test page`
//! writes it there.

use std::env;
use std::fs;
use std::path::Path;

use contextpilot_settings::table::ALL;

const PAGE: &str = "../../../docs/settings.md";
const HEAD: &str = "| variable | meaning | default |\n|---|---|---|\n";

fn table() -> String {
    let rows = ALL.iter().map(|setting| {
        let (name, text, default) = (setting.name, setting.text, setting.kind);
        format!("| `{name}` | {text} | {default} |\n")
    });
    // Links in the code are relative to README.
    HEAD.to_owned() + &rows.collect::<String>().replace("](docs/", "](")
}

#[test]
fn the_page_has_every_setting_with_its_meaning_and_its_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let start = page.find(HEAD).expect("the page has a table of settings");
    let end = start + page[start..].find("\n\n").expect("it ends") + 1;
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, page[..start].to_owned() + &table() + &page[end..]).unwrap();
        return;
    }
    assert!(
        page[start..end] == table(),
        "the table of docs/settings.md is not that of crates/base/settings/src/table.rs; this writes it:\n\
         UPDATE=1 cargo test -p contextpilot-settings --test page"
    );
}

#[test]
fn the_page_says_how_many_settings_engage_the_hook() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(path).unwrap();
    let engaging = ALL.iter().filter(|setting| setting.engages()).count();
    assert_eq!(engaging, 7);
    assert!(page.contains("Without one of the first seven, the hook is not used"));
}
