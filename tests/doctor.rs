//! `contextpilot-llama doctor`, on a real server and on files that are not servers.
#![cfg(target_os = "linux")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use contextpilot_testbed::Index as Certified;
use contextpilot_testbed::{
    Apart, Behaviour, KillOnDrop, Server, Unseen, apart, private_folder, test_name, unseen_server,
    until,
};
use serde_json::Value;

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(private_folder())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `doctor`, in an environment with this home and none of our settings.
    fn doctor(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(COMPANION);
        command
            .arg("doctor")
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.0.path());
        command
    }

    /// Compiles a C program with these flags, and returns its path.
    fn program(&self, name: &str, source: &str, flags: &[&str]) -> String {
        let file = self.path("source.c");
        fs::write(&file, source).unwrap();
        let built = Command::new("cc")
            .arg(file)
            .arg("-O1")
            .arg("-o")
            .arg(self.path(name))
            .args(flags)
            .status();
        assert!(built.unwrap().success());
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// A stand-in for the index. It ends when this value is dropped.
struct Index {
    _process: KillOnDrop,
    url: String,
}

impl Index {
    fn start() -> Self {
        Self::listening(&["--port", "0"])
    }

    fn listening(at: &[&str]) -> Self {
        let mut process = Command::new(COMPANION)
            .arg("listen")
            .args(at)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stderr = process.stderr.take().unwrap();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("http://") || word.starts_with("unix:"));
        let url = url.unwrap_or_default().trim_end_matches(';').to_owned();
        assert!(!url.is_empty(), "{line}");
        Self {
            _process: KillOnDrop(process),
            url,
        }
    }
}

/// The address of an HTTP server that gives this answer once.
fn answering(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(answer.as_bytes());
    });
    url
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn assert_says(output: &Output, code: i32, lines: &[(&str, &str, &str)]) {
    let text = text(output);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{stderr}");
    for (grade, subject, what) in lines {
        let found = text.lines().any(|line| {
            let rest = line.strip_prefix(grade).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with(subject) && rest.contains(what))
        });
        assert!(found, "{grade} {subject} {what} is not in:\n{text}");
    }
}

fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)))
}

/// The finding about `subject`.
fn finding<'a>(report: &'a Value, subject: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let found = findings
        .iter()
        .find(|finding| finding["subject"] == subject);
    found.unwrap_or_else(|| panic!("nothing about {subject}: {report:#}"))
}

#[test]
fn on_a_real_server_doctor_finds_all_good() {
    // It also says what it finds of the servers of this user that run.
    if apart(test_name!()) == Apart::Done {
        return;
    }
    let server = contextpilot_testbed::llama_server();
    let server = server.to_str().unwrap();
    let (home, index) = (Home::new(), Index::start());
    let doctor = || {
        let mut command = home.doctor(&[server]);
        command.env("CONTEXTPILOT_INDEX_URL", &index.url);
        command
    };
    assert_says(
        &doctor().output().unwrap(),
        0,
        &[
            ("ok", "server", server),
            ("ok", "KV cache", "followed"),
            ("ok", "host cache", "followed"),
            ("ok", "request ids", "tied to slots"),
            ("ok", "TLS", "OpenSSL is a library"),
            ("ok", "hook", "libcontextpilot_llama_hook-"),
            ("ok", "state folder", "contextpilot-llama"),
            ("ok", "index", "answers: ready"),
            ("All good", "", ""),
        ],
    );
    // The names would push the verdict off the screen.
    let short = text(&doctor().output().unwrap());
    assert!(!short.contains("llama_memory_seq_rm"), "{short}");
    let verbose = doctor().arg("--verbose").output().unwrap();
    assert_says(
        &verbose,
        0,
        &[
            ("Imported", "", ""),
            ("  llama_memory_seq_rm", "", ""),
            ("There, and not called", "", ""),
            ("  llama_decode", "", ""),
        ],
    );
    let verbose = text(&verbose);
    let verdict = verbose.lines().rev().nth(2);
    assert_eq!(verdict, Some("All good"), "{verbose}");
    // `llama_tokenize` is needed only if requests are tied to slots by their prompts. This server
    // does not need that.
    assert!(!verbose.contains("llama_tokenize"));
    let report = json(&mut doctor());
    assert_eq!(report["exit_code"], 0);
    assert_eq!(report["verdict"], "All good");
    assert_eq!(report["server"], server);
    assert!(report["version"].is_string(), "{report:#}");
    let functions = report["functions"].as_array().unwrap();
    let how = |name: &str| {
        let found = functions.iter().find(|function| function["name"] == name);
        found.map(|function| function["how"].clone())
    };
    assert_ne!(how("llama_memory_seq_rm"), Some("missing".into()));
    assert_eq!(how("recv"), Some("imported".into()));
}

#[test]
fn without_any_setting_doctor_says_what_to_set_and_all_is_good() {
    let server = contextpilot_testbed::llama_server();
    let home = Home::new();
    let output = home.doctor(&[server.to_str().unwrap()]).output().unwrap();
    assert_says(
        &output,
        0,
        &[
            ("ok", "settings", "set CONTEXTPILOT_LISTEN=auto"),
            ("ok", "index", "CONTEXTPILOT_INDEX_URL=http://"),
            ("ok", "prefix store", "possible"),
            ("All good", "", ""),
        ],
    );
    let mut engaged = home.doctor(&[server.to_str().unwrap()]);
    let report = json(engaged.env("CONTEXTPILOT_LISTEN", "auto"));
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|found| found["subject"] != "settings"));
}

#[test]
fn doctor_names_what_would_be_started_beside_the_server() {
    let (home, index) = (Home::new(), Index::start());
    let about = |watcher: &str, journal: &str| {
        let mut doctor = home.doctor(&["/bin/true"]);
        doctor
            .env("CONTEXTPILOT_INDEX_URL", &index.url)
            .env("CONTEXTPILOT_WATCHER", watcher)
            .env("CONTEXTPILOT_JOURNAL", journal);
        let report = json(&mut doctor);
        let found = finding(&report, "watcher");
        let text = |name: &str| found[name].as_str().unwrap().to_owned();
        (text("grade"), text("text"))
    };
    let (grade, text) = about("auto", "1");
    assert_eq!(grade, "ok", "{text}");
    assert_eq!(
        text,
        format!("each server starts {COMPANION} killed --at-end")
    );
    for (watcher, journal, why) in [
        ("auto", "0", "no journal is kept"),
        ("/nowhere/contextpilot-llama", "1", "cannot be started"),
        ("/etc/passwd", "1", "/etc/passwd is no program"),
    ] {
        let (grade, text) = about(watcher, journal);
        assert_eq!(grade, "limit", "{text}");
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn doctor_says_whether_there_can_be_a_prefix_store() {
    let server = contextpilot_testbed::llama_server();
    let home = Home::new();
    let about = |server: &str, folder: PathBuf| {
        let mut doctor = home.doctor(&[server]);
        let report = json(doctor.env("CONTEXTPILOT_STORE", folder));
        let store = finding(&report, "prefix store");
        let text = |name: &str| store[name].as_str().unwrap().to_owned();
        (text("grade"), text("text"))
    };
    let server = server.to_str().unwrap();
    let (grade, text) = about(server, home.path("store"));
    assert_eq!(grade, "ok", "{text}");
    let folder = home.path("store").display().to_string();
    assert_eq!(text, format!("in {folder}, which will be made"));
    fs::create_dir(&folder).unwrap();
    fs::create_dir(home.path("store/v1")).unwrap();
    let (grade, text) = about(server, home.path("store"));
    assert_eq!(grade, "ok", "{text}");
    assert!(text.starts_with(&format!("in {folder}; ")), "{text}");

    fs::write(home.path("letter"), "").unwrap();
    let (grade, text) = about(server, home.path("letter"));
    assert_eq!(grade, "limit", "{text}");
    assert!(text.ends_with("; correct CONTEXTPILOT_STORE"), "{text}");

    let mut doctor = home.doctor(&[server]);
    doctor.env("CONTEXTPILOT_STORE", home.path("store"));
    let report = json(doctor.env("CONTEXTPILOT_STORE_GB", "1000000"));
    let store = finding(&report, "prefix store");
    assert_eq!(store["grade"], "limit", "{store}");
    let text = store["text"].as_str().unwrap();
    assert!(
        text.contains(" of the budget of ") && text.ends_with("lower CONTEXTPILOT_STORE_GB"),
        "{text}"
    );

    let (grade, text) = about("/bin/true", home.path("store"));
    assert_eq!(grade, "limit", "{text}");
    assert!(text.starts_with("not possible, though "), "{text}");
}

#[test]
fn a_server_whose_own_functions_are_hidden_works_with_limits() {
    let (home, index) = (Home::new(), Index::start());
    if let Some(server) = unseen_server(Unseen::Nameless).unwrap() {
        let mut doctor = home.doctor(&[server.to_str().unwrap(), "--verbose"]);
        doctor.env("CONTEXTPILOT_INDEX_URL", &index.url);
        assert_says(
            &doctor.output().unwrap(),
            1,
            &[
                ("ok", "KV cache", "followed"),
                ("limit", "request ids", "tied to slots by their prompts"),
                ("ok", "prompts", "token arrays: exact; infill: exact"),
                ("Works with limits", "", ""),
                ("  llama_tokenize", "", ""),
            ],
        );
    }
}

#[test]
fn doctor_finds_the_server_that_the_launcher_would_run() {
    let home = Home::new();
    let mut missing = home.doctor(&[]);
    missing.env("PATH", home.path("nowhere"));
    assert_says(
        &missing.output().unwrap(),
        2,
        &[
            ("fails", "server", "not found on PATH"),
            ("Will not work", "", ""),
        ],
    );
    let mut named = home.doctor(&[]);
    named.env("LLAMA_SERVER_BIN", "/bin/true");
    assert_eq!(json(&mut named)["server"], "/bin/true");
}

#[test]
fn if_the_file_is_missing_doctor_names_it() {
    let home = Home::new();
    let mut doctor = home.doctor(&["/nowhere/llama-server"]);
    assert_says(
        &doctor.output().unwrap(),
        2,
        &[("fails", "server", "\"/nowhere/llama-server\" is no file")],
    );
    assert_eq!(json(&mut doctor)["exit_code"], 2);
}

#[test]
fn a_program_that_is_not_a_server_will_not_work() {
    let home = Home::new();
    let output = home.doctor(&["/bin/true"]).output().unwrap();
    assert_says(
        &output,
        2,
        &[
            ("fails", "server", "/bin/true is no llama-server"),
            ("fails", "KV cache", "nothing is reported"),
            (
                "ok",
                "prefix store",
                "not possible: this build has no llama_state_seq_get_size",
            ),
            ("ok", "index", "CONTEXTPILOT_INDEX_URL"),
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let of_server = |line: &&str| line.starts_with("ok     server");
    assert_eq!(said.lines().find(of_server), None, "it is not well, too");
}

/// What another user has started is named, with the line that looks into it. (A program that sleeps, under the server's name.)
#[test]
fn the_servers_of_other_users_are_named() {
    use std::os::unix::process::CommandExt;

    const NOBODY: u32 = 65534;
    let home = Home::new();
    // Others must be able to reach it.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("llama-server");
    let link = std::os::unix::fs::symlink("/bin/sh", &program);
    link.unwrap();
    let mut server = Command::new(&program);
    server
        .args(["-c", "echo up; read end", "-m", "/srv/models/tea.gguf"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .uid(NOBODY);
    let Ok(mut server) = server.spawn() else {
        contextpilot_testbed::skip("needs root, to start a program as another user");
        return;
    };
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    let output = home.doctor(&["/bin/true"]).output().unwrap();
    // A third user, who has no server and may run a copy, learns of it, too.
    let copy = folder.path().join("contextpilot-llama");
    fs::copy(COMPANION, &copy).unwrap();
    let mut none = Command::new(copy);
    let none = none.arg("stats").env_clear().uid(NOBODY - 1);
    let none = none.output().unwrap();
    let pid = server.id();
    drop(server.stdin.take());
    server.wait().unwrap();
    let line =
        format!("process {pid} of nobody, tea.gguf: sudo -u 'nobody' contextpilot-llama top");
    assert_says(&output, 2, &[("ok", "running", &line)]);
    let none = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(none.contains(&format!("Of another user: {line}")), "{none}");
    let output = home.doctor(&["/bin/true"]).output().unwrap();
    assert!(!text(&output).contains(&format!("process {pid} of")));
}

#[test]
fn functions_inside_the_program_are_hooked_inline_where_that_is_safe() {
    let home = Home::new();
    let source = "int x; int llama_memory_seq_rm(int a) { x += a; x *= a; x ^= 77; return x; }
                  void llama_free(void) {} int main(int c, char **v) { return c; }";
    let server = home.program("server", source, &[]);
    let output = home.doctor(&[&server, "-v"]).output().unwrap();
    assert_says(
        &output,
        2,
        &[
            ("fails", "not inline", "llama_free is too short"),
            ("fails", "KV cache", "llama_memory_clear"),
            ("Hooked inline", "", ""),
            ("  llama_memory_seq_rm", "", ""),
        ],
    );
}

/// doctor recognises a version of llama.cpp by its functions. So it does not expect features that
/// came later.
#[test]
fn a_feature_that_the_version_lacks_is_not_claimed() {
    let home = Home::new();
    let source = |names: &[&str]| {
        let mut text = "int x; int main(int c, char **v) { return c; }\n".to_owned();
        for name in names {
            text += &format!("int {name}(int a) {{ x += a; x *= a; x ^= 77; return x; }}\n");
        }
        text
    };
    let memory = "llama_memory_seq_rm";
    let save = "llama_state_seq_get_data_ext";
    let image = "mtmd_helper_decode_image_chunk";
    for (names, host_cache, images) in [
        // Servers of May 2025, August 2025 and late 2025.
        (&["llama_kv_self_seq_rm"][..], "none", "takes no images"),
        (&["llama_kv_self_seq_rm", image, memory, save], "none", ""),
        (
            &[image, memory, save, "llama_n_ctx_seq"],
            "not followed (_ZdlPvm missing)",
            "",
        ),
    ] {
        let server = home.program("server", &source(names), &[]);
        let report = json(&mut home.doctor(&[&server]));
        let text = finding(&report, "host cache")["text"].as_str().unwrap();
        assert!(text.starts_with(host_cache), "{names:?}: {text}");
        let functions = report["functions"].as_array().unwrap();
        let image = functions.iter().find(|function| function["name"] == image);
        let consequence = image.unwrap()["consequence"].as_str().unwrap_or_default();
        assert!(consequence.contains(images), "{names:?}: {consequence}");
        assert_eq!(consequence.is_empty(), images.is_empty(), "{consequence}");
    }
}

#[test]
fn if_the_hook_cannot_reach_the_server_doctor_says_so() {
    let home = Home::new();
    let source = "int main(void) { return 0; }";
    for (flags, subject, why) in [
        (&["-static"][..], "preload", "linked fully statically"),
        (&["-s"], "preload", "was stripped"),
        (
            &["-shared", "-fPIC", "-Wl,--no-as-needed"],
            "KV cache",
            "there is no llama.cpp in this library",
        ),
    ] {
        let server = home.program("server", source, flags);
        let grown = Command::new("truncate")
            .args(["--size", "+2M", &server])
            .status();
        assert!(grown.unwrap().success());
        let output = home.doctor(&[&server]).output().unwrap();
        assert_says(&output, 2, &[("fails", subject, why)]);
    }
}

#[test]
fn if_the_server_is_a_script_doctor_examines_the_server_that_it_names() {
    let home = Home::new();
    let server = home.program("llama-server-real", "int main(void) { return 0; }", &[]);
    let script = home.path("llama-server");
    let write = |body: &str| {
        fs::write(&script, body).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        let output = home.doctor(&[script.to_str().unwrap()]).output();
        output.unwrap()
    };
    assert_says(
        &write(&format!("#!/bin/sh\nexec env -i {server} \"$@\"\n")),
        2,
        &[
            ("ok", "server", "is a script for /bin/sh"),
            ("limit", "script", "env -i"),
            ("fails", "server", &server),
        ],
    );
    assert_says(
        &write("#!/bin/sh\nexec \"$SERVER\"\n"),
        1,
        &[("limit", "script", "which server it starts is not plain")],
    );
}

#[test]
fn if_a_folder_cannot_be_used_doctor_says_so() {
    let home = Home::new();
    let index = ("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9");
    let mut doctor = home.doctor(&["/bin/true"]);
    doctor.env_remove("HOME").env(index.0, index.1);
    let report = json(&mut doctor);
    let hook = finding(&report, "hook");
    assert_eq!(hook["grade"], "ok");
    assert!(hook["text"].as_str().unwrap().starts_with("in memory, as "));
    let state = finding(&report, "state folder");
    assert_eq!(state["grade"], "limit");
    assert!(state["text"].as_str().unwrap().contains("XDG_STATE_HOME"));

    for (url, grade) in [("", "ok"), (index.1, "limit")] {
        let mut doctor = home.doctor(&["/bin/true"]);
        doctor.env("CONTEXTPILOT_JOURNAL", "0").env(index.0, url);
        let report = json(&mut doctor);
        assert_eq!(finding(&report, "state folder")["grade"], grade);
    }
    assert!(!home.path(".local").exists());
}

#[test]
fn if_path_gives_another_packages_launcher_doctor_says_which() {
    let server = contextpilot_testbed::llama_server();
    let home = Home::new();
    let other = home.path("contextpilot-llama-server");
    fs::write(&other, "#!/usr/bin/python3\n").unwrap();
    let path = format!("{}:/usr/bin:/bin", home.0.path().display());
    let says = |path: &str| {
        let mut doctor = home.doctor(&[server.to_str().unwrap()]);
        text(&doctor.env("PATH", path).output().unwrap())
    };
    let line = format!("PATH gives {}, which is not ours", other.display());
    assert!(says(&path).contains(&line));
    assert!(!says("/usr/bin:/bin").contains("which is not ours"));
}

/// The server would run, and write nothing.
#[test]
fn doctor_says_which_files_cannot_be_written() {
    let home = Home::new();
    let nowhere = home.path("none/file");
    let link = home.path("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let report = |recording: &Path, log: &Path| {
        let server = contextpilot_testbed::llama_server();
        let mut doctor = home.doctor(&[server.to_str().unwrap()]);
        doctor.env("CONTEXTPILOT_TRAFFIC_FILE", recording);
        json(doctor.env("CONTEXTPILOT_LOG_FILE", log))
    };
    let bad = report(&nowhere, &link);
    for (subject, why) in [
        ("recording", "there is no folder "),
        ("log file", "it is a link"),
    ] {
        let found = finding(&bad, subject);
        assert_eq!(found["grade"], "limit", "{found}");
        assert!(found["text"].as_str().unwrap().contains(why), "{found}");
    }
    assert_ne!(bad["exit_code"], 0, "{bad}");
    let good = report(&home.path("recording"), &home.path("log"));
    for subject in ["recording", "log file"] {
        assert_eq!(finding(&good, subject)["grade"], "ok", "{good}");
    }
    assert!(!home.path("recording").exists() && !home.path("log").exists());
}

/// Neither folders that settings name nor its own. A shell that was not asked to leaves `~` as it is.
#[test]
fn doctor_makes_no_file_and_no_folder() {
    let server = contextpilot_testbed::llama_server();
    let home = Home::new();
    for store in ["~/x", &home.path("deep/store").display().to_string()] {
        let mut doctor = home.doctor(&[server.to_str().unwrap()]);
        doctor
            .current_dir(home.0.path())
            .env("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9")
            .env("CONTEXTPILOT_STORE", store);
        let report = json(&mut doctor);
        assert_eq!(finding(&report, "hook")["grade"], "ok", "{report}");
        let grade = &finding(&report, "prefix store")["grade"];
        if store.starts_with('~') {
            assert_eq!(grade, "limit", "{report}");
            let settings = finding(&report, "settings");
            assert_eq!(settings["grade"], "fails", "{report}");
        } else {
            assert_eq!(grade, "ok", "{report}")
        }
        let made: Vec<_> = fs::read_dir(home.0.path()).unwrap().collect();
        assert!(made.is_empty(), "{made:?}");
    }
}

/// Only the journal needs the state folder, and only with an index there is a journal.
#[test]
fn an_observer_without_a_home_is_good() {
    let server = contextpilot_testbed::llama_server();
    let home = Home::new();
    let mut doctor = home.doctor(&[server.to_str().unwrap()]);
    doctor.env_remove("HOME").env(
        "CONTEXTPILOT_LISTEN",
        contextpilot_testbed::nowhere().to_string(),
    );
    assert_says(
        &doctor.output().unwrap(),
        0,
        &[("ok", "state folder", "without an index it is not needed")],
    );
}

#[test]
fn the_answer_of_the_index_is_shown() {
    let home = Home::new();
    let about = |url: &str| {
        let mut doctor = home.doctor(&["/bin/true"]);
        let report = json(doctor.env("CONTEXTPILOT_INDEX_URL", url));
        let index = finding(&report, "index");
        let text = |name: &str| index[name].as_str().unwrap().to_owned();
        (text("grade"), text("text"))
    };
    let (grade, text) = about(&answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 39\r\n\r\n{\"status\": \"ready\", \"version\": \"0.5.0\"}",
    ));
    assert_eq!(grade, "ok");
    assert!(text.ends_with("answers: version 0.5.0, ready"), "{text}");

    let (grade, text) = about(&answering(
        "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"status\": \"not_ready\"}",
    ));
    assert_eq!(grade, "limit");
    assert!(text.contains("503: not_ready"), "{text}");

    let (grade, text) = about(&answering("SSH-2.0-OpenSSH_10\r\n"));
    assert_eq!(grade, "limit");
    assert!(text.contains("not HTTP"), "{text}");

    let closed = contextpilot_testbed::nowhere();
    let (grade, text) = about(&format!("http://{closed}"));
    assert_eq!(grade, "limit");
    assert!(text.contains("does not answer"), "{text}");

    let socket = format!("unix:{}", home.path("index.sock").display());
    let (grade, text) = about(&socket);
    assert_eq!(grade, "limit");
    assert!(
        text.contains(&socket) && text.contains("does not answer"),
        "{text}"
    );
    {
        let index = Index::listening(&["--unix", home.path("index.sock").to_str().unwrap()]);
        assert_eq!(index.url, socket);
        for url in [socket.clone(), format!("{socket}:/")] {
            let (grade, text) = about(&url);
            assert_eq!(grade, "ok", "{text}");
            assert_eq!(text, format!("{socket} answers: ready"));
        }
        // There is no index below this prefix.
        let (grade, text) = about(&format!("{socket}:/pilot"));
        assert_eq!(grade, "limit");
        assert!(
            text.contains(":/pilot answers GET /health with 404"),
            "{text}"
        );
    }

    // Something else at the index's address, such as the login page of a proxy.
    let (grade, text) = about(&answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n<html></html>\n",
    ));
    assert_eq!(grade, "limit");
    assert!(text.contains("not as an index does"), "{text}");
}

/// As the hook will: with the same trust, and the same credentials.
#[test]
fn doctor_asks_an_index_over_https() {
    let (home, (index, certificate)) = (Home::new(), Certified::start_https().unwrap());
    index.behave(Behaviour::Status(200, r#"{"status": "ready"}"#.to_owned()));
    let about = |url: &str, ca: Option<PathBuf>, token: &str| {
        let mut doctor = home.doctor(&["/bin/true"]);
        doctor
            .env("CONTEXTPILOT_INDEX_URL", url)
            .env("CONTEXTPILOT_INDEX_TOKEN", token);
        if let Some(ca) = ca {
            doctor.env("CONTEXTPILOT_INDEX_CA", ca);
        }
        let report = json(&mut doctor);
        let index = finding(&report, "index");
        let text = |name: &str| index[name].as_str().unwrap().to_owned();
        (text("grade"), text("text"))
    };
    let (grade, text) = about(&index.url(), None, "");
    assert_eq!(grade, "limit", "{text}");
    assert!(
        text.contains("CONTEXTPILOT_INDEX_CA") && text.contains("TLS"),
        "{text}"
    );
    assert!(index.posts().is_empty());

    let (grade, text) = about(&index.url(), Some(certificate.file()), "t0ken");
    assert_eq!(grade, "ok", "{text}");
    assert_eq!(text, format!("{} answers: ready", index.url()));
    let with_user = index.url().replace("https://", "https://me:s3cret@");
    let (grade, text) = about(&with_user, Some(certificate.file()), "");
    assert_eq!(grade, "ok", "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    let posts = index.posts();
    let sent: Vec<_> = posts
        .iter()
        .map(|post| (post.line(), post.header("authorization").unwrap()))
        .collect();
    let asked = "GET /health HTTP/1.1";
    // The second is `me:s3cret` in Base64.
    assert_eq!(
        sent,
        [(asked, "Bearer t0ken"), (asked, "Basic bWU6czNjcmV0")]
    );

    index.behave(Behaviour::empty(401));
    let (grade, text) = about(&index.url(), Some(certificate.file()), "");
    assert_eq!(grade, "limit");
    assert!(text.contains("401: set CONTEXTPILOT_INDEX_TOKEN"), "{text}");
    // Nothing listens there.
    let nowhere = format!("https://me:s3cret@{}", contextpilot_testbed::nowhere());
    let (grade, text) = about(&nowhere, None, "");
    assert_eq!(grade, "limit");
    assert!(text.contains("does not answer"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn a_server_that_only_observes_is_good() {
    let home = Home::new();
    let server = contextpilot_testbed::llama_server();
    for (name, value) in [
        (
            "CONTEXTPILOT_LISTEN",
            contextpilot_testbed::nowhere().to_string(),
        ),
        (
            "CONTEXTPILOT_LOG_FILE",
            home.path("log").display().to_string(),
        ),
    ] {
        let mut doctor = home.doctor(&[server.to_str().unwrap()]);
        let output = doctor.env(name, value).output().unwrap();
        assert_says(
            &output,
            0,
            &[("ok", "index", "only observes"), ("All good", "", "")],
        );
    }
}

#[test]
fn doctor_counts_the_functions_that_the_running_hook_counts() {
    let home = Home::new();
    let server = Server::tiny()
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
        .spawn()
        .unwrap();
    let address = until("the hook says where it listens", || server.control());
    let file = contextpilot_testbed::llama_server();
    let mut doctor = home.doctor(&[file.to_str().unwrap()]);
    let output = doctor.env("CONTEXTPILOT_LISTEN", address).output().unwrap();
    let said = server.stderr();
    let banner = said.lines().find(|line| line.contains("] Active: "));
    let (before, _) = banner.unwrap().split_once(" functions in ").unwrap();
    let count = before.rsplit('(').next().unwrap();
    assert!(count.parse::<u32>().unwrap() > 20, "{count}");
    assert_says(
        &output,
        0,
        &[
            ("ok", "functions", &format!("{count} will be hooked: ")),
            ("ok", "running", &format!(": {count} functions patched in ")),
            (
                "ok",
                "chat template",
                "nothing of an agent's prompts is evaluated again; more: contextpilot-llama template http://127.0.0.1:",
            ),
        ],
    );
}

#[test]
fn doctor_shows_wrong_settings() {
    let home = Home::new();
    let mut doctor = home.doctor(&["/bin/true"]);
    let report = json(doctor.env("CONTEXTPILOT_INDEX_URL", "localhost:8765"));
    assert_eq!(finding(&report, "settings")["grade"], "fails");
}

#[test]
fn doctor_names_a_misspelt_setting() {
    let home = Home::new();
    let mut doctor = home.doctor(&["/bin/true"]);
    let report = json(doctor.env("CONTEXTPILOT_LOGFILE", "/dev/null"));
    let settings = finding(&report, "settings");
    assert_eq!(settings["grade"], "limit");
    let text = settings["text"].as_str().unwrap();
    assert!(
        text.ends_with("did you mean CONTEXTPILOT_LOG_FILE?"),
        "{text}"
    );
}

#[test]
fn doctor_ends_with_the_command_to_type_next() {
    // Which command that is depends on the servers of this user that run.
    if apart(test_name!()) == Apart::Done {
        return;
    }
    let (home, index) = (Home::new(), Index::start());
    let last = |doctor: &mut Command| {
        let output = text(&doctor.output().unwrap());
        output.lines().last().unwrap().to_owned()
    };
    let server = contextpilot_testbed::llama_server();
    let server = server.to_str().unwrap();

    let mut missing = home.doctor(&[]);
    missing.env("PATH", home.path("nowhere"));
    assert!(
        last(&mut missing)
            .ends_with("LLAMA_SERVER_BIN=/path/to/llama-server contextpilot-llama doctor")
    );
    let again = "Next: set right what fails above, then: contextpilot-llama doctor";
    let plain = last(&mut home.doctor(&["/bin/true"]));
    assert_eq!(plain, format!("{again} /bin/true"));
    let demo = format!("Next: LLAMA_SERVER_BIN={server} contextpilot-llama demo");
    assert_eq!(last(&mut home.doctor(&[server])), demo);

    let serve = format!("LLAMA_SERVER_BIN={server} contextpilot-llama-server -m model.gguf");
    let mut silent = home.doctor(&[server]);
    silent.env("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9");
    let then = format!("Next: contextpilot-llama listen --port 9 &, then: {serve}");
    assert_eq!(last(&mut silent), then);
    let mut ready = home.doctor(&[server]);
    ready.env("CONTEXTPILOT_INDEX_URL", &index.url);
    assert_eq!(last(&mut ready), format!("Next: {serve}"));
    assert_eq!(json(&mut ready)["next"], serve);

    let mut wrong = home.doctor(&[server]);
    wrong.env("CONTEXTPILOT_INDEX_URL", "nowhere");
    assert_eq!(last(&mut wrong), format!("{again} {server}"));
}

/// After an update, a running server keeps the hook that it was started with.
#[test]
fn if_a_running_hook_has_another_version_doctor_says_so() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // The answer of a version whose `/stats` this command cannot read.
        let body = r#"{"hook_version": "0.0.9", "slots": "many"}"#;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let length = body.len();
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json";
            let _ = write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}");
        }
    });
    let versions = [
        "version 0.0.9",
        env!("CARGO_PKG_VERSION"),
        "start the server again",
    ];
    let mut doctor = home.doctor(&["/bin/true"]);
    let report = json(doctor.env("CONTEXTPILOT_LISTEN", &address));
    let stats = Command::new(COMPANION)
        .args(["stats", "--control", &address])
        .output()
        .unwrap();
    let running = finding(&report, "running")["text"].as_str().unwrap();
    let message = String::from_utf8_lossy(&stats.stderr);
    for said in [running, &*message] {
        for part in versions {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
    }
}
