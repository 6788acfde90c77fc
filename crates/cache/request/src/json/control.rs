//! How long a prompt is to be kept: `"cache_control": {"type": "ephemeral", "ttl": "1h"}`, as Anthropic's API has it.

use super::collected::{Collected, Reader};
use super::text::Text;

/// The longest object that is read, in bytes.
const LONGEST: usize = 256;
/// The lifetime if the body gives none, seconds.
const USUAL: u32 = 300;
/// The longest lifetime, seconds. A longer one is cut to it.
const MOST: u32 = 31 * 24 * 3600;

/// The object, after its opening bracket.
pub(super) type Control = Collected<LONGEST>;

/// For how many seconds the prompt is to be kept, when the object has ended. 0: no longer. `None`: it says something else.
pub(super) fn lifetime(control: &Control) -> Option<u32> {
    let seconds = object(&mut control.reader()?)?;
    Some(seconds.unwrap_or(USUAL).min(MOST))
}

/// The member `ttl`, if there is one. `None`: it cannot be read, or the type is another one.
fn object(reader: &mut Reader<'_>) -> Option<Option<u32>> {
    let mut ttl = None;
    loop {
        match reader.next()? {
            b'}' => return Some(ttl),
            b',' => {}
            b'"' => match &*reader.key(LONGEST)?.take().ok()? {
                "ttl" => ttl = Some(time(reader)?),
                "type" if string(reader)?.is(b"ephemeral") => {}
                "type" => return None,
                _ if reader.scalar().is_none() => _ = string(reader)?,
                _ => {}
            },
            _ => return None,
        }
    }
}
/// Seconds, or a text such as `5m`.
fn time(reader: &mut Reader<'_>) -> Option<u32> {
    match reader.scalar() {
        Some(number) => seconds(std::str::from_utf8(number).ok()?),
        None => seconds(&string(reader)?.take().ok()?),
    }
}

fn string(reader: &mut Reader<'_>) -> Option<Text> {
    (reader.next()? == b'"').then(|| reader.text(LONGEST))?
}

/// A lifetime in a header field. `None`: it cannot be read.
pub(crate) fn in_header(value: &[u8]) -> Option<u32> {
    Some(seconds(std::str::from_utf8(value).ok()?)?.min(MOST))
}

/// A number of seconds, or of minutes, hours or days: `90`, `90s`, `5m`, `1h`, `2d`.
fn seconds(text: &str) -> Option<u32> {
    let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let each = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u32 = is_number.then(|| digits.parse().unwrap_or(u32::MAX))?;
    Some(count.saturating_mul(each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_read_as_clients_write_it() {
        let read = |text: &str| {
            let mut control = Control::new();
            text.as_bytes()
                .chunks(3)
                .for_each(|some| control.feed(some));
            lifetime(&control)
        };
        for (text, seconds) in [
            (r#""type":"ephemeral"}"#, Some(300)),
            ("}", Some(300)),
            (r#" "type" : "ephemeral" , "ttl" : "5m" }"#, Some(300)),
            (r#""ttl":"1h","type":"ephemeral"}"#, Some(3600)),
            (r#""ttl":"2d"}"#, Some(172_800)),
            (r#""ttl":90}"#, Some(90)),
            (r#""ttl":90 ,"x":1}"#, Some(90)),
            (r#""ttl":"90s","x":"}","y":null}"#, Some(90)),
            (r#""ttl":0}"#, Some(0)),
            (r#""ttl":"0s"}"#, Some(0)),
            (r#""ttl":"99999999999d"}"#, Some(MOST)),
            (r#""ttl":"5 m"}"#, None),
            (r#""ttl":"m"}"#, None),
            (r#""ttl":""}"#, None),
            (r#""ttl":"5mm"}"#, None),
            (r#""ttl":-5}"#, None),
            (r#""ttl":1.5}"#, None),
            (r#""ttl":null}"#, None),
            (r#""type":"persistent"}"#, None),
            (r#""type":7}"#, None),
            (r#""x":{}}"#, None),
            (r#""ttl":"5m""#, None),
        ] {
            assert_eq!(read(text), seconds, "{text}");
        }
        assert_eq!(read(&format!(r#""x":"{}"}}"#, "x".repeat(LONGEST))), None);
    }
}
