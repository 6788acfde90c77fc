use std::path::{Path, PathBuf};

use super::*;

fn dynamic(rpath: Option<&str>, runpath: Option<&str>) -> Dynamic {
    Dynamic {
        rpath: rpath.map(Into::into),
        runpath: runpath.map(Into::into),
        ..Dynamic::default()
    }
}

/// A folder with a copy of this test, which is a sound ELF file for this machine, under each name.
fn library_folder(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        std::fs::copy(std::env::current_exe().unwrap(), folder.path().join(name)).unwrap();
    }
    folder
}

fn finder(library_path: Option<&Path>) -> Finder {
    let search = Search {
        library_path: library_path.map(Into::into),
        cache: "/nonexistent".into(),
    };
    Finder::new(&search, Machine::OURS, Path::new("/"))
}

fn find(
    finder: &Finder,
    origin: &Path,
    dynamic: &Dynamic,
    inherited: &[PathBuf],
) -> Option<PathBuf> {
    let seeker = Seeker {
        origin,
        dynamic,
        inherited,
    };
    finder.find("libx.so", &seeker)
}

#[test]
fn the_order_is_that_of_the_dynamic_linker() {
    let own = library_folder(&["libx.so"]);
    let ours = library_folder(&["libx.so"]);
    let inherited = library_folder(&["libx.so"]);
    let (own, ours, inherited) = (own.path(), ours.path(), inherited.path());
    let plain = finder(None);
    let with_path = finder(Some(ours));
    let parents = [inherited.to_owned()];

    let rpath = dynamic(Some("$ORIGIN"), None);
    let runpath = dynamic(None, Some("${ORIGIN}"));
    let none = dynamic(None, None);
    let at = |folder: &Path| Some(folder.join("libx.so"));
    assert_eq!(find(&with_path, own, &rpath, &parents), at(own));
    assert_eq!(find(&with_path, own, &runpath, &parents), at(ours));
    assert_eq!(find(&plain, own, &runpath, &parents), at(own));
    assert_eq!(find(&with_path, own, &none, &parents), at(inherited));
    assert_eq!(find(&with_path, own, &none, &[]), at(ours));
    assert_eq!(find(&plain, own, &none, &[]), None);
    // Where both are there, the older kind is without effect.
    let both = dynamic(Some("/nonexistent"), Some("$ORIGIN"));
    assert_eq!(find(&plain, own, &both, &parents), at(own));
    assert!(plain.rpath(own, &both).is_empty());
}

#[test]
fn a_library_for_another_machine_is_passed_over() {
    let folder = library_folder(&["libx.so"]);
    let path = folder.path().join("libx.so");
    let other = match Machine::OURS {
        Machine::X86_64 => 183,
        _ => 62_u16,
    };
    let mut content = std::fs::read(&path).unwrap();
    content[18..20].copy_from_slice(&other.to_le_bytes());
    std::fs::write(&path, content).unwrap();
    let runpath = dynamic(None, Some("$ORIGIN"));
    assert_eq!(find(&finder(None), folder.path(), &runpath, &[]), None);
}

#[test]
fn the_cache_is_read_and_a_broken_one_does_no_harm() {
    let mut cache = b"glibc-ld.so.cache1.1".to_vec();
    cache.extend(1_u32.to_ne_bytes());
    cache.resize(48, 0);
    let names = 48 + 24;
    for field in [1, names, names + 8, 0, 0, 0_u32] {
        cache.extend(field.to_ne_bytes());
    }
    cache.extend(b"libx.so\0/opt/libx.so\0");
    let parsed = parse_cache(&cache).unwrap();
    assert_eq!(
        parsed[OsStr::new("libx.so")],
        [PathBuf::from("/opt/libx.so")]
    );
    // Behind the older part, and cut off anywhere.
    let older = [b"ld.so-1.7.0\0\0\0\0\0", &cache[..]].concat();
    assert_eq!(parse_cache(&older), Some(parsed));
    for length in 0..cache.len() {
        assert_eq!(
            parse_cache(&cache[..length]).filter(|found| !found.is_empty()),
            None
        );
    }
}
