//! The files and scripts that packages are made with. `scripts/package --check` builds and tries the
//! packages themselves.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod programs;

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(root(name)).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs Python. `None`, after a line on stderr, if there is no Python.
fn python(arguments: &[&Path]) -> Option<Output> {
    let output = Command::new("python3")
        .args(arguments)
        .current_dir(root(""))
        .output();
    let Ok(output) = output else {
        contextpilot_testbed::skip("python3 is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(output)
}

#[test]
fn the_arch_package_and_the_release_notes_have_the_version_of_the_workspace() {
    let version = env!("CARGO_PKG_VERSION");
    let arch = read("packaging/arch/PKGBUILD");
    assert!(arch.contains(&format!("\npkgver={version}\n")));
    let notes = Command::new(root("scripts/lib/release-notes"))
        .arg(version)
        .output()
        .unwrap();
    assert!(notes.status.success(), "{}", text(&notes.stderr));
    let unknown = Command::new(root("scripts/lib/release-notes"))
        .arg("99.0.0")
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("CHANGELOG.md"));
}

/// The service reads the settings file that the package installs, and the launcher looks for the library
/// where the package puts it.
#[test]
fn service_and_packages_agree_on_names() {
    let unit = read("packaging/contextpilot-llama-server@.service");
    for line in [
        "EnvironmentFile=-/etc/default/contextpilot-llama-server.%i",
        "ExecStart=/usr/bin/contextpilot-llama-server $LLAMA_SERVER_ARGS",
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
    ] {
        assert!(unit.lines().any(|one| one == line), "{line}");
    }
    assert!(read("packaging/default").contains("#LLAMA_SERVER_ARGS="));
    let place = "/contextpilot-llama-server/";
    for script in ["scripts/lib/packages.sh", "packaging/arch/PKGBUILD"] {
        let script = read(script).replace("$pkgname", "contextpilot-llama-server");
        assert!(script.contains(&format!("lib{place}")), "{script}");
    }
}

/// Workflows pin the actions of others by commit hash. A tag could be moved.
#[test]
fn workflows_pin_actions_by_commit_hash() {
    let mut seen = 0;
    for entry in fs::read_dir(root(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let workflow = fs::read_to_string(&path).unwrap();
        assert!(
            workflow.contains("\npermissions:\n  contents: read\n"),
            "{path:?}"
        );
        for line in workflow.lines() {
            let Some((_, used)) = line.split_once("uses: ") else {
                continue;
            };
            seen += 1;
            let (_, pinned) = used.split_once('@').unwrap();
            let (hash, version) = pinned.split_once(" # v").unwrap_or_default();
            assert!(
                hash.len() == 40 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
                "{line}"
            );
            assert!(!version.is_empty(), "{line}");
        }
        for script in workflow
            .split_whitespace()
            .filter(|word| word.starts_with("scripts/"))
        {
            let script = script.trim_end_matches(['"', ')', ',']);
            assert!(
                script.contains('*') || root(script).is_file(),
                "{path:?}: {script}"
            );
        }
    }
    assert!(seen > 5, "only {seen} found");
}

#[test]
fn a_checked_server_is_added_to_the_page_as_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("servers.md");
    fs::copy(root("docs/servers.md"), &page).unwrap();
    let before = fs::read_to_string(&page).unwrap();
    let head = before
        .lines()
        .find(|line| line.starts_with("| server | version |"))
        .unwrap();
    let rule = before
        .lines()
        .skip_while(|line| *line != head)
        .nth(1)
        .unwrap();
    let row = "| b99999 | 1.0 | 0 | - | 1 of 1 | 1 | 1 | 0 | 0 |";
    let told = folder.path().join("told.md");
    fs::write(&told, format!("{head}\n{rule}\n{row}\n")).unwrap();
    let add = |told: &Path| {
        Command::new(root("scripts/lib/add-server-row"))
            .args([told, &page])
            .output()
            .unwrap()
    };
    let output = add(&told);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let after = fs::read_to_string(&page).unwrap();
    assert_eq!(
        after,
        before.replace(
            &format!("{head}\n{rule}\n"),
            &format!("{head}\n{rule}\n{row}\n")
        )
    );

    fs::write(&told, "").unwrap();
    assert_eq!(add(&told).status.code(), Some(1));
    assert_eq!(fs::read_to_string(&page).unwrap(), after);
}

#[test]
fn a_wheel_matches_its_record_and_is_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let stage = folder.path().join("stage");
    for (name, content) in [
        ("bin/command", "#!"),
        ("lib/p/x.so", "library"),
        ("share/a/b", "page"),
    ] {
        let path = stage.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let build = |name: &str| {
        let out = folder.path().join(name);
        fs::create_dir(&out).unwrap();
        let arguments = [
            "1.2.3",
            "manylinux_2_17_x86_64.manylinux2014_x86_64",
            "1700000000",
        ];
        let [version, platform, epoch] = arguments.map(Path::new);
        let (program, readme) = (root("packaging/wheel.py"), root("README.md"));
        let made = python(&[&program, &stage, version, platform, epoch, &readme, &out])?;
        Some(PathBuf::from(text(&made.stdout).trim_end()))
    };
    let (Some(first), Some(second)) = (build("first"), build("second")) else {
        return;
    };
    assert!(fs::read(&first).unwrap() == fs::read(second).unwrap());
    // The check of an installer: each file is in RECORD with its hash and size.
    let check = folder.path().join("check.py");
    fs::write(
        &check,
        r#"
import base64, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
record = wheel.read("contextpilot_llama_server-1.2.3.dist-info/RECORD").decode().splitlines()
names = set(wheel.namelist())
for line in record:
    name, digest, size = line.rsplit(",", 2)
    names.remove(name)
    if digest:
        content = wheel.read(name)
        known = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (digest, size) == ("sha256=" + known, str(len(content))), name
assert not names, names
data = "contextpilot_llama_server-1.2.3.data/"
assert wheel.getinfo(data + "scripts/command").external_attr >> 16 == 0o100755
assert wheel.read(data + "data/lib/p/x.so") == b"library"
assert wheel.read(data + "data/share/a/b") == b"page"
"#,
    )
    .unwrap();
    python(&[&check, &first]);
}

#[test]
fn the_bill_of_materials_names_exactly_the_linked_crates() {
    let folder = tempfile::tempdir().unwrap();
    let (bill, licences) = (
        folder.path().join("bill.json"),
        folder.path().join("licences"),
    );
    let program = root("packaging/bill.py");
    let target = Path::new("x86_64-unknown-linux-gnu");
    if python(&[&program, target, Path::new("1700000000"), &bill, &licences]).is_none() {
        return;
    }
    let bill: serde_json::Value = serde_json::from_slice(&fs::read(bill).unwrap()).unwrap();
    let components = bill["components"].as_array().unwrap();
    let has = |name: &str| components.iter().any(|component| component["name"] == name);
    for (name, linked) in [
        ("rustls", true),
        ("contextpilot-hook", true),
        ("contextpilot-residency", true),
        ("tempfile", true),
        // Two for tests only, one for the compiler, one for Windows.
        ("proptest", false),
        ("contextpilot-testbed", false),
        ("serde_derive", false),
        ("windows-sys", false),
    ] {
        assert_eq!(has(name), linked, "{name}");
    }
    let lock = read("Cargo.lock");
    for component in components {
        if let Some(hash) = component["hashes"][0]["content"].as_str() {
            assert!(lock.contains(hash), "{component}");
        }
    }
    let licences = fs::read_to_string(licences).unwrap();
    assert!(licences.contains("rustls ") && licences.contains("Permission is hereby granted"));
}

/// Before the package is removed its services are stopped, with the helper of init-system-helpers or without.
#[test]
fn the_removal_of_the_package_stops_its_services() {
    use std::os::unix::fs::PermissionsExt;

    let script = read("packaging/debian/prerm");
    for helper in ["deb-systemd-invoke", "systemctl"] {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let program = folder.path().join(helper);
        let lines = format!("#!/bin/sh\necho \"$@\" >>'{}'\nexit 1\n", said.display());
        fs::write(&program, lines).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // As with systemd, which is not what runs the tests.
        let script = script.replace("/run/systemd/system", &folder.path().display().to_string());
        let output = Command::new("/bin/sh")
            .args(["-c", &script, "prerm", "remove"])
            .env("PATH", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = fs::read_to_string(said).unwrap();
        assert_eq!(
            said, "stop contextpilot-llama-server@*.service\n",
            "{helper}"
        );
    }
}

/// What systemd says of a unit in this folder that it does not understand. `None`, after a line on stderr, if there is no systemd.
fn systemd_says(folder: &Path, unit: &str) -> Option<String> {
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(folder.join(unit))
        .output();
    let Ok(output) = output else {
        contextpilot_testbed::skip_optional("systemd-analyze is not installed");
        return None;
    };
    Some(text(&output.stderr))
}

/// A setting that it does not know, systemd leaves out with a line in the journal.
#[test]
fn systemd_understands_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let unit = read("packaging/contextpilot-llama-server@.service");
    let installed = "ExecStart=/usr/bin/contextpilot-llama-server ";
    assert!(unit.contains(installed));
    let ours = env!("CARGO_BIN_EXE_contextpilot-llama-server");
    let unit = unit.replace(installed, &format!("ExecStart={ours} "));
    let misspelt = unit.replace("\nStateDirectory=", "\nStateDirectories=");
    for (text, name, says) in [
        (unit, "right@.service", None),
        (misspelt, "wrong@.service", Some("StateDirectories")),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
        let Some(said) = systemd_says(folder.path(), name) else {
            return;
        };
        match says {
            Some(says) => assert!(said.contains(says), "{said}"),
            None => assert_eq!(said, ""),
        }
    }
}

/// Values have what systemd reads in its own way: quotes, backslashes, and percent signs before letters that it replaces.
#[test]
fn systemd_understands_what_insert_writes() {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    let unit = "[Service]\nExecStart=/bin/sh\n";
    fs::write(units.join("ollama.service"), unit).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"))
        .args(["insert", "--into", "ollama", "--root"])
        .arg(root.path())
        .env("CONTEXTPILOT_STORE", r#"/var/lib/50% of "it"\\ $HOME %h"#)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let Some(said) = systemd_says(&units, "ollama.service") else {
        return;
    };
    assert_eq!(said, "");
    // It reads the drop-in: one that is not closed it does not understand.
    let drop_in = units.join("ollama.service.d/contextpilot.conf");
    let written = fs::read_to_string(&drop_in).unwrap();
    fs::write(&drop_in, written + "Environment=\"open\n").unwrap();
    let said = systemd_says(&units, "ollama.service").unwrap();
    assert!(said.contains("contextpilot.conf"), "{said}");
}
