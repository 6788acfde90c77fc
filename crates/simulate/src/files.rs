//! Files that clients save slots to.
//!
//! A recording does not say when, nor under which name. It says what a slot held when it was restored:
//! so the last slot that held the same is taken for the one that was saved.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_traffic::{ChangeKind, Tokens, Traffic};

use crate::checkpoints::Checkpoint;
use crate::content::Content;
use crate::host::Prompt;
use crate::window::Kept;

/// The length of a content, and its last token: most are told apart by that.
type Name = (u32, Option<u64>);

/// The states of slots that will be restored.
#[derive(Debug)]
pub(crate) struct Files {
    files: HashMap<Name, Vec<File>>,
}

#[derive(Debug)]
struct File {
    tokens: Arc<Tokens>,
    saved: Option<(Kept, Vec<Checkpoint>)>,
}

impl Files {
    /// None is saved yet.
    pub(crate) fn of(traffic: &Traffic) -> Self {
        let restored = traffic.changes.iter();
        let restored = restored.filter(|change| change.record.kind == ChangeKind::Restored);
        let mut files: HashMap<Name, Vec<File>> = HashMap::new();
        for change in restored {
            let alike = files
                .entry(name(&change.tokens, change.tokens.len()))
                .or_default();
            if !alike.iter().any(|file| file.tokens == change.tokens) {
                alike.push(File {
                    tokens: Arc::clone(&change.tokens),
                    saved: None,
                });
            }
        }
        Self { files }
    }

    /// A slot holds this, and could be saved.
    pub(crate) fn save(&mut self, prompt: &Prompt, keep: impl FnOnce() -> Kept) {
        let content = &prompt.content;
        let length = content.len();
        let Some(alike) = self.files.get_mut(&name(content.row(), length)) else {
            return;
        };
        let is_same = |file: &&mut File| {
            let whole = Content::new(Arc::clone(&file.tokens), length);
            whole.common_prefix(content) == length
        };
        if let Some(file) = alike.iter_mut().find(is_same) {
            file.saved = Some((keep(), prompt.checkpoints.clone()));
        }
    }

    /// What the file of these tokens has. `None`: it was not saved by this server.
    pub(crate) fn find(&self, tokens: &Tokens) -> Option<(Kept, Vec<Checkpoint>)> {
        let alike = self.files.get(&name(tokens, tokens.len()))?;
        let file = alike.iter().find(|file| *file.tokens == *tokens)?;
        file.saved.clone()
    }
}

fn name(row: &Tokens, length: u32) -> Name {
    (length, row.at(length.saturating_sub(1)))
}
