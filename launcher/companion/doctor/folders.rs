use contextpilot_private_folder::{Base, PrivateFolder};

use crate::variables::Lookup;

use super::{Finding, Grade};

/// Where the journal of live request ids lies.
pub(super) fn state(lookup: impl Lookup, journal: bool) -> Finding {
    const SUBJECT: &str = "state folder";
    if !journal {
        return Finding::new(
            SUBJECT,
            Grade::Limited,
            "not used: no journal is kept (CONTEXTPILOT_JOURNAL=0), so what a crash takes from \
             the cache is not reported",
        );
    }
    match PrivateFolder::open(Base::State, lookup) {
        Ok(folder) => Finding::new(SUBJECT, Grade::Good, folder.path().display().to_string()),
        Err(why) => Finding::new(
            SUBJECT,
            Grade::Limited,
            format!(
                "{why}: no journal is kept, so what a crash takes from the cache is not reported; \
                 set XDG_STATE_HOME to a folder of your own"
            ),
        ),
    }
}
