//! A report: the page with the data inside.

/// The page as it was built.
pub(crate) static PAGE: &str = include_str!("../built/page.html");

/// Where the data of a report stands in the page.
const DATA: &str = "id=\"data\">";

/// The page with data inside: one file that needs nothing else. `packed`: JSON in a zlib stream in base64, which
/// has no character that means anything in HTML.
#[must_use]
pub fn report(packed: &str) -> String {
    let (before, after) = PAGE.split_once(DATA).unwrap_or((PAGE, ""));
    [before, DATA, packed, after].concat()
}
