//! Programs linked in the ways in which servers are, and files that are none.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use contextpilot_inspect::elf::Source;
use contextpilot_inspect::{
    Calls, Error, Format, FunctionPlace, Libc, Linkage, Located, Machine, Obstacle, Privilege,
    Program, Search,
};
use contextpilot_testbed::skip;

const ENGINE: &str = r#"
    int LLAMA_BUILD_NUMBER = 5262;
    const char * LLAMA_COMMIT = "1d36b367";
    const char * llama_version(void) { return "0.7.0"; }
    int llama_decode(int x) { return x + 1; }
    int llama_tokenize(int x) { return x + 2; }
    __attribute__((visibility("hidden"))) int hidden(int x) { return x * 5; }
    int calls_itself(int x) { return x > 0 ? llama_tokenize(x) + hidden(x) : 0; }
"#;

const SERVER: &str = r#"
    #include <stdio.h>
    int llama_decode(int); int calls_itself(int); const char * llama_version(void);
    int main(void) { printf("%d %d %s\n", llama_decode(1), calls_itself(2), llama_version()); }
"#;

const FUNCTIONS: [&str; 7] = [
    "llama_decode",
    "calls_itself",
    "llama_tokenize",
    "hidden",
    "printf",
    "llama_kv_self_clear",
    "LLAMA_BUILD_NUMBER",
];

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a temporary folder"));
        fs::write(folder.path("engine.c"), ENGINE).expect("writable");
        fs::write(folder.path("server.c"), SERVER).expect("writable");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn cc(&self, arguments: &[&str]) {
        let output = Command::new("cc")
            .args(["-O1", "-fno-builtin"])
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .expect("cc runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn shared(&self, library_flags: &[&str], flags: &[&str]) -> Program {
        let library = ["-shared", "-fPIC", "engine.c", "-o", "libllama.so"];
        self.cc(&[&library, library_flags].concat());
        self.cc(&[&["server.c", "-o", "server", "-L.", "-lllama"], flags].concat());
        self.open("server")
    }

    fn single(&self, flags: &[&str]) -> Program {
        self.cc(&[&["server.c", "engine.c", "-o", "server"], flags].concat());
        self.open("server")
    }

    fn open(&self, name: &str) -> Program {
        Program::open(&self.path(name)).expect("it is readable")
    }

    fn file(&self, name: &str, content: &[u8]) -> Program {
        fs::write(self.path(name), content).expect("writable");
        self.open(name)
    }
}

fn located(program: &Program) -> Located {
    let located = program.locate(&FUNCTIONS, &Search::default());
    located.expect("it is sound")
}

fn places(program: &Program) -> Vec<FunctionPlace> {
    located(program)
        .functions
        .into_iter()
        .map(|(_, place)| place)
        .collect()
}

fn is_missing(place: &FunctionPlace) -> bool {
    matches!(place, FunctionPlace::Missing { .. })
}

#[test]
fn a_shared_build_is_interposed() {
    let folder = Folder::new();
    let program = folder.shared(&[], &["-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"]);
    let executable = program.executable().expect("it is an ELF file");
    assert_eq!(executable.machine, Machine::OURS);
    assert_eq!(executable.dynamic.runpath.as_deref(), Some("$ORIGIN"));
    assert!(executable.needs_engine());
    assert_eq!(program.obstacles(Machine::OURS), []);
    assert_eq!(program.obstacles_on_macos(Machine::OURS), [Obstacle::Elf]);

    let located = located(&program);
    let library = folder
        .path("libllama.so")
        .canonicalize()
        .expect("it is there");
    let engine = |calls| FunctionPlace::Dynamic {
        exporter: Some(library.clone()),
        calls,
    };
    let place = |index: usize| &located.functions[index].1;
    assert_eq!(place(0), &engine(Calls::Imported));
    assert_eq!(place(1), &engine(Calls::Imported));
    assert_eq!(place(2), &engine(Calls::FromItself));
    assert!(is_missing(place(3)));
    assert!(matches!(
        place(4),
        FunctionPlace::Dynamic {
            exporter: Some(_),
            calls: Calls::Imported
        }
    ));
    assert!(is_missing(place(5)));
    assert_eq!(located.unresolved().count(), 0);
    assert_eq!(
        located.build.expect("it is known").to_string(),
        "0.7.0 (b5262-1d36b367)"
    );
    assert!(located.libraries.len() >= 2, "the engine and the C library");
}

#[test]
fn a_library_that_calls_itself_directly_is_told_apart() {
    let folder = Folder::new();
    // Linkers write a flag, a tag of its own, or both.
    for how in ["-Wl,-Bsymbolic", "-Wl,-Bsymbolic,--disable-new-dtags"] {
        let program = folder.shared(&[how], &["-Wl,-rpath,$ORIGIN"]);
        let found = places(&program);
        assert!(matches!(
            found[0],
            FunctionPlace::Dynamic {
                calls: Calls::Imported,
                ..
            }
        ));
        assert!(matches!(
            found[2],
            FunctionPlace::Dynamic {
                calls: Calls::Unseen,
                ..
            }
        ));
    }
}

#[test]
fn a_library_that_is_not_found_is_named_and_imports_are_known_all_the_same() {
    let folder = Folder::new();
    let program = folder.shared(&[], &[]);
    let located = located(&program);
    assert_eq!(located.unresolved().collect::<Vec<_>>(), ["libllama.so"]);
    let import = FunctionPlace::Dynamic {
        exporter: None,
        calls: Calls::Imported,
    };
    assert_eq!(located.functions[0].1, import);
    assert!(is_missing(&located.functions[2].1));
    assert_eq!(located.build, None);

    let search = Search {
        library_path: Some(folder.0.path().into()),
        ..Search::default()
    };
    let located = program.locate(&FUNCTIONS, &search).expect("it is sound");
    assert_eq!(located.unresolved().count(), 0);
}

#[test]
fn a_link_leads_to_the_folder_of_the_file() {
    let folder = Folder::new();
    folder.shared(&[], &["-Wl,-rpath,$ORIGIN"]);
    let other = tempfile::tempdir().expect("a temporary folder");
    let link = other.path().join("llama-server");
    symlink(folder.path("server"), &link).expect("a link");
    let program = Program::open(&link).expect("it is readable");
    let located = located(&program);
    assert_eq!(located.unresolved().count(), 0);
}

#[test]
fn a_single_executable_is_hooked_inline() {
    let folder = Folder::new();
    for flags in [["-fPIE", "-pie"], ["-fno-pie", "-no-pie"]] {
        let program = folder.single(&flags);
        assert_eq!(program.obstacles(Machine::OURS), []);
        let executable = program.executable().expect("it is an ELF file");
        assert!(executable.has_symbols && !executable.needs_engine());
        assert_eq!(executable.position_independent, flags[1] == "-pie");
        let located = located(&program);
        for index in 0..4 {
            let FunctionPlace::Inside(symbol) = located.functions[index].1 else {
                panic!("{:?}", located.functions[index]);
            };
            assert!(symbol.size > 0 && symbol.is_function);
        }
        assert!(is_missing(&located.functions[5].1));
        // A variable is no function.
        assert!(is_missing(&located.functions[6].1));
        let hooking = located.hooking();
        let names = |of: Vec<String>| of.join(" ");
        assert_eq!(
            names(
                hooking
                    .inline
                    .into_iter()
                    .map(|inline| inline.name)
                    .collect()
            ),
            "llama_decode calls_itself llama_tokenize hidden"
        );
        assert_eq!(hooking.interposed[0].name, "printf");
        assert_eq!(hooking.missing.len(), 2);
        assert_eq!(
            located.build.expect("it is known").to_string(),
            "0.7.0 (b5262-1d36b367)",
            "{flags:?}"
        );
    }
}

#[test]
fn a_stripped_executable_has_nothing_to_be_hooked() {
    let folder = Folder::new();
    let program = folder.single(&["-s"]);
    assert!(!program.executable().expect("it is an ELF file").has_symbols);
    assert!(places(&program)[..4].iter().all(is_missing));
    // What it exports is known even then.
    let program = folder.single(&["-s", "-rdynamic"]);
    assert!(matches!(places(&program)[0], FunctionPlace::Inside(_)));
}

#[test]
fn copies_that_the_compiler_made_are_named() {
    let folder = Folder::new();
    fs::write(
        folder.path("part.s"),
        ".text\n.type gone.constprop.0, %function\ngone.constprop.0: nop\n.size gone.constprop.0, 1\n.section .note.GNU-stack,\"\",%progbits\n",
    )
    .expect("writable");
    let program = folder.single(&["part.s"]);
    let located = program
        .locate(&["gone"], &Search::default())
        .expect("it is sound");
    let variants = vec!["gone.constprop.0".to_owned()];
    assert_eq!(located.functions[0].1, FunctionPlace::Missing { variants });
}

/// Several files of a link may each have a function of one name that only they see.
#[test]
fn the_function_that_other_files_see_is_the_one_that_is_found() {
    let folder = Folder::new();
    for (name, size) in [("one", 3), ("other", 5)] {
        let source = format!(
            ".text\n.type twice, %function\ntwice: .skip {size}\n.size twice, {size}\n\
             .section .note.GNU-stack,\"\",%progbits\n"
        );
        fs::write(folder.path(&format!("{name}.s")), source).expect("writable");
    }
    let seen = fs::read_to_string(folder.path("one.s")).expect("readable");
    let seen = format!(".globl twice\n{}", seen.replace(" 3", " 7"));
    fs::write(folder.path("seen.s"), seen).expect("writable");
    for files in [
        ["one.s", "seen.s", "other.s"],
        ["seen.s", "one.s", "other.s"],
    ] {
        let program = folder.single(&files);
        let located = program
            .locate(&["twice"], &Search::default())
            .expect("it is sound");
        let FunctionPlace::Inside(symbol) = located.functions[0].1 else {
            panic!("{:?}", located.functions[0]);
        };
        assert_eq!(symbol.size, 7, "{files:?}");
    }
}

#[test]
fn a_fully_static_program_hears_no_preload() {
    let folder = Folder::new();
    for (flag, linkage) in [
        ("-static", Linkage::Static),
        ("-static-pie", Linkage::StaticPie),
    ] {
        let program = folder.single(&[flag]);
        assert_eq!(
            program.executable().expect("it is an ELF file").linkage,
            linkage
        );
        assert_eq!(program.obstacles(Machine::OURS), [Obstacle::Static]);
    }
}

#[test]
fn dynamic_linkers_are_told_apart() {
    let folder = Folder::new();
    let libc = |linker: &str| {
        let program = folder.single(&[&format!("-Wl,--dynamic-linker={linker}")]);
        let Linkage::Dynamic { libc, .. } = program.executable().expect("ELF").linkage.clone()
        else {
            panic!("it is dynamic");
        };
        (libc, program.obstacles(Machine::OURS))
    };
    let absent = |linker: &str| Obstacle::NoLinker(linker.to_owned());
    let musl = "/nonexistent/ld-musl-x86_64.so.1";
    assert_eq!(libc(musl), (Libc::Musl, vec![Obstacle::Musl, absent(musl)]));
    let glibc = "/nonexistent/ld-linux-x86-64.so.2";
    assert_eq!(libc(glibc), (Libc::Glibc, vec![absent(glibc)]));
    let other = "/nonexistent/linker64";
    let obstacles = vec![Obstacle::ForeignLinker(other.into()), absent(other)];
    assert_eq!(libc(other), (Libc::Other, obstacles));
    // musl under glibc's name.
    let library = folder.path("libgcompat.so.0");
    fs::write(&library, "").expect("writable");
    let link = folder.path("ld-linux-x86-64.so.2");
    symlink(&library, &link).expect("a link");
    assert_eq!(
        libc(link.to_str().expect("text")),
        (Libc::Musl, vec![Obstacle::Musl])
    );
}

#[test]
fn another_machine_is_recognised() {
    let folder = Folder::new();
    folder.single(&[]);
    let mut content = fs::read(folder.path("server")).expect("readable");
    let (number, server) = match Machine::OURS {
        Machine::X86_64 => (183_u16, Machine::Aarch64),
        _ => (62, Machine::X86_64),
    };
    content[18..20].copy_from_slice(&number.to_le_bytes());
    let program = folder.file("foreign", &content);
    let obstacle = Obstacle::Machine {
        server,
        hook: Machine::OURS,
    };
    assert_eq!(program.obstacles(Machine::OURS), [obstacle]);
    assert_eq!(
        program.obstacles(server).len(),
        usize::from(!linker_exists(&program))
    );

    // 32 bits of our own.
    content[4] = 1;
    content[18..20].copy_from_slice(&3_u16.to_le_bytes());
    let program = folder.file("foreign", &content);
    assert_eq!(program.format, Format::Elf32(Machine::Other(3, 32)));
    assert!(matches!(
        program.obstacles(Machine::OURS)[..],
        [Obstacle::Machine { .. }]
    ));
    assert!(places(&program).iter().all(is_missing));
}

fn linker_exists(program: &Program) -> bool {
    match &program.executable().expect("ELF").linkage {
        Linkage::Dynamic { interpreter, .. } => Path::new(interpreter).exists(),
        _ => true,
    }
}

#[test]
fn what_is_no_program_is_recognised() {
    let folder = Folder::new();
    let other = folder.file("text", b"Hello");
    assert_eq!(other.format, Format::Other);
    assert_eq!(other.obstacles(Machine::OURS), [Obstacle::UnknownFormat]);
    assert_eq!(folder.file("empty", b"").format, Format::Other);
    assert_eq!(
        folder.file("java", b"\xca\xfe\xba\xbe\0\0\0\x34").format,
        Format::Other
    );
    let universal = folder.file("universal", b"\xca\xfe\xba\xbe\0\0\0\x02");
    assert_eq!(universal.format, Format::MachO(Vec::new()));
    assert_eq!(universal.obstacles(Machine::OURS), [Obstacle::MachO]);
    assert_eq!(
        folder.file("thin", b"\xcf\xfa\xed\xfe\x0c\0\0\x01").format,
        Format::MachO(Vec::new())
    );
    let script = folder.file("script", b"#!/bin/sh\nexec env -i llama-server\n");
    assert!(matches!(script.format, Format::Script(_)));
    assert_eq!(script.obstacles(Machine::OURS), []);
    assert!(matches!(
        Program::open(&folder.path("absent")),
        Err(Error::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound
    ));
}

/// A folder that was mounted for `the_privilege_of_a_given_file`.
const MOUNTED: &str = "TESTED_ON_A_MOUNT";

/// The mode of the file there.
const MODE: &str = "TESTED_MODE";

/// It has none on a file system that is mounted `nosuid`, or under `no_new_privs`.
#[test]
fn a_bit_is_seen_where_it_has_an_effect() {
    let folder = Folder::new();
    folder.single(&[]);
    let path = folder.path("server");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("ours");
    // Our own file gives us nothing that we do not have.
    assert_eq!(folder.open("server").privilege, None);
    if chown(&path, Some(65534), None).is_err() {
        return skip("only root can give a file away");
    }
    let mounted = tempfile::tempdir().expect("a temporary folder");
    for (mode, option, prefix, expected) in [
        ("4755", "suid", "", Some(Privilege::SetUser)),
        ("4755", "nosuid", "", None),
        ("4755", "suid", "setpriv --no-new-privs", None),
        ("755", "suid", "", None),
        ("2755", "suid", "", Some(Privilege::SetGroup)),
        // The group may not run it: the bit once meant something else.
        ("2745", "suid", "", None),
    ] {
        let script = format!("mount -t tmpfs -o {option} none \"$0\" && exec {prefix} \"$@\"");
        let run = |command: &[&OsStr]| {
            Command::new("unshare")
                .args(["-m", "sh", "-c", &script])
                .arg(mounted.path())
                .args(command)
                .env(MOUNTED, mounted.path())
                .env(MODE, mode)
                .output()
        };
        if !run(&["true".as_ref()]).is_ok_and(|probe| probe.status.success()) {
            return skip("nothing can be mounted here (unshare and setpriv, of util-linux)");
        }
        let program = std::env::current_exe().expect("this program has a path");
        let arguments = [
            "--exact",
            "the_privilege_of_a_given_file",
            "--ignored",
            "--nocapture",
        ];
        let mut command = vec![program.as_os_str()];
        command.extend(arguments.map(OsStr::new));
        let output = run(&command).expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains(&format!("privilege: {expected:?}\n")),
            "{mode} {option} {prefix}: {output:?}"
        );
    }
}

#[test]
#[ignore = "another test starts this on a file system of its own"]
fn the_privilege_of_a_given_file() {
    let mounted = PathBuf::from(std::env::var_os(MOUNTED).expect("a folder"));
    let folder = Folder::new();
    folder.single(&[]);
    let path = mounted.join("server");
    fs::copy(folder.path("server"), &path).expect("there is room");
    chown(&path, Some(65534), Some(65534)).expect("root may");
    let mode = std::env::var(MODE).expect("a mode");
    let mode = u32::from_str_radix(&mode, 8).expect("an octal number");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may");
    let program = Program::open(&path).expect("it is readable");
    println!("privilege: {:?}", program.privilege);
}

/// A file that says how much of it was read.
struct Counted(File, Rc<std::cell::Cell<u64>>);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.0.read(buffer)?;
        self.1.set(self.1.get() + size as u64);
        Ok(size)
    }
}

impl Seek for Counted {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.0.seek(position)
    }
}

#[test]
fn a_huge_file_is_not_read() {
    let folder = Folder::new();
    // As if it were full of kernels: 4 GiB of which nothing is on the disk.
    folder.single(&[]);
    let path = folder.path("server");
    let size = fs::metadata(&path).expect("there").len();
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(4 << 30))
        .expect("a file system with holes");
    let count = Rc::new(std::cell::Cell::new(0));
    let source = Source::new(Counted(File::open(&path).expect("there"), count.clone()));
    let elf = source.elf().expect("sound");
    assert!(elf.has_symbols() && elf.dynamic().expect("sound").is_some());
    let headers = count.get();
    assert!(headers < 8192, "{headers} bytes for the headers");
    assert!(elf.symbols(&FUNCTIONS).expect("sound")[0].defined.is_some());
    assert!(count.get() < size, "{} of {size} bytes", count.get());
}

#[test]
fn a_damaged_file_is_an_error_or_a_smaller_truth_but_no_panic() {
    let folder = Folder::new();
    folder.single(&[]);
    let content = fs::read(folder.path("server")).expect("readable");
    let look = |content: &[u8]| {
        let source = Source::new(io::Cursor::new(content));
        let Ok(elf) = source.elf() else {
            return false;
        };
        let _ = (elf.interpreter(), elf.dynamic(), elf.has_symbols());
        let entries = elf.dynamic_symbols(&FUNCTIONS).unwrap_or_default();
        for entry in &entries {
            elf.relocates(entry);
        }
        let symbols = elf.symbols(&FUNCTIONS).unwrap_or_default();
        for symbol in symbols.iter().filter_map(|entry| entry.defined) {
            let _ = (
                elf.bytes(symbol.address, symbol.size),
                elf.text(symbol.address),
            );
            elf.pointer(symbol.address);
        }
        elf.variants(&FUNCTIONS).is_ok()
    };
    assert!(look(&content));
    assert!(!look(&content[..63]));
    let mut accepted = 0;
    for length in (64..content.len()).step_by(97) {
        accepted += u32::from(look(&content[..length]));
    }
    // All of the headers and both header tables, byte by byte.
    let end = content.len();
    for at in (0..2048).chain(end - 2048..end) {
        for value in [0, 0x7f, 0xff] {
            let mut damaged = content.clone();
            damaged[at] = value;
            accepted += u32::from(look(&damaged));
        }
    }
    assert!(accepted > 0, "most bytes do not matter");
}
