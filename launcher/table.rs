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
        pub(crate) static ROWS: &[Row] = &[$(
            Row {
                module: stringify!($module),
                generation: stringify!($generation),
                required: is_required(stringify!($need)),
                name: stringify!($name),
            },
        )*];
    };
}
for_each_interposed!(rows);

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident $arguments:tt $(-> $result:ty)?; )*) => {
        /// The rows' names, and those of OpenSSL's functions after them.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}
for_each_hooked!(names);

/// OpenSSL's functions, which are hooked all together or not at all.
pub(crate) static OPENSSL: &[&str] = NAMES.split_at(ROWS.len()).1;

const fn is_required(need: &str) -> bool {
    matches!(need.as_bytes(), b"required")
}
