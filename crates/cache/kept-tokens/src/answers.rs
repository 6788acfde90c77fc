//! Answers, by what stood before them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use foldhash::fast::FixedState;

use crate::Vocabulary;
use crate::cursor::{Cursor, Prompt};
use crate::header::{self, callee};
use crate::json::ends_of_equal;
use crate::record::{self, Record, and};

/// How many tokens before an answer are kept with it: the text of a prompt may be divided otherwise where it now goes on.
const BEFORE: usize = 32;

/// Answers with equal tokens before them that are remembered: as many are looked at where a prompt has these, a token or two
/// of each.
const ALIKE: usize = 256;

/// What an answer takes beside its tokens, counted as tokens.
const ROW: usize = 32;

/// Names an answer that is being generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnswerId(u64);

#[derive(Debug)]
struct Answer {
    /// Stands for all tokens before these.
    key: u64,
    /// The last tokens before the answer, and the answer.
    tokens: Vec<i32>,
    /// How many of these are before it.
    before: usize,
}

/// The first number of an answer from elsewhere.
const LOADED: u64 = 1 << 63;

/// Stands for no tokens.
const NOTHING: u64 = 0x9e37_79b9_7f4a_7c15;

/// The answers that were generated last, within a bound.
#[derive(Debug)]
pub struct Answers {
    /// By number. Numbers are given in order.
    all: HashMap<u64, Answer, FixedState>,
    by_key: HashMap<u64, Vec<u64>, FixedState>,
    /// The oldest first.
    order: VecDeque<u64>,
    next: u64,
    /// The next number of an answer from elsewhere.
    next_loaded: u64,
    tokens: usize,
    most: usize,
}

/// A prompt with tokens that were generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// All tokens of the prompt.
    pub tokens: Vec<i32>,
    /// How many of them are an answer's own, where the tokenizer has others.
    pub kept: usize,
    /// Where these differ from the tokenizer's, in order.
    pub others: Vec<Other>,
}

impl Kept {
    /// What the prompt would have been: the tokenizer's own tokens.
    #[must_use]
    pub fn canonical(&self) -> Vec<i32> {
        with_others(&self.tokens, &self.others)
    }
}

/// A part of a prompt that has an answer's tokens. Both ways to divide its text have a boundary at its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Where the answer's tokens are in the prompt.
    pub ours: Range<usize>,
    /// What the tokenizer has in their place.
    pub canonical: Vec<i32>,
}

/// A prompt with the tokenizer's tokens in these parts. Parts beyond its end are left out.
#[must_use]
pub fn with_others(tokens: &[i32], others: &[Other]) -> Vec<i32> {
    let mut all = Vec::with_capacity(tokens.len());
    let mut at = 0;
    for other in others {
        let Some(same) = tokens.get(at..other.ours.start) else {
            break;
        };
        all.extend_from_slice(same);
        all.extend_from_slice(&other.canonical);
        at = other.ours.end;
    }
    all.extend_from_slice(tokens.get(at..).unwrap_or_default());
    all
}

impl Answers {
    /// `most`: how many tokens are remembered at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            all: HashMap::default(),
            by_key: HashMap::default(),
            order: VecDeque::new(),
            next: 0,
            next_loaded: LOADED,
            tokens: 0,
            most,
        }
    }

    /// Whether there is nothing to be kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// An answer begins behind these tokens.
    pub fn begin(&mut self, before: &[i32]) -> AnswerId {
        let (far, near) = before.split_at(before.len().saturating_sub(BEFORE));
        let key = far.iter().fold(NOTHING, |key, &token| and(key, token));
        self.add(Record {
            key,
            tokens: near.to_vec(),
            before: near.len(),
        })
    }

    /// The answer goes on with this token. Returns false if it was forgotten.
    pub fn push(&mut self, answer: AnswerId, token: i32) -> bool {
        let Some(record) = self.all.get_mut(&answer.0) else {
            return false;
        };
        record.tokens.push(token);
        self.tokens += 1;
        self.shrink();
        true
    }

    /// Only this many tokens of the answer are left: the others were a draft's.
    pub fn truncate(&mut self, answer: AnswerId, len: usize) {
        if let Some(record) = self.all.get_mut(&answer.0) {
            let before = record.tokens.len();
            record.tokens.truncate(record.before + len);
            self.tokens -= before - record.tokens.len();
        }
    }

    /// An answer as bytes, for another process. `None`: it was forgotten, or is empty.
    #[must_use]
    pub fn encode(&self, answer: AnswerId) -> Option<Vec<u8>> {
        let record = self.all.get(&answer.0)?;
        (record.tokens.len() > record.before)
            .then(|| record::encode(record.key, &record.tokens, record.before))
    }

    /// All answers as bytes, the oldest first.
    #[must_use]
    pub fn encode_all(&self) -> Vec<u8> {
        let all = self
            .order
            .iter()
            .filter_map(|&number| self.encode(AnswerId(number)));
        all.collect::<Vec<_>>().concat()
    }

    /// Remembers answers from bytes, up to the first that are none. What is remembered here is newer.
    pub fn load(&mut self, mut bytes: &[u8]) {
        let mut older = Self::new(self.most);
        older.next = self.next_loaded;
        while let Some((record, rest)) = record::decode(bytes) {
            bytes = rest;
            older.insert(record);
        }
        older.next_loaded = older.next;
        for number in std::mem::take(&mut self.order) {
            if let Some(Answer {
                key,
                tokens,
                before,
            }) = self.all.remove(&number)
            {
                older.next = number;
                older.insert(Record {
                    key,
                    tokens,
                    before,
                });
            }
        }
        older.next = self.next;
        *self = older;
    }

    /// Adds an answer. An earlier one that it continues is forgotten.
    fn insert(&mut self, record: Record) {
        let alike = self.by_key.get(&record.key);
        let earlier = alike.into_iter().flatten().copied().find(|number| {
            let tokens = self.all.get(number).map(|earlier| &*earlier.tokens);
            tokens.is_some_and(|tokens| record.tokens.starts_with(tokens))
        });
        if let Some(earlier) = earlier {
            self.forget(earlier);
        }
        self.add(record);
    }

    fn add(&mut self, record: Record) -> AnswerId {
        let Record {
            key,
            tokens,
            before,
        } = record;
        let number = self.next;
        self.next += 1;
        self.tokens += tokens.len() + ROW;
        self.all.insert(
            number,
            Answer {
                key,
                tokens,
                before,
            },
        );
        self.order.push_back(number);
        let alike = self.by_key.entry(key).or_default();
        alike.push(number);
        let surplus = (alike.len() > ALIKE).then(|| alike[0]);
        if let Some(surplus) = surplus {
            self.forget(surplus);
        }
        self.shrink();
        AnswerId(number)
    }

    fn shrink(&mut self) {
        while self.tokens > self.most {
            let Some(&oldest) = self.order.front() else {
                return;
            };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(gone) = self.all.remove(&number) {
            self.tokens -= gone.tokens.len() + ROW;
            if let Some(alike) = self.by_key.get_mut(&gone.key) {
                alike.retain(|other| *other != number);
                if alike.is_empty() {
                    self.by_key.remove(&gone.key);
                }
            }
        }
        while self
            .order
            .front()
            .is_some_and(|first| !self.all.contains_key(first))
        {
            self.order.pop_front();
        }
        // Those in the middle are few: an answer leaves it only if there are too many alike.
        if self.order.len() > 2 * self.all.len() + 64 {
            let all = &self.all;
            self.order.retain(|number| all.contains_key(number));
        }
    }

    /// Gives a prompt the tokens of the answers in its text. `canonical` are those of the tokenizer, which has added the first
    /// `added` of them by itself. `None`: they are these already.
    /// `calls`: also where JSON in an answer came back spelled otherwise, and is equal.
    pub fn keep<V: Vocabulary>(
        &self,
        text: &[u8],
        canonical: &[i32],
        added: usize,
        vocabulary: &V,
        calls: bool,
    ) -> Option<Kept> {
        if self.all.is_empty() {
            return None;
        }
        let prompt = Prompt {
            text,
            canonical,
            added,
            vocabulary,
        };
        let mut walk = Walk {
            answers: self,
            prompt,
            calls,
            place: Cursor::START,
            passed: 0,
            way: None,
            out: None,
            kept: 0,
            same: (0, 0),
            others: Vec::new(),
        };
        walk.all()?;
        let Walk {
            out, kept, others, ..
        } = walk;
        out.filter(|_| kept > 0).map(|tokens| Kept {
            tokens,
            kept,
            others,
        })
    }
}

/// The tokens of an answer that a prompt gets.
#[derive(Clone)]
struct Way<'a> {
    tokens: &'a [i32],
    /// How many of them the prompt has got.
    given: usize,
    leaps: Vec<Leap>,
    /// A token behind them, up to where the tokenizer has a boundary.
    bridge: Option<i32>,
    /// Where the last one ends.
    end: Cursor,
}

/// Tokens of an answer with JSON that came back spelled otherwise.
#[derive(Clone, Copy)]
struct Leap {
    first: usize,
    last: usize,
    /// Where the last one ends.
    end: Cursor,
}

struct Walk<'a, V> {
    answers: &'a Answers,
    prompt: Prompt<'a, V>,
    /// JSON may be spelled otherwise.
    calls: bool,
    /// A place up to which the text was compared.
    place: Cursor,
    /// The tokenizer's tokens behind that place that were passed without a look at the text.
    passed: usize,
    way: Option<Way<'a>>,
    /// The prompt's tokens. `None` while no answer was met: they are the tokenizer's.
    out: Option<Vec<i32>>,
    kept: usize,
    /// The last boundary that both have: how many of the prompt's tokens, and of the tokenizer's, are before it.
    same: (usize, usize),
    others: Vec<Other>,
}

impl<'a, V: Vocabulary> Walk<'a, V> {
    /// `None`: the tokenizer's pieces are not the text, so nothing is kept.
    fn all(&mut self) -> Option<()> {
        let mut key = NOTHING;
        let mut leaps = false;
        loop {
            let alike = self.answers.by_key.get(&key);
            if let Some(alike) = alike.filter(|_| !leaps) {
                self.catch_up()?;
                self.choose(alike);
            }
            let token = match &mut self.way {
                Some(way) => {
                    let nth = way.given;
                    way.given += 1;
                    let (token, is_last) = match way.tokens.get(nth) {
                        Some(token) => {
                            let is_last = way.given == way.tokens.len();
                            (*token, is_last && way.bridge.is_none())
                        }
                        None => (way.bridge?, true),
                    };
                    let before = self.place;
                    let mut all = way.leaps.iter();
                    let leap = all.find(|leap| (leap.first..=leap.last).contains(&nth));
                    leaps = leap.is_some_and(|leap| nth < leap.last);
                    self.place = match leap {
                        Some(_) if leaps => before,
                        Some(leap) => leap.end,
                        None => self.prompt.next(before, token)?,
                    };
                    let same = leap.is_none()
                        && before.is_boundary()
                        && self.place.is_boundary()
                        && self.prompt.canonical.get(before.canonical) == Some(&token);
                    self.kept += usize::from(!same);
                    if let Some(out) = &mut self.out {
                        out.push(token);
                    }
                    if !leaps && self.place.is_boundary() {
                        self.meet();
                    }
                    if is_last {
                        self.way = None;
                    }
                    token
                }
                None => {
                    let at = self.place.canonical + self.passed;
                    let Some(&token) = self.prompt.canonical.get(at) else {
                        return Some(());
                    };
                    self.passed += 1;
                    if let Some(out) = &mut self.out {
                        out.push(token);
                    }
                    token
                }
            };
            key = and(key, token);
        }
    }

    /// Finds the place behind the tokens that were passed.
    fn catch_up(&mut self) -> Option<()> {
        for _ in 0..std::mem::take(&mut self.passed) {
            self.place = self.prompt.pass_canonical(self.place)?;
        }
        Some(())
    }

    /// Takes the answer among these that reaches farthest, if it reaches farther than what is taken already, and has other
    /// tokens than the tokenizer.
    fn choose(&mut self, alike: &[u64]) {
        let answers = alike
            .iter()
            .rev()
            .filter_map(|number| self.answers.all.get(number));
        let ways = answers.filter_map(|answer| match &self.way {
            Some(way) => {
                let farther = |other: &Way<'a>| other.end.at > way.end.at;
                self.reach(answer, self.place, 0).filter(farther)
            }
            None => self.depart(answer),
        });
        let best = ways.reduce(|a, b| if b.end.at > a.end.at { b } else { a });
        if let Some(best) = best {
            let canonical = self.place.canonical;
            let passed = || self.prompt.canonical[..canonical].to_vec();
            let out = self.out.get_or_insert_with(passed);
            if self.way.is_none() {
                self.same = (out.len(), canonical);
            }
            self.way = Some(best);
        }
    }

    /// Both have a boundary here. Notes what the tokenizer has in place of the answer's tokens before it.
    fn meet(&mut self) {
        let Some(out) = &self.out else {
            return;
        };
        let here = (out.len(), self.place.canonical);
        let (ours, theirs) = (self.same.0..here.0, self.same.1..here.1);
        self.same = here;
        let canonical = &self.prompt.canonical[theirs];
        if out[ours.clone()] != *canonical {
            self.others.push(Other {
                ours,
                canonical: canonical.to_vec(),
            });
        }
    }

    /// As [`reach`](Self::reach), for tokens that are not the tokenizer's all along.
    fn depart(&self, answer: &'a Answer) -> Option<Way<'a>> {
        let tokens = &answer.tokens;
        let theirs = &self.prompt.canonical[self.place.canonical..];
        let pairs = tokens.iter().zip(theirs);
        let same = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        if same == tokens.len() || same == theirs.len() {
            return None;
        }
        let mut place = self.place;
        for _ in 0..same {
            place = self.prompt.pass_canonical(place)?;
        }
        self.reach(answer, place, same)
            .filter(|way| way.tokens.len() > same)
    }

    /// How far the text goes on as these tokens, up to a boundary that both have. If the answer ends within one of the
    /// tokenizer's tokens, and what is left of that is a token, too, this comes behind it: the last token of an answer is not
    /// evaluated, and a recurrent model cannot go back before the one that was.
    /// So many of the first ones end at the place; the first of all begins where the walk is.
    fn reach(&self, answer: &'a Answer, mut place: Cursor, begun: usize) -> Option<Way<'a>> {
        let tokens = &*answer.tokens;
        let mut best = None;
        let mut leaps: Vec<Leap> = Vec::new();
        let mut nth = begun;
        while let Some(&token) = tokens.get(nth) {
            place = match self.prompt.next(place, token) {
                Some(next) => next,
                None => {
                    let from = leaps.last().map_or(self.place.at, |leap| leap.end.at);
                    let may = self.calls && nth >= answer.before;
                    let leap = || {
                        let json = self.leap(tokens, nth, from, place);
                        json.or_else(|| self.leap_header(tokens, nth, from, place))
                    };
                    let leap = may.then(leap).flatten();
                    let Some(leap) = leap else {
                        return best;
                    };
                    leaps.push(leap);
                    nth = leap.last;
                    leap.end
                }
            };
            nth += 1;
            if place.is_boundary() {
                best = Some(Way {
                    tokens: &tokens[..nth],
                    given: 0,
                    leaps: leaps.clone(),
                    bridge: None,
                    end: place,
                });
            }
        }
        if place.is_boundary() {
            return best;
        }
        let bridged = || {
            let bridge = self.prompt.vocabulary.token_of(self.prompt.rest(place))?;
            let end = self
                .prompt
                .next(place, bridge)
                .filter(Cursor::is_boundary)?;
            Some(Way {
                tokens,
                given: 0,
                leaps,
                bridge: Some(bridge),
                end,
            })
        };
        bridged().or(best)
    }

    /// The tokens from this one on to the first that ends at or behind the end of an object, if that is equal as JSON to what
    /// the text has. From `from` on text and tokens are the same up to the place. No token within is special in either.
    fn leap(&self, tokens: &[i32], first: usize, from: usize, place: Cursor) -> Option<Leap> {
        let Prompt {
            text, vocabulary, ..
        } = self.prompt;
        let mut ours = text.get(from..place.at)?.to_vec();
        let begun = ours.len();
        let plain = tokens[first..].iter();
        for &token in plain.take_while(|token| !vocabulary.is_special(**token)) {
            ours.extend_from_slice(vocabulary.piece(token));
        }
        // White space and escapes make it longer, but not much.
        let longest = (8 * ours.len() + 1024).min(text.len() - from);
        let (our, their) = ends_of_equal(&ours, &text[from..from + longest])?;
        let mut end = begun;
        let last = (first..tokens.len()).find(|&nth| {
            end += vocabulary.piece(tokens[nth]).len();
            end >= our
        })?;
        let at = from + their + (end - our);
        let is_same = ours.get(our..end)? == text.get(from + their..at)?;
        let end = is_same.then(|| self.prompt.advance(place, at))??;
        Some(Leap { first, last, end })
    }

    /// The tokens from this one on to the end of a header, if the text has another form of it that calls the same. From `from` on
    /// text and tokens are the same up to the place. What is special in one form is special in the other, if it is there.
    fn leap_header(
        &self,
        tokens: &[i32],
        first: usize,
        from: usize,
        place: Cursor,
    ) -> Option<Leap> {
        let Prompt {
            text, vocabulary, ..
        } = self.prompt;
        let is = |token: i32, piece: &[u8]| {
            vocabulary.is_special(token) && vocabulary.piece(token) == piece
        };
        let start = tokens[..first]
            .iter()
            .rposition(|&token| is(token, header::START))?
            + 1;
        let rest = tokens[first..].iter().take(header::MOST);
        let last = first + rest.clone().position(|token| is(*token, header::MESSAGE))?;
        let pieces = |tokens: &[i32]| -> Vec<u8> {
            let pieces = tokens.iter().map(|token| vocabulary.piece(*token));
            pieces.collect::<Vec<_>>().concat()
        };
        let behind = pieces(&tokens[start..first]);
        let begins = place
            .at
            .checked_sub(behind.len())
            .filter(|at| *at >= from)?;
        let our = [behind, pieces(&tokens[first..=last])].concat();
        let tail = text.get(begins..)?;
        let rest = &tail[..tail.len().min(header::MOST)];
        let mut ends = rest.windows(header::MESSAGE.len());
        let length = ends.position(|window| window == header::MESSAGE)? + header::MESSAGE.len();
        let [ours, theirs] = [&our, &rest[..length]].map(|whole| {
            let header = whole.strip_prefix(b"assistant")?;
            callee(header)
        });
        if ours.is_none() || ours != theirs {
            return None;
        }
        // Special tokens are spelled by them, and not by text.
        let spelled = |tokens: &mut dyn Iterator<Item = i32>| {
            tokens.filter(|token| vocabulary.is_special(*token)).count()
        };
        let until = begins + length;
        let mut end = place.up();
        let mut passed = Vec::new();
        while end.at < until {
            passed.push(*self.prompt.canonical.get(end.canonical)?);
            end = self.prompt.next_canonical(end)?;
        }
        let in_ours = spelled(&mut tokens[start..=last].iter().copied());
        let in_theirs = spelled(&mut passed.into_iter());
        let is_same = end.at == until
            && in_ours == header::specials(&our)
            && in_theirs == header::specials(&text[place.at..until]);
        is_same.then_some(Leap { first, last, end })
    }
}

#[cfg(test)]
mod tests;
