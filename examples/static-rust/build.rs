//! Keeps llama.cpp's functions in the program, so that the hook can find them.

fn main() {
    // rustc has the linker remove what the program does not call. The hook calls some of it. What is exported stays, also in a
    // program that is stripped.
    println!("cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=llama_*");
}
