use crate::table::EVALUATION;

use super::*;

/// A server in which every function of the table is imported, but for those of the
/// `generations` and the `absent`.
fn without(generations: &[&str], absent: &[&str]) -> Functions {
    let way = |row: &Row| {
        if generations.contains(&row.generation) || absent.contains(&row.name) {
            HookKind::Missing
        } else {
            HookKind::Imported
        }
    };
    let host_cache = !generations.contains(&"memory");
    Functions::from_ways(ROWS.iter().map(|row| (row, way(row))), host_cache, false)
}

/// A server of 2026.
fn functions(absent: &[&str]) -> Functions {
    without(
        &["kv_self", "kv_cache", "server_waiting", "server25"],
        absent,
    )
}

/// A function that is renamed in the hook's table would otherwise count as missing here.
#[test]
fn the_names_here_are_the_tables() {
    let anchors = [MEMORY, EVALUATION, NUMBERS, LAUNCH].into_iter().flatten();
    for (generation, name) in anchors {
        let row = ROWS.iter().find(|row| row.name == *name);
        assert_eq!(row.map(|row| row.generation), Some(*generation), "{name}");
    }
    for (_, name) in UNCACHED {
        assert!(ROWS.iter().any(|row| row.name == *name), "{name}");
    }
    for name in [
        "llama_state_seq_get_data_ext",
        "_ZdlPvm",
        "llama_init_from_model",
        "llama_get_memory",
        "_ZdaPv",
        "mtmd_helper_decode_image_chunk",
    ] {
        assert!(ROWS.iter().any(|row| row.name == name), "{name}");
    }
    let generations = [MEMORY, EVALUATION].into_iter().flatten();
    for generation in generations.map(|(name, _)| *name).chain(["any", "libc"]) {
        let mut rows = ROWS.iter();
        let required = rows.any(|row| row.required && row.generation == generation);
        assert!(required, "{generation}");
    }
}

#[test]
fn a_complete_server_is_good() {
    let functions = functions(&[]);
    assert_eq!(functions.kv_cache().grade, Grade::Good);
    assert_eq!(functions.host_cache().grade, Grade::Good);
    assert_eq!(functions.request_ids().grade, Grade::Good);
    assert!(functions.prompts().text.contains("images: exact"));
}

#[test]
fn each_generation_is_good_without_the_others() {
    let newer = ["memory", "extended", "server_queue", "server26"];
    for memory in ["kv_self", "kv_cache"] {
        let absent: Vec<_> = ["kv_self", "kv_cache"]
            .into_iter()
            .filter(|other| *other != memory)
            .chain(newer)
            .collect();
        let image = "mtmd_helper_decode_image_chunk";
        let functions = without(&absent, &["llama_state_seq_get_data_ext", image]);
        assert_eq!(functions.kv_cache().grade, Grade::Good, "{memory}");
        assert_eq!(functions.host_cache().text, "none in this version");
        assert_eq!(functions.prompts().grade, Grade::Good, "{memory}");
        assert!(functions.prompts().text.contains("images: none"));
        // The others are no loss, and not worth a line.
        let missing = functions.consequences();
        assert!(
            missing.iter().all(|line| !line.contains("llama_memory")),
            "{missing:#?}"
        );
        let clear = ROWS.iter().find(|row| row.name == "llama_memory_clear");
        assert_eq!(
            functions.consequence(clear.expect("it"), &HookKind::Missing),
            format!("not needed, this version has llama_{memory}_seq_rm")
        );
        // And it has to be complete.
        let absent_too = format!("llama_{memory}_seq_add");
        let functions = without(&absent, &[&absent_too]);
        assert_eq!(functions.kv_cache().grade, Grade::Fails, "{memory}");
        assert!(functions.prompts().text.contains("not tracked"));
    }
}

#[test]
fn what_is_missing_has_its_consequence() {
    let absent = functions(&["llama_memory_seq_cp"]).kv_cache();
    assert_eq!(absent.grade, Grade::Fails);
    assert!(absent.text.contains("llama_memory_seq_cp"));
    // Half of the newer way of evaluating is worse than none.
    assert_eq!(
        functions(&["llama_batch_ext_add"]).kv_cache().grade,
        Grade::Fails
    );
    assert_eq!(
        functions(&["llama_process", "llama_batch_ext_add"])
            .kv_cache()
            .grade,
        Grade::Good
    );
    for name in ["_ZdlPvm", "llama_state_seq_get_data_ext"] {
        let host_cache = functions(&[name]).host_cache();
        assert_eq!(host_cache.grade, Grade::Limited);
        assert!(host_cache.text.contains(name), "{}", host_cache.text);
    }
    let name = "_ZN12server_queue10get_new_idEv";
    let queue = functions(&[name, "llama_tokenize"]).request_ids();
    assert_eq!(queue.grade, Grade::Fails);
    assert!(queue.text.contains("get_new_id"), "{}", queue.text);
}

#[test]
fn prompts_stand_in_for_the_servers_own_functions_and_for_nothing_else() {
    let name = |functions: &Functions| functions.names(&HookKind::Imported);
    let tokenize = "llama_tokenize".to_owned();
    assert!(!name(&functions(&[])).contains(&tokenize));
    for generation in ["server_queue", "server26"] {
        let absent = [
            "kv_self",
            "kv_cache",
            "server_waiting",
            "server25",
            generation,
        ];
        let functions = without(&absent, &[]);
        assert!(name(&functions).contains(&tokenize), "{generation}");
        let (ids, prompts) = (functions.request_ids(), functions.prompts());
        assert_eq!((ids.grade, prompts.grade), (Grade::Limited, Grade::Good));
        assert!(ids.text.contains("by their prompts"), "{}", ids.text);
        assert!(prompts.text.contains("infill: exact"), "{}", prompts.text);
        assert!(prompts.text.contains("images: exact"), "{}", prompts.text);
        let prompts = without(&absent, &["mtmd_tokenize"]).prompts();
        assert_eq!(prompts.grade, Grade::Limited);
        assert!(prompts.text.contains("images: not tracked"));
    }
}

#[test]
fn a_refusal_matters_unless_another_hook_sees_the_same() {
    let functions = without(&[], &[]);
    let sees_elsewhere = |name: &str| {
        let row = ROWS.iter().find(|row| row.name == name);
        functions.sees_elsewhere(row.expect(name))
    };
    for name in ["llama_decode", "llama_get_memory", "llama_kv_self_clear"] {
        assert!(sees_elsewhere(name), "{name}");
    }
    for name in ["llama_process", "llama_memory_seq_rm", "llama_free"] {
        assert!(!sees_elsewhere(name), "{name}");
    }
}
