//! `insert`, in a root of the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::program::without_ours;

fn insert(root: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut command);
    command
        .args(["insert", "--root"])
        .arg(root)
        .args(["--into", "ollama"])
        .args(more);
    command
        .env("CONTEXTPILOT_STORE", "/var/lib/50% of \"it\"")
        .output()
        .unwrap()
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
