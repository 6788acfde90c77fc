use std::collections::BTreeMap;

/// One sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name, such as `llamacpp:prompt_tokens_total`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// What a `/metrics` endpoint said (Prometheus text format).
///
/// ```
/// use contextpilot_client::Metrics;
///
/// let metrics = Metrics::parse("# TYPE up gauge\nup{slot=\"0\"} 1\nup{slot=\"1\"} 2\n");
/// assert_eq!(metrics.value("up", &[("slot", "1")]), Some(2.0));
/// assert_eq!(metrics.kind("up"), Some("gauge"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<Sample>,
    kinds: BTreeMap<String, String>,
    help: BTreeMap<String, String>,
}

impl Metrics {
    /// Reads the text. Lines that do not have this format are left out.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines() {
            let Some(comment) = line.strip_prefix('#') else {
                metrics.samples.extend(sample(line));
                continue;
            };
            let mut words = comment.trim_start().splitn(3, ' ');
            if let (Some(kind), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
            {
                match kind {
                    "TYPE" => metrics.kinds.insert(name.to_owned(), rest.to_owned()),
                    "HELP" => metrics.help.insert(name.to_owned(), rest.to_owned()),
                    _ => None,
                };
            }
        }
        metrics
    }

    /// All samples, in the order in which they were said.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The samples of a name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == name)
    }

    /// The first sample with this name and (at least) these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |sample: &Sample| {
            labels
                .iter()
                .all(|(name, value)| sample.labels.get(*name).is_some_and(|is| is == value))
        };
        self.named(name)
            .find(|sample| has(sample))
            .map(|sample| sample.value)
    }

    /// `counter`, `gauge`, `histogram` …, if the text states it.
    pub fn kind(&self, name: &str) -> Option<&str> {
        self.kinds.get(name).map(String::as_str)
    }

    /// What a metric means, if the text states it.
    pub fn help(&self, name: &str) -> Option<&str> {
        self.help.get(name).map(String::as_str)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(label.to_owned(), value);
            rest = after;
        }
    }
    // A time may follow.
    let value = rest.split_whitespace().next()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: value.parse().ok()?,
    })
}

/// A label's value, and what follows its closing quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read() {
        let text = "# HELP a what it is\n# TYPE a counter\na 1\n\
                    b{x=\"1\",y=\"a \\\"b\\\" \\\\ c\\nd\"} 2.5 1700000000\n\
                    c_bucket{le=\"+Inf\"} +Inf\nnonsense\nd{x=\"} 1\n";
        let metrics = Metrics::parse(text);
        let names: Vec<&str> = metrics
            .samples()
            .iter()
            .map(|sample| &*sample.name)
            .collect();
        assert_eq!(names, ["a", "b", "c_bucket"]);
        assert_eq!(metrics.help("a"), Some("what it is"));
        assert_eq!(metrics.value("a", &[]), Some(1.0));
        assert_eq!(metrics.value("b", &[("x", "1")]), Some(2.5));
        assert_eq!(metrics.value("b", &[("x", "2")]), None);
        assert_eq!(metrics.samples()[1].labels["y"], "a \"b\" \\ c\nd");
        assert_eq!(metrics.value("c_bucket", &[]), Some(f64::INFINITY));
    }
}
