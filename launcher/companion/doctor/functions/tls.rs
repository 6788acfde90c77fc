//! Whether the ids of requests over https are read.

use contextpilot_inspect::{Calls, Located, Place, Program};

use crate::companion::doctor::{Finding, Grade};
use crate::table::{OPENSSL, ROWS, SESSIONS_SOCKET};

use super::{has_mark, verdicts};

/// Of the functions of the second table, which come after those of the first.
pub(super) fn finding(program: &Program, located: &Located) -> Finding {
    let functions = located.functions.iter().skip(ROWS.len());
    let functions = functions.take(OPENSSL.len());
    let places: Vec<&Place> = functions.map(|(_, place)| place).collect();
    let is_imported = |place: &&Place| {
        let calls = Calls::Imported;
        matches!(place, Place::Dynamic { calls: found, .. } if *found == calls)
    };
    let is_inside = |place: &&Place| matches!(place, Place::Inside(_));
    let is_complete = places.len() == OPENSSL.len() && has_mark(located, SESSIONS_SOCKET);
    let (grade, text) = if is_complete && places.iter().all(is_imported) {
        (
            Grade::Good,
            "ids are read within it: OpenSSL is a library".to_owned(),
        )
    } else if is_complete && places.iter().all(is_inside) {
        inside(program)
    } else if places.iter().any(is_inside) {
        limited("not all of it is there")
    } else {
        let text = "no OpenSSL that is known: ids of requests over https, if it takes any, are \
                    not read";
        (Grade::Good, text.to_owned())
    };
    Finding::new("TLS", grade, text)
}

fn inside(program: &Program) -> (Grade, String) {
    let mut refused = OPENSSL.iter().zip(verdicts(program, OPENSSL));
    match refused.find_map(|(name, why)| Some(format!("{name} {}", why?))) {
        None => (
            Grade::Good,
            "ids are read within it: OpenSSL is inside, and hooked there".to_owned(),
        ),
        Some(why) => limited(&why),
    }
}

fn limited(why: &str) -> (Grade, String) {
    let text = format!(
        "OpenSSL is linked in, and cannot be hooked ({why}): ids of requests over https \
         (--ssl-cert-file) are not read; let a proxy do the TLS, or use a shared build"
    );
    (Grade::Limited, text)
}
