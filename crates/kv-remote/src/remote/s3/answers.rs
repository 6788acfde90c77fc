//! What a bucket has and answers, as text.

use std::collections::VecDeque;

use contextpilot_kv_store::Name;
use roxmltree::{Document, Node};

/// An object that is listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) size: u64,
    /// When it was written, as the server says it. Later times are greater.
    pub(super) written: String,
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) found: Vec<Object>,
    /// What to ask for the next page with, if there is one.
    pub(super) next: Option<String>,
}

/// Reads a page. `None`: it is none.
pub(super) fn page(text: &str) -> Option<Page> {
    let document = Document::parse(text).ok()?;
    let list = document.root_element();
    if list.tag_name().name() != "ListBucketResult" {
        return None;
    }
    let found = elements(list, "Contents").map(|one| {
        Some(Object {
            key: text_of(one, "Key")?.to_owned(),
            size: text_of(one, "Size")?.trim().parse().ok()?,
            written: text_of(one, "LastModified").unwrap_or_default().to_owned(),
        })
    });
    let found = found.collect::<Option<_>>()?;
    let is_cut = text_of(list, "IsTruncated").is_some_and(|text| text.trim() == "true");
    let next = match is_cut {
        true => Some(text_of(list, "NextContinuationToken")?.to_owned()),
        false => None,
    };
    Some(Page { found, next })
}

/// The code of an error, as `NoSuchBucket`.
pub(super) fn code(text: &str) -> Option<String> {
    let document = Document::parse(text).ok()?;
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

/// What was sent last to a model's folder, by anybody.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// The last one was sent last.
    chunks: VecDeque<(Name, u64)>,
}

impl News {
    /// The first line.
    const FORMAT: &str = "contextpilot:kv:1";
    const MOST: usize = 1024;
    /// Bytes.
    pub(super) const LARGEST: u64 = 128 << 10;

    /// What is none is empty: it is written anew when something is sent.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut news = Self::default();
        let mut lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
        if lines.next() != Some(Self::FORMAT) {
            return news;
        }
        let chunks = lines.filter_map(|line| {
            let (name, size) = line.split_once(':')?;
            Some((name.parse().ok()?, size.parse().ok()?))
        });
        for (name, size) in chunks {
            news.add(name, size);
        }
        news
    }

    pub(super) fn write(&self) -> String {
        let lines = self
            .chunks
            .iter()
            .map(|(name, size)| format!("{name}:{size}\n"));
        let mut text = format!("{}\n", Self::FORMAT);
        text.extend(lines);
        text
    }

    pub(super) fn add(&mut self, name: Name, size: u64) {
        self.chunks.push_back((name, size));
        if self.chunks.len() > Self::MOST {
            self.chunks.pop_front();
        }
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = (Name, u64)> {
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
            assert_eq!(page.found[0].written, "2026-11-25T20:00:00.000Z");
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
        let mut news = News::default();
        for nth in 0..2000u64 {
            let mut name = [0; 16];
            name[..8].copy_from_slice(&nth.to_be_bytes());
            news.add(Name(name), u64::MAX - nth);
        }
        assert_eq!(news.chunks().count(), 1024);
        assert_eq!(news.chunks().last().unwrap().1, u64::MAX - 1999);
        let text = news.write();
        assert!(text.len() as u64 <= News::LARGEST, "{}", text.len());
        assert_eq!(News::read(text.as_bytes()), news);
        for nonsense in ["", "<html>", "contextpilot:kv:2\n", "\u{0}"] {
            assert_eq!(News::read(nonsense.as_bytes()), News::default());
        }
        assert_eq!(
            News::read(b"contextpilot:kv:1\nno name:3\n"),
            News::default()
        );
    }
}
