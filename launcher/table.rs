//! The hook's own table of functions, as far as it can be told without the functions.

#[path = "../hook/src/table.rs"]
#[macro_use]
mod hook;

pub(crate) use hook::{
    EVALUATION, FORGOTTEN, Generations, HOST_CACHE, LAUNCH, MEMORY, NUMBERS, PROMPTS,
    SESSIONS_SOCKET, UNCACHED, is_called, is_seen_elsewhere, newest, ties_by_prompts,
};

/// One function of the table. Its documentation is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The part of the hook that wants it.
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
        /// The functions that are not exported, but have the imports of others pointed to them, or
        /// are inside the executable.
        pub(crate) static REDIRECTED: &[&str] = &[$(stringify!($name)),*];
    };
}
for_each_redirected!(names);

const fn is_required(need: &str) -> bool {
    matches!(need.as_bytes(), b"required")
}
