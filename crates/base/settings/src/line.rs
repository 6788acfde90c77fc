//! Text of others in messages.

/// Text from outside, such as an error of a peer, as part of one line: no control characters, and no more
/// than `most` characters.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    let visible = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    visible.take(most).collect()
}
