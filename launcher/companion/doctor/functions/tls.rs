//! Whether the ids of requests over https are read.

use contextpilot_inspect::{Calls, FunctionPlace, Located, Program};

use crate::companion::doctor::report::{Finding, Grade};
use crate::table::{OPENSSL, ROWS, SESSIONS_SOCKET};

use super::kind::{HookKind, has, verdicts};

/// How OpenSSL's functions are hooked, all alike, and what follows.
pub(super) fn examine(program: &Program, located: &Located) -> (HookKind, Finding) {
    let behind = located.functions.iter().skip(ROWS.len());
    let functions = behind.take(OPENSSL.len());
    let places: Vec<&FunctionPlace> = functions.map(|(_, place)| place).collect();
    let is_imported = |place: &&FunctionPlace| {
        let calls = Calls::Imported;
        matches!(place, FunctionPlace::Dynamic { calls: found, .. } if *found == calls)
    };
    let is_inside = |place: &&FunctionPlace| matches!(place, FunctionPlace::Inside(_));
    let is_complete = places.len() == OPENSSL.len() && has(located, SESSIONS_SOCKET);
    let (way, grade, text) = if is_complete && places.iter().all(is_imported) {
        let text = "ids are read within it: OpenSSL is a library";
        (HookKind::Imported, Grade::Good, text.to_owned())
    } else if is_complete && places.iter().all(is_inside) {
        inside(program)
    } else if places.iter().any(is_inside) {
        limited("not all of it is there")
    } else {
        let text = "no OpenSSL that is known: ids of requests over https, if it takes any, are \
                    not read";
        (HookKind::Missing, Grade::Good, text.to_owned())
    };
    (way, Finding::new("TLS", grade, text))
}

fn inside(program: &Program) -> (HookKind, Grade, String) {
    let names: Vec<&str> = OPENSSL.iter().map(|row| row.name).collect();
    let mut refused = names.iter().zip(verdicts(program, &names));
    match refused.find_map(|(name, why)| Some(format!("{name} {}", why?))) {
        None => {
            let text = "ids are read within it: OpenSSL is inside, and hooked there";
            (HookKind::Inline, Grade::Good, text.to_owned())
        }
        Some(why) => limited(&why),
    }
}

fn limited(why: &str) -> (HookKind, Grade, String) {
    let text = format!(
        "OpenSSL is linked in, and cannot be hooked ({why}): ids of requests over https \
         (--ssl-cert-file) are not read; let a proxy do the TLS, or use a shared build"
    );
    (HookKind::Missing, Grade::Limited, text)
}
