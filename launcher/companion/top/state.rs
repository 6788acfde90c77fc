//! The state of the screen, and how messages and keys change it. No clock, no terminal.

use std::cmp::Reverse;
use std::collections::VecDeque;

use contextpilot_client::Update;
use contextpilot_client::control::{Change, ResidencyEvent, Slot, Stats, UnfinishedPrompt};

use crate::companion::differs::Differs;
use crate::companion::under_way;

/// How many figures of the past are kept: more than a screen is wide.
const PAST: usize = 512;
/// How many evictions can be scrolled through.
const EVICTIONS: usize = 1000;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    Sort,
    Up(usize),
    Down(usize),
}

/// The order of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Id,
    Fill,
    Use,
}

/// A line of the list below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// An event of an eviction.
    Evicted(ResidencyEvent),
    /// A text about events that are missing.
    Gap(String),
}

/// Figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// Over the last minute; 0 to 1.
    pub(super) hit_ratio: Option<f64>,
    /// Prompt tokens a second since the moment before.
    pub(super) reused: f64,
    pub(super) evaluated: f64,
}

/// Everything that the screen depends on.
#[derive(Clone, Debug)]
pub(super) struct ScreenState {
    pub(super) colours: bool,
    pub(super) now: Option<Stats>,
    pub(super) trouble: Option<String>,
    /// What would have saved the most evaluation.
    pub(super) advice: Option<String>,
    /// What differed where the last prompts left earlier ones.
    pub(super) differences: Vec<Differs>,
    /// The oldest first.
    pub(super) past: VecDeque<Point>,
    /// The latest first.
    pub(super) lines: VecDeque<Line>,
    pub(super) order: Order,
    /// Lines scrolled past.
    pub(super) scrolled: usize,
    pub(super) paused: bool,
    waiting: VecDeque<News>,
}

#[derive(Clone, Debug)]
enum News {
    Stats(Box<Stats>),
    Update(Update),
    Trouble(String),
}

impl ScreenState {
    pub(super) fn new(colours: bool) -> Self {
        Self {
            colours,
            now: None,
            trouble: None,
            advice: None,
            differences: Vec::new(),
            past: VecDeque::new(),
            lines: VecDeque::new(),
            order: Order::Id,
            scrolled: 0,
            paused: false,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn stats(&mut self, stats: Stats) {
        self.take(News::Stats(Box::new(stats)));
    }

    pub(super) fn update(&mut self, update: Update) {
        self.take(News::Update(update));
    }

    /// The hook did not answer. The last figures stay on the screen.
    pub(super) fn trouble(&mut self, why: String) {
        self.take(News::Trouble(why));
    }

    fn take(&mut self, news: News) {
        if self.paused {
            self.waiting.push_back(news);
            if self.waiting.len() > PAST + EVICTIONS {
                self.waiting.pop_front();
            }
            return;
        }
        match news {
            News::Stats(stats) => self.apply(*stats),
            News::Trouble(why) => self.trouble = Some(why),
            News::Update(Update::Missed(missed)) => {
                self.line(Line::Gap(crate::companion::events::gap(&missed)));
            }
            News::Update(Update::Event(event)) => {
                if matches!(event.change, Change::Evicted { .. }) {
                    self.line(Line::Evicted(event));
                }
            }
        }
    }

    fn apply(&mut self, stats: Stats) {
        let point = Point::between(self.now.as_ref(), &stats);
        self.past.push_back(point);
        if self.past.len() > PAST {
            self.past.pop_front();
        }
        self.now = Some(stats);
        self.trouble = None;
    }

    fn line(&mut self, line: Line) {
        self.lines.push_front(line);
        self.lines.truncate(EVICTIONS);
        // While the user scrolls, the visible lines stay.
        if self.scrolled > 0 {
            self.scroll(self.scrolled + 1);
        }
    }

    fn scroll(&mut self, to: usize) {
        self.scrolled = to.min(self.lines.len().saturating_sub(1));
    }

    pub(super) fn key(&mut self, key: Key) {
        match key {
            Key::Quit => {}
            Key::Pause => {
                self.paused = !self.paused;
                if !self.paused {
                    for news in std::mem::take(&mut self.waiting) {
                        self.take(news);
                    }
                }
            }
            Key::Sort => {
                self.order = match self.order {
                    Order::Id => Order::Fill,
                    Order::Fill => Order::Use,
                    Order::Use => Order::Id,
                }
            }
            Key::Up(lines) => self.scroll(self.scrolled.saturating_sub(lines)),
            Key::Down(lines) => self.scroll(self.scrolled.saturating_add(lines)),
        }
    }

    /// The slots in their order.
    pub(super) fn slots(&self) -> Vec<&Slot> {
        let slots = self.now.as_ref().map(|stats| &*stats.slots);
        let mut slots: Vec<&Slot> = slots.unwrap_or_default().iter().collect();
        match self.order {
            Order::Id => slots.sort_by_key(|slot| slot.slot),
            Order::Fill => slots.sort_by_key(|slot| (Reverse(slot.tokens), slot.slot)),
            Order::Use => slots.sort_by_key(|slot| (Reverse(slot.last_launch), slot.slot)),
        }
        slots
    }
}

impl Point {
    fn between(before: Option<&Stats>, now: &Stats) -> Self {
        let hit_ratio = now.reuse.last_minute.hit_ratio;
        // Figures of another process cannot be compared.
        let Some(before) = before.filter(|before| before.epoch == now.epoch) else {
            return Self {
                hit_ratio,
                ..Self::default()
            };
        };
        let seconds = now.at.since(before.at).as_secs_f64();
        let rate = |before: u64, now: u64| {
            if seconds > 0.0 {
                now.saturating_sub(before) as f64 / seconds
            } else {
                0.0
            }
        };
        // Prompts count when they are complete; those that are being evaluated count as far as they have come.
        let so_far = |stats: &Stats, whole: u64, of: fn(&UnfinishedPrompt) -> u64| {
            let parts = under_way::prompts(stats).map(|(_, prompt)| of(prompt));
            parts.fold(whole, u64::saturating_add)
        };
        let reused =
            |stats: &Stats| so_far(stats, stats.reuse.total.reused, |prompt| prompt.reused);
        let evaluated = |stats: &Stats| {
            so_far(stats, stats.reuse.total.evaluated, |prompt| {
                prompt.evaluated
            })
        };
        Self {
            hit_ratio,
            reused: rate(reused(before), reused(now)),
            evaluated: rate(evaluated(before), evaluated(now)),
        }
    }
}
