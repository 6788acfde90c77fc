//! Rules as a person writes them: a file in TOML.

use std::fmt;

use regex::Regex;
use serde::Deserialize;

/// What a rule does, and where.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) place: Section,
    pub(super) action: Action,
}

/// Where a rule looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Section {
    /// Messages of the roles `system` and `developer`, and what the APIs have in their place.
    System,
    /// All other messages.
    Messages,
    /// The definitions of tools.
    Tools,
    /// The prompt of a completion.
    Prompt,
}

#[derive(Debug)]
pub(super) enum Action {
    /// What is found becomes this, in which `$1` is the first group.
    Replace { find: Regex, with: String },
    /// What is found goes to the end of the user's last message.
    Move { find: Regex },
    /// Tools by their names, and the members of their objects in one order.
    Sort,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "rule")]
    rules: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    #[serde(rename = "in")]
    place: Section,
    find: Option<String>,
    replace: Option<String>,
    #[serde(rename = "move")]
    to: Option<Target>,
    #[serde(default)]
    sort: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Target {
    Behind,
}

/// Rules that cannot be followed: why.
#[derive(Debug)]
pub struct RulesError(String);

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RulesError {}

pub(super) fn read(text: &str) -> Result<Vec<Rule>, RulesError> {
    let file: File = toml::from_str(text).map_err(|e| RulesError(e.to_string()))?;
    if file.rules.is_empty() {
        let why = "there is no rule: each begins with a line [[rule]]";
        return Err(RulesError(why.to_owned()));
    }
    let mut rules = Vec::<Rule>::new();
    for written in file.rules {
        let name = written.name.clone();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let error = |why: &str| Err(RulesError(format!("rule {name:?}: {why}")));
        if name.is_empty() || !name.bytes().all(is_plain) {
            return error("a name has letters, digits, and - _ . only");
        }
        if rules.iter().any(|rule| rule.name == name) {
            return error("another rule has this name");
        }
        match written.rule() {
            Ok(rule) => rules.push(rule),
            Err(why) => return error(&why),
        }
    }
    Ok(rules)
}

impl Written {
    fn rule(self) -> Result<Rule, String> {
        let find = match self.find {
            None => None,
            Some(find) => {
                let pattern = Regex::new(&find).map_err(|e| format!("find: {e}"))?;
                if pattern.is_match("") {
                    return Err("find: it finds an empty text, so it is everywhere".to_owned());
                }
                Some(pattern)
            }
        };
        let action = match (find, self.replace, self.to, self.sort) {
            (Some(find), Some(with), None, false) => Action::Replace { find, with },
            (Some(find), None, Some(Target::Behind), false) => Action::Move { find },
            (None, None, None, true) => Action::Sort,
            _ => {
                let why = "it needs find with replace, or find with move = \"behind\", or sort = true alone";
                return Err(why.to_owned());
            }
        };
        match (&action, self.place) {
            (Action::Move { .. }, Section::System)
            | (Action::Sort, Section::Tools)
            | (Action::Replace { .. }, _) => {}
            (Action::Move { .. }, _) => return Err("move is for in = \"system\"".to_owned()),
            (Action::Sort, _) => return Err("sort is for in = \"tools\"".to_owned()),
        }
        Ok(Rule {
            name: self.name,
            place: self.place,
            action,
        })
    }
}
