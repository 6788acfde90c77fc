//! Compresses the page, for the hook library to carry.

use std::path::PathBuf;
use std::{env, fs};

const PAGE: &str = "built/page.html";

fn main() {
    println!("cargo::rerun-if-changed={PAGE}");
    let page = fs::read(PAGE).unwrap_or_else(|e| panic!("{PAGE} cannot be read: {e}"));
    // A zlib stream: browsers call that `deflate`.
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(&page, 10);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let at = out.join("page.html.z");
    fs::write(&at, compressed)
        .unwrap_or_else(|e| panic!("{} cannot be written: {e}", at.display()));
}
