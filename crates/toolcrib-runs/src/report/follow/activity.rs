//! Chart of the run's activity over time: how many requests and calls were under way at once, and how tasks ended. The number
//! of its bars is limited: a longer run has wider ones.

use maud::{Markup, html};

use crate::{
    report::{
        figures::STATUSES,
        folder::{RunFolder, millis},
        html::{axis_row, pauses, time},
        page::{Axis, key},
    },
    run_files::ModelEnded,
};

/// The most bars of the chart.
const BARS: usize = 240;
/// Milliseconds of the first bars.
const NARROWEST: f64 = 20.0;
/// Kinds of activity, with the classes of their colours, the lowest of a bar first.
const KINDS: [(&str, &str); 4] =
    [("model", "model"), ("tools", "tools"), ("queue", "queue"), ("wait", "retry wait")];
const MODEL: usize = 0;
const TOOLS: usize = 1;
const QUEUE: usize = 2;
const WAIT: usize = 3;

#[derive(Clone, Copy, Default)]
struct Bar {
    /// Milliseconds of each kind, of all tasks together.
    busy: [f64; 4],
    /// Tasks that ended, by status.
    ended: [u32; 7],
}

/// Bars of equal width.
pub(super) struct Activity {
    width_ms: f64,
    bars: Vec<Bar>,
}

impl Default for Activity {
    fn default() -> Self {
        Self { width_ms: NARROWEST, bars: Vec::new() }
    }
}

impl Activity {
    /// The bar of that moment; the bars are made wider until it is one of them.
    fn bar(&mut self, ms: f64) -> usize {
        while ms / self.width_ms >= BARS as f64 && self.width_ms < 1e12 {
            self.width_ms *= 2.0;
            self.bars = self
                .bars
                .chunks(2)
                .map(|pair| {
                    let mut sum = pair[0];
                    for more in &pair[1..] {
                        sum.busy.iter_mut().zip(more.busy).for_each(|(sum, more)| *sum += more);
                        sum.ended.iter_mut().zip(more.ended).for_each(|(sum, more)| *sum += more);
                    }
                    sum
                })
                .collect();
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below BARS")]
        let bar = ((ms.max(0.0) / self.width_ms) as usize).min(BARS - 1);
        if self.bars.len() <= bar {
            self.bars.resize(bar + 1, Bar::default());
        }
        bar
    }

    fn add(&mut self, kind: usize, from: f64, to: f64) {
        let (last, first) = (self.bar(to), self.bar(from));
        for bar in first..=last {
            let begin = bar as f64 * self.width_ms;
            let part = to.min(begin + self.width_ms) - from.max(begin);
            self.bars[bar].busy[kind] += part.max(0.0);
        }
    }

    /// A task ended.
    pub(super) fn ended(&mut self, now_ms: f64, status: u8) {
        let bar = self.bar(now_ms);
        self.bars[bar].ended[usize::from(status)] += 1;
    }

    /// A call ended.
    pub(super) fn call(&mut self, now_ms: f64, took_ns: u64) {
        self.add(TOOLS, now_ms - millis(took_ns), now_ms);
    }

    /// A request to the model ended.
    pub(super) fn model(&mut self, now_ms: f64, end: &ModelEnded) {
        let mut at = now_ms - millis(end.took_ns);
        for attempt in &end.attempts {
            let parts = [(WAIT, attempt.waited_ns), (QUEUE, attempt.queued_ns), (MODEL, attempt.took_ns)];
            for (kind, ns) in parts {
                if ns > 0 {
                    self.add(kind, at, at + millis(ns));
                }
                at += millis(ns);
            }
        }
    }

    /// The chart of the run.
    pub(super) fn html(&self, run: &RunFolder) -> Markup {
        let wall_ms = run.wall_ms;
        if self.bars.is_empty() || wall_ms <= 0.0 {
            return Markup::default();
        }
        let axis = Axis { span: wall_ms };
        let heights = |bar: &Bar| bar.busy.iter().sum::<f64>() / self.width_ms;
        let most = self.bars.iter().map(heights).fold(0.0, f64::max);
        let ended = |bar: &Bar| f64::from(bar.ended.iter().sum::<u32>());
        let most_ended = self.bars.iter().map(ended).fold(0.0, f64::max);
        let busy = self.chart(wall_ms, most, KINDS.map(|(class, _)| class).as_slice(), |bar, kind| {
            bar.busy[kind] / self.width_ms
        });
        let ends = self.chart(wall_ms, most_ended, &STATUSES[..5], |bar, kind| f64::from(bar.ended[kind]));
        let charts = [
            (format!("at once, up to {most:.0}"), busy),
            (format!("ended, up to {most_ended:.0} in {}", time(self.width_ms)), ends),
        ];
        html! {
            h2 { "Activity" }
            p class="keys" { @for (class, words) in KINDS { (key(&format!("a-{class}"), words)) } }
            figure class="timeline" {
                (axis_row(&axis))
                @for (name, drawing) in charts {
                    div class="row" { span class="name" { (name) } div class="chart" { (drawing) } }
                }
                (pauses(run, &axis))
            }
        }
    }

    fn chart(&self, wall_ms: f64, most: f64, classes: &[&str], of: impl Fn(&Bar, usize) -> f64) -> Markup {
        use std::fmt::Write as _;
        let mut tops = vec![100.0; self.bars.len()];
        let mut paths = Vec::new();
        for (kind, class) in classes.iter().enumerate() {
            let mut path = String::new();
            for (number, (bar, top)) in self.bars.iter().zip(&mut tops).enumerate() {
                let height = 100.0 * of(bar, kind) / most.max(f64::MIN_POSITIVE);
                if height <= 0.05 {
                    continue;
                }
                let left = 1000.0 * number as f64 * self.width_ms / wall_ms;
                let width = 1000.0 * self.width_ms / wall_ms;
                *top -= height;
                let _ = write!(path, "M{left:.1} {top:.1}h{width:.1}v{height:.1}H{left:.1}z");
            }
            if !path.is_empty() {
                paths.push((class, path));
            }
        }
        html! {
            svg class="activity" viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true" {
                @for (class, path) in paths { path class={ "a-" (class) } d=(path) {} }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_get_wider_and_lose_nothing() {
        let mut activity = Activity::default();
        for n in 0..1000_u32 {
            let now = f64::from(n) * 1000.0 + 500.0;
            activity.call(now, 500_000_000);
            activity.ended(now, 0);
        }
        assert!(activity.bars.len() <= BARS && activity.bars.len() > BARS / 4, "{}", activity.bars.len());
        let busy: f64 = activity.bars.iter().map(|bar| bar.busy[TOOLS]).sum();
        let ended: u32 = activity.bars.iter().map(|bar| bar.ended[0]).sum();
        assert!((busy - 500_000.0).abs() < 1e-3 && ended == 1000, "{busy} {ended}");
        let (mut run, _) = RunFolder::begin(std::path::Path::new("."), serde_json::json!({}));
        run.wall_ms = 999_500.0;
        let html = activity.html(&run).0;
        assert!(html.contains("path class=\"a-tools") && html.contains("path class=\"a-passed"), "{html}");
        assert!(!html.contains("path class=\"a-model"), "{html}");
    }
}
