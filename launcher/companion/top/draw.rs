//! The screen as a function of the state.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline, Wrap};

use contextpilot_client::control::{Change, HostCache, KvEvents, PrefixStore, Slot};

use super::state::{Line, Order, Point, ScreenState};
use crate::companion::show::{Moment, Visible, bytes, count, counted, percent};
use crate::companion::stats;
use crate::companion::under_way;
use crate::companion::words;

mod causes;
mod style;

use style::{bar, bold, colour, gauge_width};

/// Lines for the reason why nothing is followed.
const REASON: usize = 4;
/// Lines of the sparklines, title included.
const FIGURES: u16 = 4;

pub(super) fn screen(state: &ScreenState, frame: &mut Frame) {
    let area = frame.area();
    // Slots and host take what they need, the evictions at least a third.
    let is_unfollowed = state
        .now
        .as_ref()
        .is_some_and(|now| now.engine.not_followed.is_some());
    let fewest = if is_unfollowed { REASON } else { 1 };
    let wanted = state.slots().len().max(fewest) as u16
        + 2
        + published(state).is_some() as u16
        + stored(state).is_some() as u16;
    // If the server does not explain evaluations, there is no line for that.
    let says_why = u16::from(causes::are_known(state));
    let differs = u16::from(!state.differences.is_empty());
    let advises = u16::from(state.advice.is_some());
    let room = area
        .height
        .saturating_sub(2 + says_why + differs + advises + FIGURES);
    let upper = wanted.min(room - room / 3);
    let [
        heading,
        slots,
        figures,
        causes,
        differences,
        advice,
        evictions,
        footer,
    ] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(upper),
        Constraint::Length(FIGURES),
        Constraint::Length(says_why),
        Constraint::Length(differs),
        Constraint::Length(advises),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    self::heading(state, frame, heading);
    self::slots(state, frame, slots);
    self::figures(state, frame, figures);
    frame.render_widget(Paragraph::new(causes::line(state, causes.width)), causes);
    let line = causes::differences(state, differences.width);
    frame.render_widget(Paragraph::new(line), differences);
    if let Some(text) = &state.advice {
        let line = Text::styled(format!(" Try {text}"), colour(state, Color::Green));
        frame.render_widget(Paragraph::new(line), advice);
    }
    self::evictions(state, frame, evictions);
    self::footer(state, frame, footer);
}

fn heading(state: &ScreenState, frame: &mut Frame, area: Rect) {
    let text = match (&state.trouble, &state.now) {
        (Some(why), _) => Span::styled(why.clone(), colour(state, Color::Red)),
        (None, Some(now)) => Span::styled(stats::heading(now), bold()),
        (None, None) => Span::raw("Waiting for the hook"),
    };
    frame.render_widget(Paragraph::new(text), area);
}

fn block(title: String) -> Block<'static> {
    Block::new()
        .borders(Borders::TOP)
        .title(Span::styled(title, bold()))
}

fn slots(state: &ScreenState, frame: &mut Frame, area: Rect) {
    let order = match state.order {
        Order::Id => "by id",
        Order::Fill => "by fill",
        Order::Use => "by use",
    };
    let block = block(format!(" Slots {order} "));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let published = published(state);
    let stored = stored(state);
    let [slots, host, store, routers] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(stored.is_some() as u16),
        Constraint::Length(published.is_some() as u16),
    ])
    .areas(inside);

    let all = state.slots();
    let fit = usize::from(slots.height);
    let shown = if all.len() > fit {
        fit.saturating_sub(1)
    } else {
        fit
    };
    let mut lines: Vec<Text> = all
        .iter()
        .take(shown)
        .map(|slot| of_slot(state, slot, slots.width))
        .collect();
    if all.len() > shown {
        let more = counted((all.len() - shown) as u64, "more slot");
        lines.push(format!("… and {more}").into());
    }
    if let (true, Some(now)) = (all.is_empty(), &state.now) {
        lines.push(stats::no_slot(now).into());
    }
    let mut lines = Paragraph::new(lines);
    if all.is_empty() {
        lines = lines.wrap(Wrap { trim: true });
    }
    frame.render_widget(lines, slots);
    let line = match &state.now {
        Some(now) => of_host(state, &now.host, host.width),
        None => Text::default(),
    };
    frame.render_widget(Paragraph::new(line), host);
    let mut line = |text: String, is_wrong: bool, area| {
        let style = if is_wrong {
            colour(state, Color::Red)
        } else {
            Style::new()
        };
        frame.render_widget(Paragraph::new(Text::styled(text, style)), area);
    };
    if let Some(kept) = stored {
        let text = format!("store {}", stats::prefix_store(kept));
        let is_wrong = kept.problem.is_some() || !kept.refused.is_empty();
        line(text, is_wrong, store);
    }
    if let Some(events) = published {
        let text = format!("kv   {}", stats::kv_events(events));
        line(text, events.problem.is_some(), routers);
    }
}

/// The prefix store, if there is one.
fn stored(state: &ScreenState) -> Option<&PrefixStore> {
    state.now.as_ref()?.store.as_ref()
}

/// What is published for routers, if anything should be.
fn published(state: &ScreenState) -> Option<&KvEvents> {
    state.now.as_ref()?.kv_events.as_ref()
}

/// `  0 ███▌        1,204/2,048  59 %  616 KiB  req-a, req-b`
fn of_slot(state: &ScreenState, slot: &Slot, width: u16) -> Text<'static> {
    let fill = slot
        .capacity
        .filter(|capacity| *capacity > 0)
        .map(|capacity| f64::from(slot.tokens) / f64::from(capacity));
    let mark = if slot.busy { '*' } else { ' ' };
    let capacity = slot.capacity.map_or("?".to_owned(), |c| count(c.into()));
    let size = slot.bytes.map_or("?".to_owned(), bytes);
    let figures = format!(
        "{:>16} {:>5} {size:>8}  ",
        format!("{}/{capacity}", count(slot.tokens.into())),
        percent(fill),
    );
    let ids: Vec<String> = slot
        .requests
        .iter()
        .rev()
        .map(|id| Visible(id).to_string())
        .collect();
    let more = slot.requests_total.saturating_sub(ids.len() as u64);
    let mut ids = ids.join(", ");
    if more > 0 {
        ids += &format!(", {} more", count(more));
    }
    let under_way = slot.prompt.as_ref().map(under_way::short);
    let title = slot.last_title.as_ref().map(words::whole_title);
    let says = under_way.into_iter().chain(title);
    let says = says.chain((!ids.is_empty()).then_some(ids));
    let says = says.collect::<Vec<_>>().join("  ");
    Text::from(vec![
        Span::styled(
            format!("{:>4}{mark}", slot.slot),
            if slot.busy { bold() } else { Style::new() },
        ),
        bar(state, fill.unwrap_or(0.0), gauge_width(width)),
        Span::raw(figures),
        Span::raw(says),
    ])
}

fn of_host(state: &ScreenState, host: &HostCache, width: u16) -> Text<'static> {
    let fill = match host.limit_bytes {
        Some(limit) if limit > 0 => host.bytes as f64 / limit as f64,
        _ => 0.0,
    };
    Text::from(vec![
        Span::raw("host "),
        bar(state, fill, gauge_width(width)),
        Span::raw(format!(" {}", stats::host(host))),
    ])
}

fn figures(state: &ScreenState, frame: &mut Frame, area: Rect) {
    let areas: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3])
        .spacing(1)
        .areas(area);
    let last = state.past.back().copied().unwrap_or_default();
    let rate = |rate: f64| count(rate.round() as u64);
    type Of = fn(&Point) -> f64;
    let graphs: [(String, Color, Of, Option<u64>); 3] = [
        (
            format!(" Reused, 1 min: {} ", percent(last.hit_ratio)),
            Color::Cyan,
            |point| point.hit_ratio.unwrap_or(0.0) * 100.0,
            Some(100),
        ),
        (
            format!(" Reused: {} tokens/s ", rate(last.reused)),
            Color::Green,
            |point| point.reused,
            None,
        ),
        (
            format!(" Evaluated: {} tokens/s ", rate(last.evaluated)),
            Color::Magenta,
            |point| point.evaluated,
            None,
        ),
    ];
    for ((title, shade, of, most), area) in graphs.into_iter().zip(areas) {
        let width = usize::from(area.width);
        let skipped = state.past.len().saturating_sub(width);
        let data: Vec<u64> = state
            .past
            .iter()
            .skip(skipped)
            .map(|point| of(point).round() as u64)
            .collect();
        // Without a maximum, bars of zero would be drawn full.
        let most = most.unwrap_or_else(|| data.iter().copied().max().unwrap_or(0).max(1));
        let graph = Sparkline::default()
            .block(block(title))
            .data(&data)
            .max(most)
            .style(colour(state, shade));
        frame.render_widget(graph, area);
    }
}

fn evictions(state: &ScreenState, frame: &mut Frame, area: Rect) {
    let total = match &state.now {
        Some(now) => stats::evictions(now),
        None => "none".to_owned(),
    };
    // Events before the start are not asked for, but they are counted above the list.
    let is_new = total != "none" && state.lines.is_empty();
    let block = block(format!(" Ids evicted: {total} "));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    if is_new {
        let text = Text::styled("none since top was started", colour(state, Color::DarkGray));
        frame.render_widget(Paragraph::new(text), inside);
        return;
    }
    let lines: Vec<Text> = state
        .lines
        .iter()
        .skip(state.scrolled)
        .take(usize::from(inside.height))
        .map(|line| of_line(state, line))
        .collect();
    frame.render_widget(Paragraph::new(lines), inside);
}

fn of_line(state: &ScreenState, line: &Line) -> Text<'static> {
    let event = match line {
        Line::Evicted(event) => event,
        Line::Gap(text) => return Text::styled(format!("– {text}"), colour(state, Color::Yellow)),
    };
    let Change::Evicted {
        id,
        reason,
        from,
        by,
    } = &event.change
    else {
        return Text::default();
    };
    let time = format!("{}  ", Moment::from(event.at).of_day());
    Text::from(vec![
        Span::styled(time, colour(state, Color::DarkGray)),
        Span::styled(format!("{:<20}", Visible(id).to_string()), bold()),
        Span::raw(format!(
            "  {}",
            words::evicted(*reason, by.as_deref(), from)
        )),
    ])
}

fn footer(state: &ScreenState, frame: &mut Frame, area: Rect) {
    let keys = "q quit  p pause  s sort  ↑↓ scroll";
    let line = if state.paused {
        Text::from(vec![
            Span::styled("PAUSED  ", bold().patch(colour(state, Color::Yellow))),
            Span::raw(keys),
        ])
    } else {
        Text::raw(keys)
    };
    frame.render_widget(Paragraph::new(line), area);
}

#[cfg(test)]
mod tests;
