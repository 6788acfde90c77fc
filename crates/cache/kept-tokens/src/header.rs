//! The header of a tool call in gpt-oss's format, which has several forms. Its chat template writes one, the models write others.

/// Ends a header.
pub(crate) const MESSAGE: &[u8] = b"<|message|>";
/// Stands before a header, and before the role that speaks.
pub(crate) const START: &[u8] = b"<|start|>";
/// No header is longer.
pub(crate) const MOST: usize = 512;

/// The name of the tool that a header calls. `header`: what stands behind `<|start|>assistant`, up to `<|message|>` and with it.
/// `None`: it calls no tool, or has a form that is not known.
pub(crate) fn callee(header: &[u8]) -> Option<&[u8]> {
    const CHANNEL: &[u8] = b"<|channel|>commentary";
    let before = header.strip_suffix(MESSAGE)?.strip_suffix(b"json")?;
    let form = before
        .strip_suffix(b"<|constrain|>")
        .unwrap_or(before)
        .strip_suffix(b" ")?;
    let name = match form.strip_prefix(CHANNEL) {
        Some(behind) => behind.strip_prefix(b" to=")?,
        None => form.strip_suffix(CHANNEL)?.strip_prefix(b" to=")?,
    };
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    (!name.is_empty() && name.iter().all(is_of_name)).then_some(name)
}

/// How many special tokens are spelled in a header.
pub(crate) fn specials(header: &[u8]) -> usize {
    header.windows(2).filter(|two| two == b"<|").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_in_each_form() {
        let forms = [
            " to=functions.get_time<|channel|>commentary json<|message|>",
            " to=functions.get_time<|channel|>commentary <|constrain|>json<|message|>",
            "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>",
            "<|channel|>commentary to=functions.get_time json<|message|>",
        ];
        for form in forms {
            assert_eq!(
                callee(form.as_bytes()),
                Some(&b"functions.get_time"[..]),
                "{form}"
            );
        }
        let others = [
            "<|channel|>analysis<|message|>",
            "<|channel|>commentary<|message|>",
            "<|channel|>commentary to= json<|message|>",
            "<|channel|>commentary to=a b json<|message|>",
            "<|channel|>analysis to=functions.a json<|message|>",
            " to=functions.a<|channel|>commentary code<|message|>",
            " to=functions.a<|channel|>commentary json",
            "<|channel|>commentary to=a<|message|>{}<|call|><|start|>b json<|message|>",
        ];
        for other in others {
            assert_eq!(callee(other.as_bytes()), None, "{other}");
        }
    }
}
