//! What is given on the command line and in the environment.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::flag::{Flag, Kind, Spelling};
use crate::generation::Generation;
use crate::number::{integer, real, strip};

#[cfg(test)]
mod tests;

/// Set by a router in the environment of its children.
const ROUTER_PORT: &str = "LLAMA_SERVER_ROUTER_PORT";

/// The flags with which a server was started.
#[derive(Clone, Debug)]
pub struct ServerFlags {
    pub(crate) generation: Generation,
    given: [Option<Given>; Flag::COUNT],
    /// All of them, sorted: the server's own order.
    aliases: BTreeSet<Vec<u8>>,
    router_port: Option<OsString>,
    refusal: Option<Refusal>,
}

/// A value, and where it is from.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    value: Value,
    source: Source,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(OsString),
    Integer(i32),
    Real(f32),
    On(bool),
}

/// Where a value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// A variable.
    Environment,
    /// The server's own default.
    Default,
}

/// The flag or the variable with which the server does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its name.
    pub name: String,
    /// The value; `None` if there is none.
    pub value: Option<OsString>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} cannot be {value:?}", self.name),
            None => write!(f, "{} has no value", self.name),
        }
    }
}

impl ServerFlags {
    /// Reads what a server of this generation is given. `argv`: its arguments, its own name first.
    /// `lookup`: looks up environment variables.
    ///
    /// A server that refuses a value does not start; see [`refusal`](Self::refusal). What such a server
    /// would do is not defined, so the flag counts as not given.
    pub fn read(
        argv: impl IntoIterator<Item = OsString>,
        lookup: impl Fn(&str) -> Option<OsString>,
        generation: Generation,
    ) -> Self {
        let mut flags = Self {
            generation,
            given: [const { None }; Flag::COUNT],
            aliases: BTreeSet::new(),
            router_port: lookup(ROUTER_PORT),
            refusal: None,
        };
        for flag in Flag::ALL {
            flags.take_variable(flag, &lookup);
        }
        let mut argv = argv.into_iter().skip(1);
        while let Some(argument) = argv.next() {
            let name = name_of(&argument);
            let Some((flag, spelling, on)) = find(&name, generation) else {
                continue;
            };
            let is_alone = matches!(spelling.kind, Kind::Switch | Kind::Toggle);
            let value = if is_alone {
                Some(Value::On(on))
            } else {
                match argv.next() {
                    Some(text) => flags.accept(flag, spelling.kind, &name, text),
                    None => flags.refuse(&name, None),
                }
            };
            flags.set(flag, value, Source::CommandLine);
        }
        flags
    }

    fn take_variable(&mut self, flag: Flag, lookup: &impl Fn(&str) -> Option<OsString>) {
        let Some(spelling) = flag.spelling(self.generation) else {
            return;
        };
        let Spelling { variable, off, .. } = spelling;
        if variable.is_empty() {
            return;
        }
        let negated = variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_");
        let is_toggle = matches!(spelling.kind, Kind::Toggle);
        if is_toggle && lookup(&negated).is_some() {
            return self.set(flag, Some(Value::On(false)), Source::Environment);
        }
        let Some(text) = lookup(variable) else { return };
        let value = match (spelling.kind, truth(&text, self.generation)) {
            (Kind::Switch, Some(true)) => Some(Value::On(off.is_empty())),
            (Kind::Switch, _) => None,
            (Kind::Toggle, Some(on)) => Some(Value::On(on)),
            (Kind::Toggle, None) => self.refuse(variable, Some(text)),
            (kind, _) => self.accept(flag, kind, variable, text),
        };
        self.set(flag, value, Source::Environment);
    }

    /// The value of a flag that has one.
    fn accept(&mut self, flag: Flag, kind: Kind, name: &str, text: OsString) -> Option<Value> {
        if flag == Flag::Alias {
            let parts = text.as_bytes().split(|&byte| byte == b',').map(strip);
            let names = parts.filter(|name| !name.is_empty()).map(<[u8]>::to_vec);
            self.aliases.extend(names);
        }
        let value = match kind {
            Kind::Text => Some(Value::Text(text.clone())),
            Kind::Addresses => {
                let any = !addresses(text.as_bytes()).is_empty();
                any.then(|| Value::Text(text.clone()))
            }
            Kind::Integer(fits) => integer(text.as_bytes())
                .filter(|&number| fits(number))
                .map(Value::Integer),
            Kind::Real => real(text.as_bytes()).map(Value::Real),
            Kind::Switch | Kind::Toggle => None,
        };
        value.or_else(|| self.refuse(name, Some(text)))
    }

    /// Only the first one counts: the server says no more.
    fn refuse(&mut self, name: &str, value: Option<OsString>) -> Option<Value> {
        let name = name.to_owned();
        self.refusal.get_or_insert(Refusal { name, value });
        None
    }

    fn set(&mut self, flag: Flag, value: Option<Value>, source: Source) {
        if let Some(value) = value {
            self.given[flag as usize] = Some(Given { value, source });
        }
    }

    /// The first flag or variable with which the server does not start. `None` does not mean that it
    /// starts: most of its flags are not known here.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// Where the value of a flag is from.
    #[must_use]
    pub fn source(&self, flag: Flag) -> Source {
        let given = self.given[flag as usize].as_ref();
        given.map_or(Source::Default, |given| given.source)
    }

    /// The port of the router whose child this server is, as text. `None`: it is no child of a router.
    #[must_use]
    pub fn router_port(&self) -> Option<&OsStr> {
        self.router_port.as_deref()
    }

    /// The text of a flag, if it is given.
    #[must_use]
    pub fn text(&self, flag: Flag) -> Option<&OsStr> {
        match self.value(flag) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The alias that counts: of all that are given, the first one in alphabetical order. A server
    /// of 2025 has one alias, the last.
    pub(crate) fn alias(&self) -> Option<OsString> {
        match self.generation {
            Generation::Of2025 => self.text(Flag::Alias).map(OsStr::to_owned),
            _ => self.aliases.first().cloned().map(OsString::from_vec),
        }
    }

    pub(crate) fn integer(&self, flag: Flag) -> Option<i32> {
        match self.value(flag) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn real(&self, flag: Flag) -> Option<f32> {
        match self.value(flag) {
            Some(Value::Real(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn is_on(&self, flag: Flag) -> Option<bool> {
        match self.value(flag) {
            Some(Value::On(on)) => Some(*on),
            _ => None,
        }
    }

    fn value(&self, flag: Flag) -> Option<&Value> {
        self.given[flag as usize].as_ref().map(|given| &given.value)
    }
}

/// The flag of this name, and whether the name turns it on.
fn find(name: &str, generation: Generation) -> Option<(Flag, Spelling, bool)> {
    Flag::ALL.into_iter().find_map(|flag| {
        let spelling = flag.spelling(generation)?;
        let on = spelling.names.contains(&name);
        (on || spelling.off.contains(&name)).then_some((flag, spelling, on))
    })
}

/// An argument as the name of a flag: in names with two dashes `_` stands for `-`.
#[must_use]
pub fn name_of(argument: &OsStr) -> String {
    let name = argument.to_string_lossy();
    if name.starts_with("--") {
        name.replace('_', "-")
    } else {
        name.into_owned()
    }
}

/// `None`: it is neither true nor false.
pub(crate) fn truth(text: &OsStr, generation: Generation) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| text == *word);
    match generation {
        Generation::Of2025 => Some(is(&["1", "true"])),
        _ if is(&["on", "enabled", "true", "1"]) => Some(true),
        _ if is(&["off", "disabled", "false", "0"]) => Some(false),
        _ => None,
    }
}

/// The addresses of a list with commas (`parse_csv_row`). A part in quotes may have commas.
pub(crate) fn addresses(text: &[u8]) -> Vec<OsString> {
    let (mut fields, mut field) = (Vec::new(), Vec::new());
    let mut is_quoted = false;
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if is_quoted && bytes.next_if_eq(&b'"').is_some() => field.push(byte),
            b'"' if is_quoted => is_quoted = false,
            b'"' if field.is_empty() => is_quoted = true,
            b',' if !is_quoted => fields.push(std::mem::take(&mut field)),
            _ => field.push(byte),
        }
    }
    fields.push(field);
    let fields = fields.iter().map(|field| strip(field));
    fields
        .filter(|field| !field.is_empty())
        .map(|field| OsStr::from_bytes(field).to_owned())
        .collect()
}
