//! State files that clients save slots to (`POST /slots/N?action=save`).
//!
//! A recording does not say when a file was saved, or its name. It says what a slot held after it was
//! restored. So the file is taken to be saved by the last slot that held the same tokens.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_traffic::{ChangeKind, Tokens, Traffic};

use crate::alike::Alike;
use crate::checkpoints::Checkpoint;
use crate::content::Content;
use crate::host::Prompt;
use crate::window::Kept;

/// The length of a content, and its last token. Most contents differ in these.
type Name = (u32, Option<u64>);

/// The states of slots that will be restored.
#[derive(Debug)]
pub(crate) struct Files {
    files: HashMap<Name, Vec<File>>,
}

#[derive(Debug)]
struct File {
    /// The change that restores it first.
    change: usize,
    tokens: Arc<Tokens>,
    saved: Option<(Kept, Vec<Checkpoint>)>,
}

impl Files {
    /// All files that are restored in this recording. None of them is saved yet.
    pub(crate) fn new(traffic: &Traffic) -> Self {
        let restored = traffic.changes.iter().enumerate();
        let restored = restored.filter(|(_, change)| change.record.kind == ChangeKind::Restored);
        let mut files: HashMap<Name, Vec<File>> = HashMap::new();
        for (nth, change) in restored {
            let alike = files
                .entry(name(&change.tokens, change.tokens.len()))
                .or_default();
            if !alike.iter().any(|file| file.tokens == change.tokens) {
                alike.push(File {
                    change: nth,
                    tokens: Arc::clone(&change.tokens),
                    saved: None,
                });
            }
        }
        Self { files }
    }

    /// Remembers the state of a slot, if its tokens are those of a file that will be restored.
    pub(crate) fn save(&mut self, prompt: &Prompt, alike: &Alike, keep: impl FnOnce() -> Kept) {
        let content = &prompt.content;
        let length = content.len();
        if self.files.is_empty() {
            return;
        }
        let Some(files) = self.files.get_mut(&name(content.row(), length)) else {
            return;
        };
        let is_same = |file: &&mut File| {
            let whole = Content::of_change(alike, file.change, &file.tokens, length);
            whole.common_prefix(content, alike) == length
        };
        if let Some(file) = files.iter_mut().find(is_same) {
            file.saved = Some((keep(), prompt.checkpoints.clone()));
        }
    }

    /// The state in the file with these tokens. `None`: no slot held them, so another process saved it.
    pub(crate) fn find(&self, tokens: &Tokens) -> Option<(Kept, Vec<Checkpoint>)> {
        let alike = self.files.get(&name(tokens, tokens.len()))?;
        let file = alike.iter().find(|file| *file.tokens == *tokens)?;
        file.saved.clone()
    }
}

fn name(row: &Tokens, length: u32) -> Name {
    (length, row.at(length.saturating_sub(1)))
}
