use std::ffi::OsString;

use contextpilot_server_flags::Generation;

use super::*;

const ROUTER_PORT: &str = "LLAMA_SERVER_ROUTER_PORT";

const INDEX: &str = "http://127.0.0.1:8765";

fn place() -> Origin {
    Origin {
        machine: b"0123".to_vec(),
        folder: "/srv/a".into(),
    }
}

fn read(flags: &[&str], variables: &[(&str, &str)], generation: Generation) -> ServerFlags {
    let argv = ["llama-server"].iter().chain(flags).map(OsString::from);
    let env = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| OsString::from(value))
    };
    ServerFlags::read(argv, env, generation)
}

fn of_with(index: &str, flags: &[&str], variables: &[(&str, &str)], place: &Origin) -> Identity {
    let flags = read(flags, variables, Generation::Late2026);
    Identity::of(index, &flags, place)
}

fn of(flags: &[&str], variables: &[(&str, &str)]) -> Identity {
    of_with(INDEX, flags, variables, &place())
}

type Start<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Asserts that all these starts have the same identity, and returns it.
#[track_caller]
fn same(starts: &[Start<'_>]) -> Identity {
    let first = of(starts[0].0, starts[0].1);
    for (flags, variables) in starts {
        assert_eq!(of(flags, variables), first, "{flags:?} {variables:?}");
    }
    first
}

#[test]
fn every_spelling_of_an_address_gives_the_same_identity() {
    let default = same(&[
        (&[], &[]),
        (&["--port", "9931"], &[]),
        (&["--host", "127.0.0.1"], &[]),
        (&["--host", " 127.0.0.1 ,", "--port", " +9931"], &[]),
        (&["--port", "1", "--port", "9931"], &[]),
        (&["--port", "9931"], &[("LLAMA_ARG_PORT", "9000")]),
        (
            &[],
            &[("LLAMA_ARG_PORT", "9931"), ("LLAMA_ARG_HOST", "127.0.0.1")],
        ),
        // llama-server does not know these flags or values, and would not start with them.
        (&["--port=9000", "-port", "9000"], &[]),
        (&["--port"], &[]),
        (&["--port", "--", "--host"], &[]),
        (&["--port", "none", "--port", "99999999999"], &[]),
    ]);
    let other = same(&[
        (&["--port", "9000"], &[]),
        (&["--port", "9000x"], &[]),
        (&[], &[("LLAMA_ARG_PORT", "9000")]),
        (&["--alias", "--port", "--port", "9000"], &[]),
    ]);
    assert_ne!(default, other);
    same(&[
        (&["--host", "LOCALHOST"], &[]),
        (&[], &[("LLAMA_ARG_HOST", "localhost")]),
        (&["--host", "localhost"], &[("LLAMA_ARG_HOST", "0.0.0.0")]),
    ]);
}

#[test]
fn names_with_two_dashes_may_have_underscores() {
    let router: &[(&str, &str)] = &[("LLAMA_SERVER_ROUTER_PORT", "8080")];
    same(&[
        (&["--hf-repo", "a/b"], router),
        (&["--hf_repo", "a/b"], router),
        (&["-hf", "a/b"], router),
        (&["-hfr", "a/b"], router),
        (&[], &[router[0], ("LLAMA_ARG_HF_REPO", "a/b")]),
    ]);
}

#[test]
fn the_model_and_other_flags_do_not_change_the_identity() {
    same(&[
        (&["-m", "a.gguf", "--parallel", "4"], &[]),
        (&["--model", "b.gguf"], &[("LLAMA_ARG_ALIAS", "x")]),
        (&[], &[]),
    ]);
}

#[test]
fn another_address_router_index_or_machine_gives_another_identity() {
    let starts = [
        of(&[], &[]),
        of(&["--port", "0"], &[]),
        of(&["--port", "-1"], &[]),
        of(&["--port", "80"], &[]),
        of(&["--host", "0.0.0.0"], &[]),
        of(&["--host", "::"], &[]),
        of(&["--host", "::,0.0.0.0"], &[]),
        of(&["--host", "0.0.0.0,::"], &[]),
        of(&["--host", "llama.sock"], &[]),
        of(&["--host", "/run/llama.sock"], &[]),
        of(&["--host", "/run/Llama.sock"], &[]),
        of(&["--host", "/run/llama.sock,127.0.0.1"], &[]),
        of(&[], &[(ROUTER_PORT, "8080")]),
        of(&["--alias", "a"], &[(ROUTER_PORT, "8080")]),
        of(&["--alias", "b"], &[(ROUTER_PORT, "8080")]),
        of(&["--alias", "a"], &[(ROUTER_PORT, "8081")]),
        of_with("http://127.0.0.1:8766", &[], &[], &place()),
        of_with(INDEX, &[], &[], &Origin::default()),
    ];
    for (i, a) in starts.iter().enumerate() {
        for (j, b) in starts.iter().enumerate() {
            assert_eq!(a == b, i == j, "{i} and {j}");
        }
    }
}

#[test]
fn a_socket_is_known_by_its_absolute_path_without_a_port() {
    let socket = same(&[
        (&["--host", "/srv/a/llama.sock"], &[]),
        (&["--host", "llama.sock", "--port", "1"], &[]),
    ]);
    let elsewhere = Origin {
        folder: "/srv/b".into(),
        ..place()
    };
    let flags = ["--host", "llama.sock"];
    assert_ne!(of_with(INDEX, &flags, &[], &elsewhere), socket);
    // Without a relative socket path the folder does not matter.
    assert_eq!(of_with(INDEX, &[], &[], &elsewhere), of(&[], &[]));
}

#[test]
fn a_routers_child_is_known_by_its_model_whatever_its_port() {
    let router: &[(&str, &str)] = &[(ROUTER_PORT, "8080")];
    same(&[
        (&["--port", "41001", "--alias", "a", "-m", "x"], router),
        (&["--port", "41002", "-a", "a", "-m", "y"], router),
    ]);
    assert_ne!(
        of(&["--port", "41001", "-m", "x"], router),
        of(&["--port", "41001", "-m", "y"], router)
    );
}

/// A later version must find the journal of an earlier one.
#[test]
fn the_identity_stays_what_it_was() {
    let of = |flags: &[&str], variables: &[(&str, &str)], generation| {
        let flags = read(flags, variables, generation);
        Identity::of(INDEX, &flags, &place()).to_string()
    };
    let usual = of(&[], &[], Generation::Mid2026);
    assert_eq!(usual, "bb20dad4c56f36422e67fa131befe7c7");
    let given = of(&["--port", "8080"], &[], Generation::Late2026);
    assert_eq!(given, usual);
    let two = ["--host", "0.0.0.0,here.sock", "--port", "9000"];
    let two = of(&two, &[], Generation::Late2026);
    assert_eq!(two, "6d5e67c10ba5437b1e03cc2782a9d0de");
    let child = ["-a", "b,a", "-m", "x"];
    let child = of(&child, &[(ROUTER_PORT, "8080")], Generation::Late2026);
    assert_eq!(child, "a2c92efdeb742359fab5ecf3517f7a3e");
}

/// Without `--port`, a server of 0.7.0 is not the one that was at port 8080.
#[test]
fn the_usual_port_is_that_of_the_servers_version() {
    let at = |generation| Identity::of(INDEX, &read(&[], &[], generation), &place());
    assert_ne!(at(Generation::Late2026), at(Generation::Mid2026));
    assert_eq!(at(Generation::Late2026), of(&["--port", "9931"], &[]));
}

#[test]
fn the_digest_of_a_known_text_is_that_of_fnv_1a() {
    let mut digest = Digest::new();
    digest.write(b"foobar");
    // Published test vector of FNV-1a, 128 bits.
    assert_eq!(digest.0, 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    // A later version must find the journal again, so the length of its name stays.
    assert_eq!(of(&[], &[]).to_string().len(), 32);
}
