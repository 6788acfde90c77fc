//! Reads `/proc/self/maps`.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// Anonymous memory that is writable and executable at the same time.
pub(crate) fn writable_code() -> Vec<Range<usize>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let lines = maps.lines().filter_map(Line::parse);
    lines
        .filter(|line| line.permissions.starts_with("rwx") && line.file.is_empty())
        .map(|line| line.range)
        .collect()
}

/// Which memory was mapped, and could not be written to, at one time.
#[derive(Debug)]
pub struct Writable {
    constant: Vec<Range<usize>>,
}

impl Writable {
    /// As it is now. Without `/proc`, all memory counts as constant.
    pub fn now() -> Self {
        let everything = 0..usize::MAX;
        let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
            return Self {
                constant: std::iter::once(everything).collect(),
            };
        };
        let lines = maps.lines().filter_map(Line::parse);
        let constant = lines.filter(|line| line.permissions.as_bytes().get(1) == Some(&b'-'));
        Self {
            constant: constant.map(|line| line.range).collect(),
        }
    }

    /// Whether this address was writable, or was not mapped.
    pub fn may_be(&self, address: usize) -> bool {
        !self.constant.iter().any(|range| range.contains(&address))
    }
}

/// The file that is mapped at `address`.
pub(crate) fn file_at(address: usize) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps
        .lines()
        .filter_map(Line::parse)
        .find(|line| line.range.contains(&address))?;
    line.file.starts_with('/').then(|| line.file.into())
}

struct Line<'a> {
    range: Range<usize>,
    permissions: &'a str,
    /// Empty for anonymous memory.
    file: &'a str,
}

impl<'a> Line<'a> {
    /// `start-end permissions offset device inode file`
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let file = words.nth(3).unwrap_or_default().trim_start();
        Some(Self {
            range: usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?,
            permissions,
            file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line =
            Line::parse("7f00-7fff r-xp 00001000 fe:00 1234          /a folder/file").unwrap();
        assert_eq!(line.range, 0x7f00..0x7fff);
        assert_eq!((line.permissions, line.file), ("r-xp", "/a folder/file"));
        let line = Line::parse("1000-2000 rwxp 00000000 00:00 0 ").unwrap();
        assert_eq!((line.permissions, line.file), ("rwxp", ""));
        assert!(Line::parse("").is_none());
    }

    #[test]
    fn data_is_writable_and_code_is_not() {
        let data = Box::new(0_u8);
        let writable = Writable::now();
        let code = data_is_writable_and_code_is_not as fn() as usize;
        assert!(!writable.may_be(code));
        assert!(writable.may_be(std::ptr::from_ref(&*data).addr()));
        assert!(writable.may_be(1), "it is not mapped");
    }

    #[test]
    fn this_program_is_found_where_its_code_is() {
        let code = this_program_is_found_where_its_code_is as fn() as usize;
        assert_eq!(file_at(code), std::env::current_exe().ok());
        assert_eq!(file_at(0), None);
    }
}
