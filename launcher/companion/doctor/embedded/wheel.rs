//! A Python package's file: a zip archive with the libraries that it installs.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use flate2::read::DeflateDecoder;

/// In bytes: of the archive's list of entries, and of what is unpacked in all.
const LARGEST_LIST: u64 = 64 << 20;
const MOST: u64 = 8 << 30;

pub(super) fn is_one(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "whl")
}

/// What was unpacked. It is removed with this value.
pub(super) struct Folder {
    folder: tempfile::TempDir,
    libraries: Vec<PathBuf>,
}

impl Folder {
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn libraries(&self) -> Vec<PathBuf> {
        self.libraries.clone()
    }
}

/// Unpacks the libraries and modules of this wheel.
pub(super) fn unpacked(path: &Path) -> Result<Folder, String> {
    unpack(path).map_err(|e| format!("{} cannot be unpacked: {e}", path.display()))
}

fn unpack(path: &Path) -> std::io::Result<Folder> {
    let mut file = File::open(path)?;
    let folder = tempfile::tempdir()?;
    let (mut libraries, mut left) = (Vec::new(), MOST);
    for entry in entries(&mut file)? {
        let Some(to) = safe(&entry.name).filter(|name| is_library(name)) else {
            continue;
        };
        // The local header repeats the name, with extra fields of its own.
        let mut header = [0; 30];
        file.seek(SeekFrom::Start(entry.at))?;
        file.read_exact(&mut header)?;
        let more = u64::from(number(&header, 26, 2)?) + u64::from(number(&header, 28, 2)?);
        file.seek(SeekFrom::Start(entry.at + 30 + more))?;
        let packed = (&mut file).take(entry.packed);
        let mut content: Box<dyn Read + '_> = match entry.method {
            0 => Box::new(packed),
            8 => Box::new(DeflateDecoder::new(packed)),
            _ => return Err(damaged()),
        };
        let to = folder.path().join(to);
        fs::create_dir_all(to.parent().unwrap_or(folder.path()))?;
        let mut unpacked = File::create(&to)?;
        let copied = std::io::copy(&mut content.by_ref().take(left), &mut unpacked)?;
        unpacked.flush()?;
        left -= copied;
        libraries.push(to);
    }
    Ok(Folder { folder, libraries })
}

fn is_library(name: &Path) -> bool {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".so") || name.ends_with(".node") || name.contains(".so.")
}

/// Within the folder, whatever the archive says.
fn safe(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(name);
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    path.components().all(is_plain).then_some(path)
}

struct Entry {
    name: String,
    method: u32,
    packed: u64,
    at: u64,
}

/// The archive's list of entries, which stands at its end.
fn entries(file: &mut File) -> std::io::Result<Vec<Entry>> {
    // The last record may have a comment behind it.
    let length = file.seek(SeekFrom::End(0))?;
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(22 + 0xffff)))?;
    file.read_to_end(&mut end)?;
    let mark = end.windows(4).rposition(|four| four == b"PK\x05\x06");
    let end = &end[mark.ok_or_else(damaged)?..];
    let (size, from) = (
        u64::from(number(end, 12, 4)?),
        u64::from(number(end, 16, 4)?),
    );
    let mut list = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.take(size.min(LARGEST_LIST)).read_to_end(&mut list)?;
    let (mut rest, mut entries) = (&*list, Vec::new());
    while rest.starts_with(b"PK\x01\x02") {
        let [name, extra, comment] = [28, 30, 32].map(|at| number(rest, at, 2));
        let (name, behind) = (name? as usize, extra? as usize + comment? as usize);
        let bytes = rest.get(46..46 + name).ok_or_else(damaged)?;
        entries.push(Entry {
            name: String::from_utf8_lossy(bytes).into_owned(),
            method: number(rest, 10, 2)?,
            packed: number(rest, 20, 4)?.into(),
            at: number(rest, 42, 4)?.into(),
        });
        rest = rest.get(46 + name + behind..).ok_or_else(damaged)?;
    }
    Ok(entries)
}

/// A number of so many bytes, the lowest first.
fn number(bytes: &[u8], at: usize, size: usize) -> std::io::Result<u32> {
    let bytes = bytes.get(at..at + size).ok_or_else(damaged)?;
    let digits = bytes.iter().rev();
    Ok(digits.fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

fn damaged() -> std::io::Error {
    std::io::Error::other("the archive is damaged, or packed in another way")
}
