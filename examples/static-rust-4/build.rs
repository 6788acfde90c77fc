//! Keeps llama.cpp's functions in the program, so that the hook can find them.

fn main() {
    // rustc has the linker remove what the program does not call. The hook calls some of it. With --no-gc-sections, as in
    // ../static-rust, this crate does not link: a part of llama.cpp that it does not use needs a library that it does not name.
    println!("cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=llama_*");
}
