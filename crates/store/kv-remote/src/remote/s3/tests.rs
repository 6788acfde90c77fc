//! With a bucket in this process, which counts what is asked of it, gives lists in pages of two, and answers nonsense
//! if it is told to. A real server is asked in the workspace's own tests (`tests/store/remote`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::remote::{Remote, Trouble};

/// In place of an answer: none, and the connection stays.
const SILENCE: &str = "…";
const URL: &str = "s3://tea/a";
const OF: Fingerprint = Fingerprint([7; 16]);
const NEWS: &str = "a/contextpilot/kv/1/news";
const FOLDER: &str = "a/contextpilot/kv/1/07070707070707070707070707070707/";

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// Each request: its method, and what is asked of what.
    asked: Vec<String>,
    /// Given in place of an answer to requests that begin with this.
    instead: Option<(&'static str, String)>,
}

#[derive(Clone)]
pub(crate) struct Bucket {
    at: String,
    state: Arc<Mutex<State>>,
}

impl Bucket {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bucket = Self {
            at: format!("http://{}", listener.local_addr().unwrap()),
            state: Arc::default(),
        };
        let ours = bucket.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that has gone.
                let _ = ours.answer(&stream.unwrap());
            }
        });
        bucket
    }

    fn answer(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
        let (mut length, mut version) = (0, None);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "if-none-match" => version = Some(value.to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let answer = self.decide(method, target, version.as_deref(), body);
        if answer == SILENCE.as_bytes() {
            // Until the client has gone.
            reader.read_to_end(&mut Vec::new())?;
            return Ok(());
        }
        stream.write_all(&answer)
    }

    fn decide(&self, method: &str, target: &str, known: Option<&str>, body: Vec<u8>) -> Vec<u8> {
        let (path, query) = target.split_once('?').unwrap();
        assert!(query.contains("X-Amz-Signature="), "{target}");
        let key = path.strip_prefix("/tea/").unwrap();
        let asked = match key {
            "" => "LIST".to_owned(),
            key => format!("{method} {}", key.rsplit('/').next().unwrap()),
        };
        let mut state = self.state.lock().unwrap();
        let instead = state.instead.clone();
        state.asked.push(asked.clone());
        if let Some((_, instead)) = instead.filter(|(which, _)| asked.starts_with(which)) {
            return instead.into_bytes();
        }
        match (method, key) {
            ("GET", "") => ok(list(&state.objects, query).as_bytes(), "x"),
            ("GET", key) => match state.objects.get(key) {
                None => answer("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"),
                Some(object) if known == Some(&version(object)) => answer("304 Not Modified", ""),
                Some(object) => ok(object, &version(object)),
            },
            ("PUT", key) => {
                let version = version(&body);
                state.objects.insert(key.to_owned(), body);
                ok(b"", &version)
            }
            ("DELETE", key) => {
                state.objects.remove(key);
                answer("204 No Content", "")
            }
            _ => panic!("{method} {target}"),
        }
    }

    fn client(&self) -> S3 {
        S3::new(URL, self.environment()).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote::new(URL, self.environment()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn environment(&self) -> impl Fn(&str) -> Option<String> {
        let at = self.at.clone();
        move |name| match name {
            "AWS_ENDPOINT_URL" => Some(at.clone()),
            "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("me".to_owned()),
            _ => None,
        }
    }

    /// What was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    fn instead(&self, of: &'static str, answer: impl Into<String>) {
        self.state.lock().unwrap().instead = Some((of, answer.into()));
    }

    fn news(&self) -> String {
        let state = self.state.lock().unwrap();
        String::from_utf8(state.objects[NEWS].clone()).unwrap()
    }
}

fn version(object: &[u8]) -> String {
    let sum = object.iter().fold(7u64, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    format!("\"{sum:x}\"")
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn ok(body: &[u8], version: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: {version}\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn list(objects: &BTreeMap<String, Vec<u8>>, query: &str) -> String {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(known, _)| *known == name);
        found.map(|(_, value)| value.replace("%2F", "/"))
    };
    assert_eq!(value("list-type").as_deref(), Some("2"));
    let prefix = value("prefix").unwrap();
    let from: usize = value("continuation-token").map_or(0, |from| from.parse().unwrap());
    let all: Vec<_> = objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix))
        .collect();
    let mut text = "<ListBucketResult>".to_owned();
    for (key, object) in all.iter().skip(from).take(2) {
        let size = object.len();
        // The larger ones are younger.
        text += &format!(
            "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-11-25T20:00:{size:02}Z</LastModified></Contents>"
        );
    }
    if all.len() > from + 2 {
        let next = from + 2;
        text += &format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>"
        );
    }
    text + "</ListBucketResult>"
}

fn name(nth: u8) -> Name {
    Name([nth; 16])
}

/// Sends chunks with these numbers, which are so many bytes long.
fn send(client: &mut S3, chunks: &[u8]) {
    let names: Vec<_> = chunks
        .iter()
        .map(|&nth| (name(nth), u64::from(nth)))
        .collect();
    let has = client.has(&OF, &names).unwrap().unwrap();
    assert!(has.iter().all(|has| !has), "{has:?}");
    let chunks: Vec<_> = chunks.iter().map(|&nth| sending(nth)).collect();
    client.put(&OF, &chunks).unwrap();
    client.publish().unwrap();
}

fn sending(nth: u8) -> Sending {
    Sending {
        name: name(nth),
        size: nth.into(),
        whole: vec![nth; nth.into()],
    }
}

/// The last that were sent, as they are listed.
fn last(client: &mut S3, most: usize) -> Vec<Listed> {
    client.before(&OF, None, most).unwrap().listed
}

/// What is new after the `nth`.
fn news(client: &mut S3, nth: u64, most: usize) -> Vec<Listed> {
    assert!(!client.round(&[OF]).unwrap().is_anew);
    client.after(&OF, nth, most).unwrap().listed
}

fn get(client: &mut S3, nth: u8) -> Option<Vec<u8>> {
    match client.get(&OF, &name(nth), nth.into()).unwrap() {
        Body::Whole(bytes) => Some(bytes),
        Body::Nothing => None,
        Body::TooLarge => Some(Vec::new()),
    }
}

fn names(listed: &[Listed]) -> Vec<u8> {
    listed.iter().map(|listed| listed.name.0[0]).collect()
}

#[test]
fn what_is_new_costs_one_get_and_nothing_new_does_too() {
    let bucket = Bucket::start();
    let (mut client, mut other) = (bucket.client(), bucket.client());
    send(&mut client, &[5, 4, 3]);
    let asked = bucket.asked();
    assert_eq!(asked.len(), 6, "{asked:?}");
    assert_eq!(asked[0], "LIST");
    assert_eq!(asked[4..], ["GET news", "PUT news"]);
    // Its own news are nothing new.
    let nth = last(&mut client, 9)[0].nth;
    assert!(news(&mut client, nth, 9).is_empty());
    assert_eq!(bucket.asked(), ["GET news"]);

    // Three chunks and the news, by pages; the youngest first.
    let last = last(&mut other, 9);
    assert_eq!(names(&last), [5, 4, 3]);
    assert_eq!(bucket.asked(), ["LIST", "LIST"]);
    assert!(news(&mut other, last[0].nth, 9).is_empty());
    bucket.asked();
    assert!(news(&mut other, last[0].nth, 9).is_empty());
    assert_eq!(bucket.asked(), ["GET news"]);

    send(&mut client, &[6, 7]);
    bucket.asked();
    let after = news(&mut other, last[0].nth, 1);
    assert_eq!(names(&after), [6]);
    let after = other.after(&OF, after[0].nth, 9).unwrap().listed;
    assert_eq!(names(&after), [7]);
    assert_eq!(bucket.asked(), ["GET news"]);
    assert_eq!(get(&mut other, 7), Some(vec![7; 7]));
    assert_eq!(get(&mut other, 8), None);

    other.forget(&OF, &after[0]).unwrap();
    assert_eq!(get(&mut other, 7), None);
    assert_eq!(
        other.has(&OF, &[(name(6), 6), (name(7), 7)]).unwrap(),
        Some(vec![true, false])
    );
    let has = bucket.client().has(&OF, &[(name(7), 7)]);
    assert_eq!(has.unwrap(), Some(vec![false]));
}

#[test]
fn what_is_gone_is_not_asked_for_again_while_the_news_tell_it() {
    let bucket = Bucket::start();
    let (mut client, mut other) = (bucket.client(), bucket.client());
    send(&mut client, &[3, 4]);
    let last = last(&mut other, 9);
    assert!(news(&mut other, last[0].nth, 9).is_empty());
    // The one is damaged, the other has expired.
    other.forget(&OF, &last[0]).unwrap();
    let expired = format!("{}{}", FOLDER, name(3));
    bucket.state.lock().unwrap().objects.remove(&expired);
    assert_eq!(get(&mut other, 3), None);
    bucket.asked();
    other.forget(&OF, &last[1]).unwrap();
    assert!(bucket.asked().is_empty());

    send(&mut client, &[5]);
    assert!(bucket.news().contains(&name(4).to_string()));
    let after = news(&mut other, last[0].nth, 9);
    assert_eq!(names(&after), [5]);
    // Sent again, and found by a list.
    let mut third = bucket.client();
    send(&mut third, &[4]);
    let long_ago = Instant::now().checked_sub(2 * LIST_EVERY).unwrap();
    other.models.get_mut(&OF).unwrap().listed = Some(long_ago);
    let after = news(&mut other, after[0].nth, 9);
    assert_eq!(names(&after), [4]);
    assert_eq!(get(&mut other, 4), Some(vec![4; 4]));
}

#[test]
fn news_that_another_machine_wrote_over_are_told_once_more() {
    let bucket = Bucket::start();
    let mut client = bucket.client();
    send(&mut client, &[3]);
    let write_over = |nth: u8| {
        // Of the same bucket.
        let mut news = News::default();
        news.epoch = News::read(bucket.news().as_bytes()).epoch;
        news.add(OF, name(nth), nth.into());
        let text = news.write().into_bytes();
        bucket
            .state
            .lock()
            .unwrap()
            .objects
            .insert(NEWS.to_owned(), text);
    };
    write_over(9);
    let after = news(&mut client, 1, 9);
    assert_eq!(names(&after), [9]);
    let text = bucket.news();
    assert!(
        text.contains(&name(3).to_string()) && text.contains(&name(9).to_string()),
        "{text}"
    );
    // If many are told at once, each has room for a while only: it is not told for ever.
    write_over(10);
    bucket.asked();
    assert_eq!(names(&news(&mut client, 2, 9)), [10]);
    assert_eq!(bucket.asked(), ["GET news"]);
}

#[test]
fn what_the_news_lack_is_found_when_all_is_listed() {
    let bucket = Bucket::start();
    let (mut client, mut other) = (bucket.client(), bucket.client());
    send(&mut client, &[3]);
    let nth = last(&mut other, 9)[0].nth;
    let silent = format!("{}{}", FOLDER, name(4));
    bucket
        .state
        .lock()
        .unwrap()
        .objects
        .insert(silent, vec![4; 4]);
    send(&mut client, &[5]);
    let after = news(&mut other, nth, 9);
    assert_eq!(names(&after), [5]);
    let long_ago = Instant::now().checked_sub(2 * LIST_EVERY).unwrap();
    other.models.get_mut(&OF).unwrap().listed = Some(long_ago);
    assert_eq!(names(&news(&mut other, after[0].nth, 9)), [4]);
    // There are no news since: it is not listed again.
    other.models.get_mut(&OF).unwrap().listed = Some(long_ago);
    bucket.asked();
    assert!(news(&mut other, after[0].nth + 1, 9).is_empty());
    assert_eq!(bucket.asked(), ["GET news"]);
}

#[test]
fn what_is_wrong_is_told_apart_and_all_is_asked_again() {
    let bucket = Bucket::start();
    let error = |code: &str| format!("<Error><Code>{code}</Code><Message>secret</Message></Error>");
    let text = |answer: Vec<u8>| String::from_utf8(answer).unwrap();
    let html = "<html>Sign in</html>";
    let elsewhere = "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-north-1\r\nContent-Length: 0\r\n\r\n";
    let cut = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 100\r\n\r\n<ListBucketResult>";
    for (of, instead, trouble, said) in [
        (
            "LIST",
            text(answer("403 Forbidden", &error("AccessDenied"))),
            Trouble::Refused,
            "s3:ListBucket",
        ),
        (
            "LIST",
            text(answer("404 Not Found", &error("NoSuchBucket"))),
            Trouble::Refused,
            "404, NoSuchBucket",
        ),
        (
            "LIST",
            text(answer("403 Forbidden", &error("ExpiredToken"))),
            Trouble::Refused,
            "new credentials",
        ),
        (
            "LIST",
            text(answer("503 Slow Down", &error("SlowDown"))),
            Trouble::Away,
            "503, SlowDown",
        ),
        (
            "LIST",
            elsewhere.to_owned(),
            Trouble::Refused,
            "set AWS_REGION=eu-north-1",
        ),
        (
            "LIST",
            text(answer("200 OK", html)),
            Trouble::Refused,
            "not answer as S3 does",
        ),
        ("LIST", cut.to_owned(), Trouble::Away, ""),
        (
            "LIST",
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            Trouble::Refused,
            "not HTTP",
        ),
        (
            "LIST",
            SILENCE.to_owned(),
            Trouble::Away,
            "no answer in time",
        ),
        ("LIST", String::new(), Trouble::Away, ""),
        (
            "PUT",
            text(answer("507 Full", "")),
            Trouble::Full,
            "let old objects expire",
        ),
        (
            "PUT",
            text(answer("400 Bad", &error("QuotaExceeded"))),
            Trouble::Full,
            "QuotaExceeded",
        ),
        (
            "PUT",
            text(answer("200 OK", html)),
            Trouble::Refused,
            "not answer as S3 does",
        ),
        (
            "GET",
            text(answer("200 OK", html)),
            Trouble::Refused,
            "not answer as S3 does",
        ),
        (
            "GET",
            text(answer("404 Not Found", html)),
            Trouble::Refused,
            "it answers 404",
        ),
        ("GET", text(answer("500 Oh", "")), Trouble::Away, "500"),
    ] {
        bucket.instead(of, instead);
        let mut client = bucket.client();
        let asked = client
            .has(&OF, &[(name(3), 3)])
            .and_then(|_| client.put(&OF, &[sending(3)]))
            .and_then(|()| client.get(&OF, &name(3), 3));
        let error = asked.unwrap_err();
        assert_eq!(error.trouble, trouble, "{error}");
        let line = error.to_string();
        assert!(line.contains(said), "{said}: {line}");
        assert!(
            line.starts_with("s3://tea/a at http://127.0.0.1:"),
            "{line}"
        );
        assert!(
            !line.contains("secret") && !line.contains("X-Amz"),
            "{line}"
        );
        // It may be another one when it is there again.
        bucket.instead("nothing", "");
        bucket.asked();
        client.has(&OF, &[(name(3), 3)]).unwrap();
        assert_eq!(bucket.asked()[0], "LIST", "{line}");
    }
}

#[test]
fn an_object_that_is_larger_than_it_was_is_damaged_and_who_may_not_remove_it_goes_on() {
    let bucket = Bucket::start();
    let mut client = bucket.client();
    send(&mut client, &[3]);
    let key = format!("{}{}", FOLDER, name(3));
    bucket
        .state
        .lock()
        .unwrap()
        .objects
        .insert(key, vec![0; 1 << 20]);
    assert_eq!(get(&mut client, 3), Some(Vec::new()));
    bucket.instead(
        "DELETE",
        String::from_utf8(answer("403 Forbidden", "")).unwrap(),
    );
    let listed = last(&mut client, 1)[0];
    client.forget(&OF, &listed).unwrap();
    assert_eq!(client.has(&OF, &[(name(3), 3)]).unwrap(), Some(vec![false]));
}
