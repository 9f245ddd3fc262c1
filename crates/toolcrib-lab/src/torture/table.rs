//! The results of all trials: counts, the table, the JSON document.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::{ending::End, row::Row, trial::Outcome};
use crate::ui::{millis, seconds};

/// The outcomes of every cell, in the order of the table.
pub(super) struct Table {
    rows: Vec<Row>,
    ends: Vec<End>,
    cells: BTreeMap<(usize, usize), Vec<Outcome>>,
}

/// Sums over all trials.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) trials: usize,
    pub(super) survived: usize,
    pub(super) survivors: usize,
    pub(super) failed: usize,
    slowest: Option<(Duration, Row, End)>,
}

impl Table {
    pub(super) fn new(rows: Vec<Row>, ends: Vec<End>) -> Self {
        Self { rows, ends, cells: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, server: Row, end: End, outcome: Outcome) {
        let row = self.rows.iter().position(|row| *row == server);
        let column = self.ends.iter().position(|column| *column == end);
        if let (Some(row), Some(column)) = (row, column) {
            self.cells.entry((row, column)).or_default().push(outcome);
        }
    }

    fn outcomes(&self) -> impl Iterator<Item = (Row, End, &[Outcome])> {
        self.cells.iter().map(|((row, column), outcomes)| (self.rows[*row], self.ends[*column], &**outcomes))
    }

    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for (server, end, outcomes) in self.outcomes() {
            for outcome in outcomes {
                sums.add(server, end, outcome);
            }
        }
        sums
    }

    /// Rows by columns: `.` clean, the greatest number of survivors, `!` for what could not be measured, `-` for what
    /// was not run.
    pub(super) fn table(&self) -> Vec<String> {
        let wide = self.rows.iter().map(|row| row.name().len()).max().unwrap_or(0);
        let head = self.ends.iter().map(|end| format!("  {:>4}", end.head()));
        let mut lines = vec![format!("{:wide$}{}", "", head.collect::<String>())];
        for (row, server) in self.rows.iter().enumerate() {
            let cells = self.ends.iter().enumerate().map(|(column, end)| {
                let outcomes = self.cells.get(&(row, column)).map_or(&[][..], |outcomes| outcomes);
                format!("  {:>width$}", symbol(outcomes), width = end.head().len().max(4))
            });
            lines.push(format!("{:wide$}{}", server.name(), cells.collect::<String>()));
        }
        lines
    }

    /// One line for each cell in which something could not be measured, or not always the same came out.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (server, end, outcomes) in self.outcomes() {
            let cell = format!("{} x {}", server.name(), end.name());
            let of = |count: usize| match outcomes.len() {
                1 => String::new(),
                all => format!(", {count} of {all} trials"),
            };
            let reasons = outcomes.iter().filter_map(|outcome| match outcome {
                Outcome::Failed { why } => Some(why),
                _ => None,
            });
            let reasons: Vec<&String> = reasons.collect();
            if let Some(why) = reasons.first() {
                lines.push(format!("! {cell}{}: {why}", of(reasons.len())));
            }
            let survived =
                outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Survived { .. })).count();
            if survived > 0 && survived < outcomes.len() {
                lines.push(format!("{cell}{}: something survived", of(survived)));
            }
        }
        lines
    }

    /// All of it, for scripts.
    pub(super) fn document(&self) -> Value {
        let cells: Vec<Value> = self
            .outcomes()
            .map(|(server, end, outcomes)| {
                let mut sums = Sums::default();
                for outcome in outcomes {
                    sums.add(server, end, outcome);
                }
                let mut cell = sums.document();
                cell["server"] = json!(server.name());
                cell["end"] = json!(end.name());
                cell["survivors_worst"] = json!(worst(outcomes));
                cell["trials"] = outcomes.iter().map(trial).collect();
                cell
            })
            .collect();
        let mut document = self.sums().document();
        document["servers"] = self.rows.iter().map(|row| row.name()).collect();
        document["ends"] = self.ends.iter().map(|end| end.name()).collect();
        document["cells"] = json!(cells);
        document
    }
}

impl Sums {
    fn add(&mut self, server: Row, end: End, outcome: &Outcome) {
        self.trials += 1;
        match outcome {
            Outcome::Clean { after } => {
                if self.slowest.is_none_or(|(slowest, ..)| slowest < *after) {
                    self.slowest = Some((*after, server, end));
                }
            }
            Outcome::Survived { count, .. } => {
                self.survived += 1;
                self.survivors += count;
            }
            Outcome::Failed { .. } => self.failed += 1,
        }
    }

    fn document(&self) -> Value {
        json!({"runs": self.trials, "owner_failed": self.failed, "survivors": self.survivors,
            "clean_ms_slowest": self.slowest.map(|(time, ..)| millis(time))})
    }

    pub(super) fn words(&self) -> String {
        let slowest = self.slowest.map_or_else(String::new, |(time, server, end)| {
            format!(", slowest {} ({} x {})", seconds(time), server.name(), end.name())
        });
        let survived = match self.survived {
            0 => String::new(),
            count => format!(" in {count}"),
        };
        let failed = match self.failed {
            0 => String::new(),
            count => format!(", {count} not measured"),
        };
        format!("{} trials: {} survivors{survived}{failed}{slowest}", self.trials, self.survivors)
    }
}

/// The greatest number of survivors; nothing when no trial could be measured.
fn worst(outcomes: &[Outcome]) -> Option<usize> {
    let counts = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Clean { .. } => Some(0),
        Outcome::Survived { count, .. } => Some(*count),
        Outcome::Failed { .. } => None,
    });
    counts.max()
}

fn symbol(outcomes: &[Outcome]) -> String {
    let failed = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed { .. }));
    match worst(outcomes) {
        Some(count @ 1..) => count.to_string(),
        _ if failed => "!".to_owned(),
        Some(0) => ".".to_owned(),
        _ => "-".to_owned(),
    }
}

fn trial(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Clean { after } => json!({"survivors": 0, "clean_after_ms": millis(*after)}),
        Outcome::Survived { count, named } => {
            let named: Vec<Value> = named
                .iter()
                .map(|living| json!({"pid": living.pid.as_raw_nonzero(), "command": living.command}))
                .collect();
            json!({"survivors": count, "processes": named})
        }
        Outcome::Failed { why } => json!({"survivors": null, "error": why}),
    }
}
