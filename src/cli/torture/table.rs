//! The score: a row for each server, a column for each end.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{
    cell::Outcome,
    owner::End,
    server::{Behaviour, name_of},
};
use crate::cli::ui::{Ui, millis};

/// All runs of one cell.
#[derive(Default, Clone)]
struct Score {
    runs: usize,
    /// Runs whose owner never got so far.
    failed: usize,
    /// Greatest number of survivors in one run, and their sum over all runs.
    worst: usize,
    survivors: usize,
    slowest: Duration,
}

pub(super) struct Table {
    servers: Vec<Behaviour>,
    ends: Vec<End>,
    scores: BTreeMap<(usize, usize), Score>,
}

impl Table {
    pub(super) fn new(servers: Vec<Behaviour>, ends: Vec<End>) -> Self {
        Self { servers, ends, scores: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, server: Behaviour, end: End, outcome: &Outcome) {
        let score = self.scores.entry((server as usize, end as usize)).or_default();
        score.runs += 1;
        match outcome {
            Outcome::Clean(after) => score.slowest = score.slowest.max(*after),
            Outcome::Survivors(left) => {
                score.worst = score.worst.max(*left);
                score.survivors += left;
            }
            Outcome::OwnerFailed(_) => score.failed += 1,
        }
    }

    fn sum(&self, of: impl Fn(&Score) -> usize) -> usize {
        self.scores.values().map(of).sum()
    }

    pub(super) fn runs(&self) -> usize {
        self.sum(|score| score.runs)
    }

    pub(super) fn survivors(&self) -> usize {
        self.sum(|score| score.survivors)
    }

    pub(super) fn failed(&self) -> usize {
        self.sum(|score| score.failed)
    }

    /// From the end of an owner until nobody was left.
    pub(super) fn slowest(&self) -> Duration {
        self.scores.values().map(|score| score.slowest).max().unwrap_or_default()
    }

    fn score(&self, server: Behaviour, end: End) -> Score {
        self.scores.get(&(server as usize, end as usize)).cloned().unwrap_or_default()
    }

    /// `command` is the foreign program, if it is one.
    pub(super) fn print(&self, ui: &Ui, command: Option<&str>) {
        if ui.json {
            return Ui::data(self.document(command).to_string());
        }
        let row = |name: &str, cells: &mut dyn Iterator<Item = String>| {
            Ui::data(cells.fold(format!("{name:<20}"), |row, cell| format!("{row}{cell:>7}")));
        };
        row("survivors", &mut self.ends.iter().map(|end| end.head().to_owned()));
        for server in &self.servers {
            row(&name_of(server), &mut self.ends.iter().map(|end| self.cell(*server, *end)));
        }
    }

    fn cell(&self, server: Behaviour, end: End) -> String {
        match self.score(server, end) {
            Score { runs: 0, .. } => String::new(),
            Score { worst: 0, failed: 1.., .. } => "!".to_owned(),
            Score { worst: 0, .. } => ".".to_owned(),
            Score { worst, .. } => worst.to_string(),
        }
    }

    fn document(&self, command: Option<&str>) -> serde_json::Value {
        let cells = self.servers.iter().flat_map(|server| self.ends.iter().map(|end| (*server, *end)));
        let cells: Vec<_> = cells
            .map(|(server, end)| {
                let score = self.score(server, end);
                json!({"server": name_of(&server), "end": name_of(&end), "runs": score.runs,
                    "owner_failed": score.failed, "survivors_worst": score.worst,
                    "survivors": score.survivors, "clean_ms_slowest": millis(score.slowest)})
            })
            .collect();
        let version = concat!("toolcrib ", env!("CARGO_PKG_VERSION"));
        json!({"schema": 1, "program": command.unwrap_or(version), "runs": self.runs(),
            "survivors": self.survivors(), "owner_failed": self.failed(), "cells": cells})
    }
}
