//! `insert`, in a root of the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::program::without_ours;

/// The drop-in names the program that the hook starts, and every user may execute it.
#[test]
fn the_watcher_has_a_path() {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    fs::write(units.join("ollama.service"), "[Service]\n").unwrap();
    let output = command(root.path())
        .env("CONTEXTPILOT_WATCHER", "auto")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(units.join("ollama.service.d/contextpilot.conf")).unwrap();
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix("Environment=\"CONTEXTPILOT_WATCHER="));
    let path = Path::new(values.next().unwrap().trim_end_matches('"'));
    let inside = root.path().join(path.strip_prefix("/").unwrap());
    let path = if inside.exists() { &inside } else { path };
    let mode = fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o005, 0o005, "{text}");
}

fn insert(root: &Path, more: &[&str]) -> Output {
    let mut command = command(root);
    command
        .args(more)
        .env("CONTEXTPILOT_STORE", "/var/lib/50% of \"it\"")
        .output()
        .unwrap()
}

fn command(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut command);
    command
        .args(["insert", "--root"])
        .arg(root)
        .args(["--into", "ollama"]);
    command
}

#[test]
fn a_service_gets_the_hook_by_one_file_which_is_taken_out_again() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let output = insert(root, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("There is no unit ollama.service"),
        "{said}"
    );

    let units = root.join("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    let unit = "[Service]\nExecStart=/usr/local/bin/ollama serve\n";
    fs::write(units.join("ollama.service"), unit).unwrap();
    let drop_in = units.join("ollama.service.d/contextpilot.conf");
    for what in ["Wrote", "has it already"] {
        let output = insert(root, &[]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains(what), "{output:?}");
        let text = fs::read_to_string(&drop_in).unwrap();
        let environment: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("Environment="))
            .collect();
        assert_eq!(environment.len(), 2, "{text}");
        assert_eq!(
            environment[1],
            r#"Environment="CONTEXTPILOT_STORE=/var/lib/50%% of \"it\"""#
        );
        let library = environment[0]
            .strip_prefix("Environment=\"LD_PRELOAD=")
            .unwrap();
        let library = Path::new(library.trim_end_matches('"'));
        // Ollama's user must be able to read it.
        let inside = root.join(library.strip_prefix("/").unwrap());
        let library = if inside.exists() { &inside } else { library };
        assert_eq!(
            fs::metadata(library).unwrap().permissions().mode() & 0o004,
            0o004
        );
        // Settings may be secrets.
        assert_eq!(
            fs::metadata(&drop_in).unwrap().permissions().mode() & 0o077,
            0
        );
    }
    assert_eq!(
        fs::read_to_string(units.join("ollama.service")).unwrap(),
        unit
    );
    for what in ["Removed", "nothing to undo"] {
        let output = insert(root, &["--undo"]);
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(what),
            "{output:?}"
        );
        assert!(output.status.success() && !drop_in.parent().unwrap().exists());
    }
}
