//! The hook's table of functions, without the functions.

#[path = "../hook/src/attach/table.rs"]
#[macro_use]
mod hook;

pub(crate) use hook::{
    ADAPTERS, EVALUATION, FORGOTTEN, Generations, HOST_CACHE, LAUNCH, MEMORY, NUMBERS, PROMPTS,
    SESSIONS_SOCKET, UNCACHED, is_called, is_seen_elsewhere, newest, ties_by_prompts,
};

/// One function of the table. Its documentation is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The module of the hook that has it.
    pub(crate) module: &'static str,
    pub(crate) generation: &'static str,
    pub(crate) required: bool,
    /// As the linker knows it.
    pub(crate) name: &'static str,
}

macro_rules! rows {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident $arguments:tt $(-> $result:ty)?; )*) => {
        /// All rows, in the table's order.
        const ALL: &[Row] = &[$(
            Row {
                module: stringify!($module),
                generation: stringify!($generation),
                required: is_required(stringify!($need)),
                name: stringify!($name),
            },
        )*];
    };
}
for_each_hooked!(rows);

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident $arguments:tt $(-> $result:ty)?; )*) => {
        /// Of the functions that are hooked on every platform.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}
for_each_interposed!(names);

/// The functions that are hooked on every platform.
pub(crate) static ROWS: &[Row] = ALL.split_at(NAMES.len()).0;

/// OpenSSL's functions, which are hooked all together or not at all.
pub(crate) static OPENSSL: &[Row] = ALL
    .split_at(ALL.len() - STORE_COUNT)
    .0
    .split_at(NAMES.len())
    .1;

/// How many functions are hooked for the prefix store, or in modules, only. They stand last.
const STORE_COUNT: usize = {
    let (mut count, mut at) = (0, 0);
    while at < ALL.len() {
        if matches!(
            ALL[at].generation.as_bytes(),
            b"store" | b"straight" | b"encoder" | b"member"
        ) {
            count += 1;
        }
        at += 1;
    }
    count
};

const fn is_required(need: &str) -> bool {
    matches!(need.as_bytes(), b"required")
}
