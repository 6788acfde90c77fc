//! Checks that dyld would find in the macOS library what it needs. The library cannot be run here.
//! `scripts/check-macos` links it and runs this test.
#![allow(clippy::disallowed_methods, reason = "this is no library")]

use std::collections::BTreeSet;

use object::macho::{self, MachHeader64};
use object::read::macho::{MachHeader, Nlist, Section, Segment};
use object::{LittleEndian, Object};

#[path = "../src/attach/table.rs"]
#[macro_use]
#[allow(dead_code, unused_macros, reason = "only the names are needed")]
mod table;

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident $arguments:tt $(-> $result:ty)?; )*) => {
        [$(concat!("_", stringify!($name))),*]
    };
}

type Header = MachHeader64<LittleEndian>;

/// The library number of a symbol that may be in any library: as zig writes it, and
/// as Apple's linker does (`DYNAMIC_LOOKUP_ORDINAL`).
const IN_NO_LIBRARY: [u16; 2] = [0, 0xfe];

/// Prefixes of the symbols in CoreFoundation and Security.
const FRAMEWORKS: [&str; 7] = [
    "_Authorization",
    "_CF",
    "_CMS",
    "_SSL",
    "_Sec",
    "_kCF",
    "_kSec",
];

#[test]
#[ignore = "scripts/check-macos says where the library is"]
fn every_row_has_an_interpose_pair_and_every_original_is_weak() {
    let path = std::env::var_os("CONTEXTPILOT_DYLIB").expect("the path of the library");
    let file = std::fs::read(path).expect("the library");
    let names = for_each_interposed!(names);

    let header = Header::parse(&*file, 0).expect("a Mach-O file");
    let mut commands = header
        .load_commands(LittleEndian, &*file, 0)
        .expect("sound");
    let mut sections = Vec::new();
    let mut weak = BTreeSet::new();
    let mut open = BTreeSet::new();
    while let Some(command) = commands.next().expect("sound") {
        if let Some((segment, rest)) = command.segment_64().expect("sound") {
            for section in segment.sections(LittleEndian, rest).expect("sound") {
                let name = String::from_utf8_lossy(section.name()).into_owned();
                let kind = section.flags(LittleEndian).0 & 0xff;
                sections.push((name, kind, section.size.get(LittleEndian)));
            }
        }
        if let Some(table) = command.symtab().expect("sound") {
            let symbols = table
                .symbols::<Header, _>(LittleEndian, &*file)
                .expect("sound");
            for symbol in symbols.iter() {
                let name = symbol.name(LittleEndian, symbols.strings()).expect("sound");
                if !symbol.is_undefined() {
                    continue;
                }
                let name = String::from_utf8_lossy(name).into_owned();
                let description = symbol.n_desc(LittleEndian).0;
                if description & macho::N_WEAK_REF.0 != 0 {
                    weak.insert(name);
                } else if IN_NO_LIBRARY.contains(&(description >> 8)) {
                    open.insert(name);
                }
            }
        }
    }
    let find = |wanted: &str| sections.iter().find(|(name, ..)| name == wanted);

    // A pair of pointers for each row.
    let (_, _, size) = find("__interpose").expect("the section that dyld looks for");
    assert_eq!(*size, 16 * names.len() as u64);
    // With a strong reference, dyld would end every program that lacks the function.
    let strong: Vec<_> = names.iter().filter(|name| !weak.contains(**name)).collect();
    assert!(strong.is_empty(), "{strong:?}");
    // The library was linked without the frameworks. Any other undefined symbol would be missing on a Mac, too.
    open.retain(|name| !FRAMEWORKS.iter().any(|prefix| name.starts_with(prefix)));
    assert!(open.is_empty(), "{open:?}");
    // If we exported these names, the pairs' originals would be our own functions.
    let file = object::File::parse(&*file).expect("sound");
    for export in file.exports().expect("sound") {
        let export = export.expect("sound");
        let name = String::from_utf8_lossy(export.name().name().unwrap_or_default()).into_owned();
        assert!(!names.contains(&name.as_str()), "{name}");
    }
    // dyld calls the functions in this section because of its kind, not its name. The constructor
    // registers what runs at exit: `__mod_term_func` is a section of old binaries.
    assert_eq!(find("__mod_init_func").map(|section| section.1), Some(0x9));
    assert!(find("__mod_term_func").is_none());
}
