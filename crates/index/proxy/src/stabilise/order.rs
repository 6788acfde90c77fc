//! One order for the definitions of tools.

use contextpilot_usage::Value;

/// Bytes of the definitions, and how deep they may be.
const LONGEST: usize = 4 << 20;
const DEEPEST: usize = 64;

/// Members that come first, in the order in which APIs show them and models have learnt them. Others follow by name.
const FIRST: [&str; 6] = [
    "type",
    "function",
    "name",
    "description",
    "parameters",
    "input_schema",
];

/// Members whose own members are names of the tool's.
const NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The definitions in order: tools by their names, members of objects by theirs. Other lists stay as they are. `None`: they
/// are in order, or there is too much of them.
pub(super) fn tools(all: &Value<'_>) -> Option<String> {
    if all.bytes().len() > LONGEST {
        return None;
    }
    let mut is_other = false;
    let mut tools = Vec::new();
    for tool in all.elements() {
        tools.push((name(&tool), ordered(&tool, DEEPEST, false, &mut is_other)?));
    }
    sort(&mut tools, &mut is_other);
    let tools: Vec<String> = tools.into_iter().map(|(_, tool)| tool).collect();
    is_other.then(|| format!("[{}]", tools.join(",")))
}

/// A tool's name, or its kind: those that a server provides have no name.
fn name(tool: &Value<'_>) -> String {
    let function = tool.member("function");
    let name = function.as_ref().unwrap_or(tool).member("name");
    let name = name.or_else(|| tool.member("type"));
    name.and_then(|name| name.string()).unwrap_or_default()
}

/// `are_names`: the members' names are the tool's own. `is_other` becomes true if something moves.
fn ordered(
    value: &Value<'_>,
    depth: usize,
    are_names: bool,
    is_other: &mut bool,
) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let bytes = value.bytes();
    match bytes.first()? {
        b'{' => {
            let mut members = Vec::new();
            for (key, value) in value.members() {
                let name = key.string()?;
                let names = !are_names && NAMES.contains(&&*name);
                let value = ordered(&value, depth, names, is_other)?;
                let first = FIRST.iter().position(|it| !are_names && *it == name);
                let place = (first.unwrap_or(FIRST.len()), name);
                let key = std::str::from_utf8(key.bytes()).ok()?;
                members.push((place, format!("{key}:{value}")));
            }
            sort(&mut members, is_other);
            let members: Vec<String> = members.into_iter().map(|(_, member)| member).collect();
            Some(format!("{{{}}}", members.join(",")))
        }
        b'[' => {
            let all = value
                .elements()
                .map(|value| ordered(&value, depth, false, is_other));
            Some(format!("[{}]", all.collect::<Option<Vec<_>>>()?.join(",")))
        }
        _ => Some(std::str::from_utf8(bytes).ok()?.to_owned()),
    }
}

/// Equal ones stay in their order: of two members with one name, the last counts.
fn sort<K: Ord>(all: &mut [(K, String)], is_other: &mut bool) {
    *is_other |= !all.is_sorted_by(|a, b| a.0 <= b.0);
    all.sort_by(|a, b| a.0.cmp(&b.0));
}
