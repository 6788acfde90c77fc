//! What a bucket has and answers, as text.

use std::collections::VecDeque;

use contextpilot_kv_store::{Fingerprint, Name};
use roxmltree::{Document, Node, ParsingOptions};

use crate::remote::holder::LARGEST;

/// A page has a thousand objects, of some ten elements each.
const MOST_OBJECTS: usize = 1000;
const MOST_NODES: u32 = 100_000;

/// An object that is listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) size: u64,
    /// When it was written, as the server says it: the digits of the date and the time, to the second. Later times are greater.
    pub(super) written: u64,
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) found: Vec<Object>,
    /// What to ask for the next page with, if there is one.
    pub(super) next: Option<String>,
}

/// Reads a page. `None`: the text is no page.
pub(super) fn page(text: &str) -> Option<Page> {
    let document = parse(text)?;
    let list = document.root_element();
    if list.tag_name().name() != "ListBucketResult" {
        return None;
    }
    let found = elements(list, "Contents").map(|entry| {
        Some(Object {
            key: text_of(entry, "Key")?.to_owned(),
            size: text_of(entry, "Size")?.trim().parse().ok()?,
            written: time(text_of(entry, "LastModified").unwrap_or_default()),
        })
    });
    let found = found.take(MOST_OBJECTS + 1).collect::<Option<Vec<_>>>()?;
    if found.len() > MOST_OBJECTS {
        return None;
    }
    let is_cut = text_of(list, "IsTruncated").is_some_and(|text| text.trim() == "true");
    let next = if is_cut {
        Some(text_of(list, "NextContinuationToken")?.to_owned())
    } else {
        None
    };
    Some(Page { found, next })
}

fn parse(text: &str) -> Option<Document<'_>> {
    let options = ParsingOptions {
        nodes_limit: MOST_NODES,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(text, options).ok()
}

/// Of `2026-11-25T20:00:07.000Z`.
fn time(text: &str) -> u64 {
    let digits = text.bytes().filter(u8::is_ascii_digit).take(14);
    digits.fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0'))
}

/// The code of an error, as `NoSuchBucket`.
pub(super) fn code(text: &str) -> Option<String> {
    let document = parse(text)?;
    let error = document.root_element();
    let code = text_of(error, "Code").filter(|_| error.tag_name().name() == "Error")?;
    let is_word = |code: &str| code.len() < 80 && code.bytes().all(|c| c.is_ascii_alphanumeric());
    is_word(code).then(|| code.to_owned())
}

/// Some servers name no namespace, or another one.
fn elements<'a>(of: Node<'a, 'a>, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    of.children()
        .filter(move |child| child.tag_name().name() == name)
}

fn text_of<'a>(of: Node<'a, 'a>, name: &'a str) -> Option<&'a str> {
    elements(of, name).next()?.text()
}

/// What was sent last, by any machine, of any model.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// A number of the bucket, from the first time that news were written there.
    pub(super) epoch: Option<String>,
    /// The last one was sent last.
    chunks: VecDeque<(Fingerprint, Name, u64)>,
}

impl News {
    /// How the first line begins.
    const FORMAT: &str = "contextpilot:kv:2 ";
    const MOST: usize = 1024;
    /// Bytes.
    pub(super) const LARGEST: u64 = 128 << 10;

    /// Bytes that are no news are read as empty: news are written anew when something is sent. A line that is no chunk is
    /// passed over.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut news = Self::default();
        let mut lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
        let epoch = lines
            .next()
            .and_then(|line| line.strip_prefix(Self::FORMAT));
        let is_word =
            |epoch: &&str| epoch.len() == 32 && epoch.bytes().all(|c| c.is_ascii_hexdigit());
        let Some(epoch) = epoch.filter(is_word) else {
            return news;
        };
        news.epoch = Some(epoch.to_owned());
        let chunks = lines.take(Self::MOST).filter_map(|line| {
            let (of, rest) = line.split_once(':')?;
            let (name, size) = rest.split_once(':')?;
            let size = size
                .parse()
                .ok()
                .filter(|size| (1..=LARGEST).contains(size));
            let of: Name = of.parse().ok()?;
            Some((Fingerprint(of.0), name.parse().ok()?, size?))
        });
        for (of, name, size) in chunks {
            news.add(of, name, size);
        }
        news
    }

    pub(super) fn write(&self) -> String {
        let epoch = self.epoch.as_deref().unwrap_or_default();
        let lines = self
            .chunks
            .iter()
            .map(|(of, name, size)| format!("{of}:{name}:{size}\n"));
        let mut text = format!("{}{epoch}\n", Self::FORMAT);
        text.extend(lines);
        text
    }

    pub(super) fn add(&mut self, of: Fingerprint, name: Name, size: u64) {
        self.chunks.push_back((of, name, size));
        if self.chunks.len() > Self::MOST {
            self.chunks.pop_front();
        }
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = (Fingerprint, Name, u64)> {
        self.chunks.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_with_and_without_a_namespace() {
        for root in [
            r#"<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">"#,
            "<ListBucketResult>",
        ] {
            let text = format!(
                r#"<?xml version="1.0" encoding="UTF-8"?>{root}<Name>b</Name><IsTruncated>true</IsTruncated>
                <Contents><Key>a/b</Key><LastModified>2026-11-25T20:00:00.000Z</LastModified><ETag>"x"</ETag>
                <Size>12</Size></Contents><NextContinuationToken>1+/=</NextContinuationToken></ListBucketResult>"#
            );
            let page = page(&text).unwrap();
            assert_eq!(page.next.as_deref(), Some("1+/="));
            assert_eq!(page.found[0].key, "a/b");
            assert_eq!(page.found[0].size, 12);
            assert_eq!(page.found[0].written, 20_261_125_200_000);
        }
        let empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        let found = Vec::new();
        assert_eq!(page(empty), Some(Page { found, next: None }));
    }

    #[test]
    fn nonsense_is_no_page() {
        for text in [
            "",
            "<html><body>Sign in</body></html>",
            "<ListBucketResult>",
            // There is more, and it is not said how to get it.
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
            "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
            "{\"a\": 1}",
        ] {
            assert_eq!(page(text), None, "{text}");
        }
    }

    #[test]
    fn of_an_error_only_its_code_is_shown() {
        let error = |code: &str| format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
        assert_eq!(
            code(&error("AccessDenied")).as_deref(),
            Some("AccessDenied")
        );
        assert_eq!(code(&error("a\nb")), None);
        assert_eq!(code(&error(&"a".repeat(80))), None);
        assert_eq!(code("<html><Code>AccessDenied</Code></html>"), None);
    }

    #[test]
    fn news_are_written_and_read_and_stay_small() {
        let mut news = News {
            epoch: Some("0123456789abcdef".repeat(2)),
            ..News::default()
        };
        for nth in 0..2000u64 {
            let mut name = [0; 16];
            name[..8].copy_from_slice(&nth.to_be_bytes());
            news.add(Fingerprint([7; 16]), Name(name), LARGEST - nth);
        }
        assert_eq!(news.chunks().count(), 1024);
        assert_eq!(news.chunks().last().unwrap().2, LARGEST - 1999);
        let text = news.write();
        assert!(text.len() as u64 <= News::LARGEST, "{}", text.len());
        assert!(News::read(text.as_bytes()) == news);
        for nonsense in ["", "<html>", "contextpilot:kv:2\n", "\u{0}"] {
            assert_eq!(News::read(nonsense.as_bytes()), News::default());
        }
        assert_eq!(
            News::read(b"contextpilot:kv:2 0\nno name:3\n"),
            News::default()
        );
    }
}
