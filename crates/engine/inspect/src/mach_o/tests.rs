//! Files are put together here, from `mach-o/loader.h` and `kern/cs_blobs.h`.

use std::io::Cursor;
use std::path::Path;

use super::*;
use crate::Program;

const INTEL: u32 = 0x0100_0007;
const ARM: u32 = 0x0100_000c;
const POWER: u32 = 0x0100_0012;

const RUNTIME: u32 = 0x1_0000;
const REQUIRES_SIGNER: u32 = 0x2000;
const AD_HOC: u32 = 0x2;

#[derive(Default)]
struct File {
    commands: Vec<Vec<u8>>,
    signature: Vec<u8>,
}

fn little(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn big(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn name(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

impl File {
    fn library(mut self, path: &str) -> Self {
        let mut text = path.as_bytes().to_vec();
        text.resize(path.len() + 8 - path.len() % 8, 0);
        let mut command = little(&[0xc, 24 + text.len() as u32, 24, 0, 0, 0]);
        command.extend(text);
        self.commands.push(command);
        self
    }

    fn section(mut self, segment: &str, section: &str) -> Self {
        let mut command = little(&[0x19, 72 + 80]);
        command.extend(name(segment));
        command.extend([0; 32]);
        command.extend(little(&[7, 5, 1, 0]));
        command.extend(name(section));
        command.extend(name(segment));
        command.extend([0; 48]);
        self.commands.push(command);
        self
    }

    fn signed(mut self, flags: u32, entitlements: &str) -> Self {
        let directory = big(&[0xfade_0c02, 44, 0x2_0001, flags, 0, 0, 0, 0, 0, 0, 0]);
        let list = entitlements.as_bytes();
        let (first, second) = (28, 28 + directory.len() as u32);
        let length = second + 8 + list.len() as u32;
        self.signature = big(&[0xfade_0cc0, length, 2, 0, first, 5, second]);
        self.signature.extend(directory);
        self.signature
            .extend(big(&[0xfade_7171, 8 + list.len() as u32]));
        self.signature.extend(list);
        self
    }

    fn bytes(self, machine: u32) -> Vec<u8> {
        self.bytes_of_kind(machine, 0)
    }

    fn bytes_of_kind(mut self, machine: u32, kind: u32) -> Vec<u8> {
        if self.signature.is_empty() {
            self.signature = big(&[0xfade_0cc0, 12, 0]);
        }
        let size: usize = self.commands.iter().map(Vec::len).sum();
        let at = (32 + size + 16) as u32;
        let signature = [0x1d, 16, at, self.signature.len() as u32];
        self.commands.push(little(&signature));
        let count = self.commands.len() as u32;
        let mut bytes = little(&[0xfeed_facf, machine, kind, 2, count, size as u32 + 16, 0, 0]);
        bytes.extend(self.commands.concat());
        bytes.extend(self.signature);
        bytes
    }

    fn read(self) -> Slice {
        only_slice(self.bytes(ARM))
    }
}

fn only_slice(file: Vec<u8>) -> Slice {
    let read = slices(Cursor::new(file)).expect("a sound file");
    let [slice] = &read[..] else {
        panic!("one slice: {read:?}")
    };
    slice.clone()
}

/// (machine, kind, file) of each part.
fn universal(parts: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = big(&[0xcafe_babe, parts.len() as u32]);
    let mut offset = 8 + 20 * parts.len() as u32;
    for (machine, kind, part) in parts {
        file.extend(big(&[*machine, *kind, offset, part.len() as u32, 0]));
        offset += part.len() as u32;
    }
    file.extend(parts.iter().flat_map(|(.., part)| part.clone()));
    file
}

fn entitlements(granted: &[&str]) -> String {
    let granted = granted
        .iter()
        .map(|key| format!("<key>{key}</key>\n<true/>"));
    format!(
        "<plist><dict>{}</dict></plist>",
        granted.collect::<String>()
    )
}

#[test]
fn libraries_are_read() {
    let slice = File::default()
        .library("/usr/lib/libSystem.B.dylib")
        .library("@rpath/libllama-server-impl.dylib")
        .read();
    assert_eq!(slice.machine, Machine::Aarch64);
    let expected = [
        "/usr/lib/libSystem.B.dylib",
        "@rpath/libllama-server-impl.dylib",
    ];
    assert_eq!(slice.needed, expected);
    assert!(slice.needs_engine());
    let alone = File::default().library("/usr/lib/libSystem.B.dylib").read();
    assert!(!alone.needs_engine());
    assert_eq!(alone.obstacle(), None);
}

#[test]
fn a_universal_file_has_a_slice_for_each_known_machine() {
    let parts = [POWER, INTEL, ARM].map(|machine| (machine, 0, File::default().bytes(machine)));
    let file = universal(&parts);
    let read = slices(Cursor::new(file)).expect("a sound file");
    let machines: Vec<Machine> = read.iter().map(|slice| slice.machine).collect();
    assert_eq!(machines, [Machine::X86_64, Machine::Aarch64]);
}

#[test]
fn a_program_is_what_runs_on_the_machine() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = |content: &[u8]| {
        let path = folder.path().join("llama-server");
        std::fs::write(&path, content).expect("writable");
        Program::open(&path).expect("it is readable")
    };
    let signing = File::default().bytes_of_kind(ARM, 2);
    let intel = File::default()
        .library("@rpath/libllama.dylib")
        .bytes(INTEL);
    let both = open(&universal(&[(INTEL, 0, intel.clone()), (ARM, 2, signing)]));
    let needs = |machine| both.slice(machine).map(Slice::needs_engine);
    assert_eq!(needs(Machine::X86_64), Some(true));
    assert_eq!(needs(Machine::Aarch64), Some(false));
    assert_eq!(both.obstacles_on_macos(Machine::X86_64), []);
    assert_eq!(
        both.obstacles_on_macos(Machine::Aarch64),
        [Obstacle::Arm64e]
    );

    let intel = open(&intel);
    assert!(intel.slice(Machine::Aarch64).is_none());
    let other = Obstacle::Machine {
        server: Machine::X86_64,
        hook: Machine::Aarch64,
    };
    assert_eq!(intel.obstacles_on_macos(Machine::Aarch64), [other]);
    let text = open(b"Hello");
    assert!(text.slice(Machine::X86_64).is_none());
    assert_eq!(
        text.obstacles_on_macos(Machine::X86_64),
        [Obstacle::UnknownFormat]
    );
}

#[test]
fn a_program_for_arm64e_only_is_an_obstacle() {
    /// `CPU_SUBTYPE_ARM64E`, and the flags that say which version of its ABI.
    const KIND: u32 = 2 | 0x8000_0000;
    let plain = File::default().bytes(ARM);
    let signing = || File::default().bytes_of_kind(ARM, KIND);
    assert_eq!(only_slice(signing()).obstacle(), Some(Obstacle::Arm64e));
    // Of both, the other is what runs.
    let both = universal(&[(ARM, KIND, signing()), (ARM, 0, plain)]);
    let read = slices(Cursor::new(both)).expect("a sound file");
    let obstacles: Vec<_> = read.iter().map(Slice::obstacle).collect();
    assert_eq!(obstacles, [None, Some(Obstacle::Arm64e)]);
    // On Intel the number means something else.
    let intel = only_slice(File::default().bytes_of_kind(INTEL, KIND));
    assert_eq!(intel.obstacle(), None);
}

#[test]
fn the_hardened_runtime_is_an_obstacle_unless_both_entitlements_lift_it() {
    let obstacle = |flags, granted: &[&str]| {
        let signed = File::default().signed(flags, &entitlements(granted));
        signed.read().obstacle()
    };
    // As a linker signs, and `codesign --sign -`.
    assert_eq!(obstacle(AD_HOC, &[]), None);
    assert_eq!(obstacle(RUNTIME, &[]), Some(Obstacle::DropsVariables));
    assert_eq!(
        obstacle(RUNTIME, &[ALLOWS_LIBRARIES]),
        Some(Obstacle::DropsVariables)
    );
    assert_eq!(
        obstacle(RUNTIME, &[ALLOWS_VARIABLES]),
        Some(Obstacle::DemandsSigner)
    );
    assert_eq!(
        obstacle(RUNTIME, &[ALLOWS_VARIABLES, ALLOWS_LIBRARIES]),
        None
    );
    assert_eq!(
        obstacle(REQUIRES_SIGNER, &[]),
        Some(Obstacle::DemandsSigner)
    );
    let refused = format!("<key>{ALLOWS_VARIABLES}</key><false/>");
    let slice = File::default().signed(RUNTIME, &refused).read();
    assert_eq!(slice.obstacle(), Some(Obstacle::DropsVariables));
}

#[test]
fn a_restricted_section_is_an_obstacle() {
    let obstacle = |segment, section| File::default().section(segment, section).read().obstacle();
    assert_eq!(
        obstacle("__RESTRICT", "__restrict"),
        Some(Obstacle::DropsVariables)
    );
    assert_eq!(obstacle("__TEXT", "__restrict"), None);
    assert_eq!(obstacle("__TEXT", "__text"), None);
}

#[test]
fn a_damaged_file_is_an_error_at_every_length() {
    let whole = File::default()
        .library("/usr/lib/libSystem.B.dylib")
        .signed(RUNTIME, &entitlements(&[]))
        .bytes(ARM);
    assert!(slices(Cursor::new(whole.clone())).is_ok());
    for length in 32..whole.len() {
        let cut = slices(Cursor::new(whole[..length].to_vec()));
        assert!(cut.is_err(), "{length} of {} bytes: {cut:?}", whole.len());
    }
}

#[test]
fn the_systems_own_programs_are_protected() {
    for path in ["/bin/sh", "/usr/bin/env", "/sbin/x", "/System/Library/x"] {
        assert!(is_protected(Path::new(path)), "{path}");
    }
    for path in ["/usr/local/bin/x", "/opt/homebrew/bin/x", "/binary"] {
        assert!(!is_protected(Path::new(path)), "{path}");
    }
}
