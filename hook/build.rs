//! On macOS a name that no library of the link defines has to be allowed, one by one: those of the
//! table are looked for when the hook is loaded.

#![allow(clippy::disallowed_macros, reason = "cargo reads what this prints")]
#![allow(clippy::disallowed_methods, reason = "this is no library")]

#[path = "src/attach/table.rs"]
#[macro_use]
#[allow(dead_code, unused_macros, reason = "only the names are needed")]
mod table;

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident $arguments:tt $(-> $result:ty)?; )*) => {
        [$(stringify!($name)),*]
    };
}

fn main() {
    println!("cargo::rerun-if-changed=src/attach/table.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos") {
        for name in for_each_interposed!(names) {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-U,_{name}");
        }
    }
}
