//! How a torture goes: a bar on a terminal, one line for each trial elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{behaviour::Behaviour, ending::End, trial::Outcome};
use crate::cli::{
    log,
    ui::{Ui, seconds},
};

pub(super) struct Progress<'a> {
    ui: &'a Ui,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(ui: &'a Ui, trials: usize) -> Self {
        let bar = ui.live().then(|| {
            let style =
                ProgressStyle::with_template("     {spinner} [{elapsed}] {pos}/{len} {wide_bar} {msg}");
            let bar = ProgressBar::new(trials as u64);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(120));
            log::beside(&bar);
            bar
        });
        Self { ui, bar }
    }

    /// One trial is over.
    pub(super) fn done(&self, behaviour: Behaviour, end: End, outcome: &Outcome) {
        let cell = format!("{} x {}", behaviour.name(), end.name());
        let show = || match outcome {
            Outcome::Clean { after } if self.bar.is_none() => {
                self.ui.status("Clean", format!("{cell} after {}", seconds(*after)));
            }
            Outcome::Clean { .. } => {}
            Outcome::Survived { count, named } => {
                let example = named.first().map(|living| format!(", such as {}", short(&living.command)));
                self.ui.bad("Survived", format!("{cell}: {count} left{}", example.unwrap_or_default()));
            }
            Outcome::Failed { why } => self.ui.bad("Failed", format!("{cell}: {why}")),
        };
        match &self.bar {
            Some(bar) => {
                bar.suspend(show);
                bar.inc(1);
                bar.set_message(cell.clone());
            }
            None => show(),
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The start of a command line that fits on one.
fn short(command: &str) -> String {
    let program = command.split(' ').next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    format!("{name}{}", &command[program.len()..]).chars().take(48).collect()
}
