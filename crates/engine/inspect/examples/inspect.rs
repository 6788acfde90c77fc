//! Prints what there is to know about a server: `cargo run --example inspect -- FILE FUNCTION…`

use std::path::Path;
use std::time::Instant;

use contextpilot_inspect::{Error, Format, Machine, Program, Search};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((path, functions)) = arguments.split_first() else {
        eprintln!("usage: inspect FILE [FUNCTION…]");
        return Ok(());
    };
    let functions: Vec<&str> = functions.iter().map(String::as_str).collect();
    let start = Instant::now();
    let program = Program::open(Path::new(path))?;
    println!("{:?} ({:?})", program.format, start.elapsed());
    for obstacle in program.obstacles(Machine::OURS) {
        println!("obstacle: {obstacle}");
    }
    if let Format::MachO(slices) = &program.format {
        for slice in slices {
            for obstacle in program.obstacles_on_macos(slice.machine) {
                println!("on macOS, {}: {obstacle}", slice.machine);
            }
        }
    }
    let search = Search {
        library_path: std::env::var_os("LD_LIBRARY_PATH"),
        ..Search::default()
    };
    let start = Instant::now();
    let located = program.locate(&functions, &search)?;
    if let Some(build) = &located.build {
        println!("build: {build}");
    }
    for library in &located.libraries {
        println!("library: {} {:?}", library.name, library.path);
    }
    for (name, place) in &located.functions {
        println!("{name}: {place:?}");
    }
    println!("({:?})", start.elapsed());
    Ok(())
}
