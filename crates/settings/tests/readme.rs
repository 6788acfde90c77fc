//! README's table of settings is that of the code. `UPDATE=1 cargo test -p contextpilot-settings --test readme`
//! writes it there.

use std::env;
use std::fs;
use std::path::Path;

use contextpilot_settings::table::ALL;

const HEAD: &str = "| variable | meaning | default |\n|---|---|---|\n";

fn table() -> String {
    let rows = ALL.iter().map(|setting| {
        let (name, text, default) = (setting.name, setting.text, setting.kind);
        format!("| `{name}` | {text} | {default} |\n")
    });
    HEAD.to_owned() + &rows.collect::<String>()
}

#[test]
fn readme_has_every_setting_with_its_meaning_and_its_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let start = readme.find(HEAD).expect("README has a table of settings");
    let end = start + readme[start..].find("\n\n").expect("it ends") + 1;
    if env::var_os("UPDATE").is_some() {
        fs::write(
            &path,
            readme[..start].to_owned() + &table() + &readme[end..],
        )
        .unwrap();
        return;
    }
    assert!(
        readme[start..end] == table(),
        "README's table of settings is not that of crates/settings/src/table.rs; this writes it:\n\
         UPDATE=1 cargo test -p contextpilot-settings --test readme"
    );
}

#[test]
fn readme_says_how_many_settings_engage_the_hook() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(path).unwrap();
    let engaging = ALL.iter().filter(|setting| setting.engages()).count();
    assert_eq!(engaging, 7);
    assert!(readme.contains("Without one of the first seven, the hook is not used"));
}
