//! Finds the version and build of llama.cpp in the file.

use std::fmt;
use std::io::{Read, Seek};

use crate::elf::{Elf, Machine, Symbol};

/// Version and build of llama.cpp. Each part may be unknown. Only the running program (`--version`)
/// certainly has them, and old programs have no version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Build {
    /// As `llama_version()` returns it, for example `0.7.0`; since 2026.
    pub version: Option<String>,
    /// `LLAMA_BUILD_NUMBER`: b5262 is 5262. Builds from a source archive without history say 0 or 1.
    pub number: Option<i32>,
    /// `LLAMA_COMMIT`, or what a packager put there.
    pub commit: Option<String>,
}

impl Build {
    /// Looked for in the executable's tables or in those of its libraries.
    pub(crate) const NAMES: [&'static str; 3] =
        ["LLAMA_BUILD_NUMBER", "LLAMA_COMMIT", "llama_version"];

    /// Fills in unknown parts from `elf`, whose `symbols` are those of [`Build::NAMES`].
    pub(crate) fn add<R: Read + Seek>(&mut self, elf: &Elf<'_, R>, symbols: [Option<Symbol>; 3]) {
        let [number, commit, version] = symbols;
        if self.number.is_none() {
            self.number = number.and_then(|symbol| {
                let bytes = elf.bytes(symbol.address, 4)?.try_into().ok()?;
                Some(i32::from_le_bytes(bytes))
            });
        }
        if self.commit.is_none() {
            self.commit = commit
                .and_then(|symbol| elf.pointer(symbol.address))
                .and_then(|address| elf.text(address))
                .filter(|text| is_plausible(text));
        }
        if self.version.is_none() {
            self.version = version
                .and_then(|symbol| {
                    let code = elf.bytes(symbol.address, symbol.size.min(32))?;
                    returned_address(elf.machine(), code, symbol.address)
                })
                .and_then(|address| elf.text(address))
                .filter(|text| is_plausible(text));
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.version.is_some() && self.number.is_some() && self.commit.is_some()
    }

    pub(crate) fn known(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

impl fmt::Display for Build {
    /// `0.7.0 (b11669-Debian)`, or the parts of it that are known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number.map(|number| format!("b{number}"));
        let parts: Vec<_> = number.iter().chain(&self.commit).cloned().collect();
        let build = parts.join("-");
        match (&self.version, build.is_empty()) {
            (Some(version), true) => f.write_str(version),
            (Some(version), false) => write!(f, "{version} ({build})"),
            (None, true) => f.write_str("unknown"),
            (None, false) => f.write_str(&build),
        }
    }
}

/// The address that a function returns, if it does nothing else: a compiled
/// `return "text";`.
fn returned_address(machine: Machine, code: &[u8], at: u64) -> Option<u64> {
    match machine {
        Machine::X86_64 => {
            // endbr64, where control flow is protected
            let skipped = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
                4
            } else {
                0
            };
            let number = |at: usize| -> Option<[u8; 4]> { code.get(at..at + 4)?.try_into().ok() };
            match &code[skipped..] {
                // lea rax, [rip + offset]; ret
                [0x48, 0x8d, 0x05, _, _, _, _, 0xc3, ..] => {
                    let offset = i32::from_le_bytes(number(skipped + 3)?);
                    (at + skipped as u64 + 7).checked_add_signed(i64::from(offset))
                }
                // mov eax, address; ret
                [0xb8, _, _, _, _, 0xc3, ..] => {
                    Some(u32::from_le_bytes(number(skipped + 1)?).into())
                }
                _ => None,
            }
        }
        Machine::Aarch64 => {
            // bti c (where control flow is protected); adrp x0, page; add x0, x0, offset; ret
            let words: Vec<u32> = code
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect();
            let skipped = usize::from(words.first() == Some(&0xd503_245f));
            let [adrp, add, 0xd65f_03c0, ..] = words.get(skipped..)? else {
                return None;
            };
            (adrp & 0x9f00_001f == 0x9000_0000 && add & 0xffc0_03ff == 0x9100_0000).then_some(())?;
            let pages = (((adrp >> 5) & 0x7_ffff) << 2 | (adrp >> 29) & 3) as i32;
            // 21 bits, signed.
            let pages = i64::from(pages << 11 >> 11);
            let page = (at + 4 * skipped as u64) & !0xfff;
            page.checked_add_signed(pages << 12)?
                .checked_add(u64::from((add >> 10) & 0xfff))
        }
        Machine::Other(..) => None,
    }
}

/// Whether the text may be a version or a commit: a wrong pointer could lead to any bytes.
fn is_plausible(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_short_word() {
        assert!(
            ["b11669", "0.7.0", &"1".repeat(64)]
                .iter()
                .all(|text| is_plausible(text))
        );
        let wrong = ["", "two words", "b1\n", &"1".repeat(65)];
        assert!(!wrong.iter().any(|text| is_plausible(text)));
    }

    #[test]
    fn a_function_that_returns_a_text_is_understood_on_both_machines() {
        let x86 = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3,
        ];
        let at = |code: &[u8]| returned_address(Machine::X86_64, code, 0x1000);
        assert_eq!(at(&x86), Some(0x101b));
        assert_eq!(at(&x86[4..]), Some(0x1017));
        assert_eq!(at(&x86[..8]), None);
        assert_eq!(
            at(&[0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc3]),
            Some(0x1000)
        );
        assert_eq!(at(&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0x90]), None);

        assert_eq!(at(&[0xb8, 0x78, 0x56, 0x34, 0x12, 0xc3]), Some(0x1234_5678));

        let arm: Vec<u8> = [0xb000_0000_u32, 0x9100_4000, 0xd65f_03c0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let at = |code: &[u8]| returned_address(Machine::Aarch64, code, 0x1004);
        assert_eq!(at(&arm), Some(0x2010));
        assert_eq!(at(&arm[..8]), None);
    }

    #[test]
    fn a_build_is_shown_as_far_as_it_is_known() {
        let build = |version: Option<&str>, number, commit: Option<&str>| Build {
            version: version.map(Into::into),
            number,
            commit: commit.map(Into::into),
        };
        let cases = [
            (
                build(Some("0.7.0"), Some(11669), Some("Debian")),
                "0.7.0 (b11669-Debian)",
            ),
            (build(None, Some(5262), Some("1d36b367")), "b5262-1d36b367"),
            (build(Some("0.7.0"), None, None), "0.7.0"),
            (build(None, None, None), "unknown"),
        ];
        for (build, said) in cases {
            assert_eq!(build.to_string(), said);
        }
    }
}
