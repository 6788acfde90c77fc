//! Reads the blocks of a page, and the comments that say what is to be done with each.

/// A block between two fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The line of its first fence, from 1.
    pub(crate) line: usize,
    /// What stands behind the fence.
    pub(crate) language: String,
    pub(crate) text: String,
    /// What the comments directly above it say.
    pub(crate) notes: Vec<Note>,
    /// How many headings of the second level (`##`) stand above it.
    pub(crate) section: usize,
}

/// What a comment says of the block below it. Readers of the page do not see comments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// `not run: …`: the block is neither run nor compared, and why.
    NotRun(String),
    /// `output of: …`: the block shows what this command prints.
    OutputOf(String),
    /// `before: …`: commands that prepare what the block shows.
    Before(String),
    /// `fresh: …`: all terminals are closed first, and why.
    Fresh,
    /// `exit: …`: the code with which the block's last command ends.
    Exit(i32),
}

impl Note {
    /// `None`: the comment is about something else.
    fn read(comment: &str) -> Option<Self> {
        let (what, text) = comment.split_once(':')?;
        let text = text.trim().to_owned();
        match what.trim() {
            "not run" if !text.is_empty() => Some(Self::NotRun(text)),
            "output of" => Some(Self::OutputOf(text)),
            "before" => Some(Self::Before(text)),
            "fresh" if !text.is_empty() => Some(Self::Fresh),
            "exit" => text.parse().ok().map(Self::Exit),
            _ => None,
        }
    }
}

/// The blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut notes = Vec::new();
    let mut section = 0;
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let bare = line.trim();
        if let Some(language) = bare.strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let body = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| line.trim() != "```");
            let text = body
                .map(|line| line.get(indent..).unwrap_or_default())
                .fold(String::new(), |text, line| text + line + "\n");
            blocks.push(Block {
                line: at + 1,
                language: language.to_owned(),
                text,
                notes: std::mem::take(&mut notes),
                section,
            });
        } else if let Some(comment) = bare.strip_prefix("<!--") {
            let mut comment = comment.to_owned();
            while !comment.contains("-->") {
                let Some((_, line)) = lines.next() else { break };
                comment += "\n";
                comment += line;
            }
            let (comment, _) = comment.split_once("-->").unwrap_or((&comment, ""));
            notes.extend(Note::read(comment));
        } else if !bare.is_empty() {
            notes.clear();
            section += usize::from(line.starts_with("## "));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_comments_above_them() {
        let page = "# Title\n\n<!-- not run: needs a Mac -->\n```sh\nbrew x\n```\n\n## Next\n\
                    <!-- before:\n a\n b -->\n\n<!-- output of: c -->\n  ```text\n  d\n    e\n  ```\n\
                    <!-- figures -->\nwords\n```\n```\n";
        let found = blocks(page);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].line, &*found[0].language), (4, "sh"));
        assert_eq!(found[0].notes, [Note::NotRun("needs a Mac".to_owned())]);
        assert_eq!((found[1].section, &*found[1].text), (1, "d\n  e\n"));
        assert_eq!(
            found[1].notes,
            [
                Note::Before("a\n b".to_owned()),
                Note::OutputOf("c".to_owned())
            ]
        );
        assert_eq!((found[2].notes.len(), &*found[2].text), (0, ""));
    }

    #[test]
    fn a_reason_must_be_given() {
        assert_eq!(Note::read(" not run: "), None);
        assert_eq!(Note::read(" exit: 1 "), Some(Note::Exit(1)));
    }
}
