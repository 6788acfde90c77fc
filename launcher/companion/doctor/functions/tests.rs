use super::*;

/// A server in which every function of the table is interposed, but for those of other
/// generations and `absent`.
fn functions(absent: &[&str]) -> Functions {
    let way = |row: &Row| match row.generation == "server25" || absent.contains(&row.name) {
        true => Way::Missing,
        false => Way::Interposed,
    };
    Functions(ROWS.iter().map(|row| (row, way(row))).collect())
}

/// A function that is renamed in the hook's table would otherwise count as missing here.
#[test]
fn the_names_here_are_the_tables() {
    for name in [
        ANCHOR,
        "llama_process",
        "llama_state_seq_get_data_ext",
        "_ZdlPvm",
        "_ZN12server_queue10get_new_idEv",
        "llama_init_from_model",
        "llama_get_memory",
        "llama_decode",
        "_ZdaPv",
    ] {
        assert!(ROWS.iter().any(|row| row.name == name), "{name}");
    }
    let required = |generation: &str| {
        let mut rows = ROWS.iter();
        rows.any(|row| row.required && row.generation == generation)
    };
    for generation in ["any", "libc", "extended", "legacy"] {
        assert!(required(generation), "{generation}");
    }
}

#[test]
fn a_complete_server_is_good() {
    let functions = functions(&[]);
    assert_eq!(functions.kv_cache().grade, Grade::Good);
    assert_eq!(functions.host_cache().grade, Grade::Good);
    assert_eq!(functions.request_ids().grade, Grade::Good);
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
    assert_eq!(functions(&["_ZdlPvm"]).host_cache().grade, Grade::Limited);
    let queue = functions(&["_ZN12server_queue10get_new_idEv"]).request_ids();
    assert_eq!(queue.grade, Grade::Fails);
    assert!(queue.text.contains("get_new_id"), "{}", queue.text);
}

#[test]
fn a_refusal_matters_unless_another_hook_sees_the_same() {
    let functions = functions(&[]);
    assert!(seen_elsewhere("llama_decode", &functions));
    assert!(!seen_elsewhere(ANCHOR, &functions));
}
