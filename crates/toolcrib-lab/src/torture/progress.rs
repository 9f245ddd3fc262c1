//! Shows the progress of the torture: one line for each trial.

use super::{ending::End, row::Row, trial::Outcome};
use crate::ui::{Ui, seconds};

/// One trial is over.
pub(super) fn show(ui: &Ui, server: Row, end: End, outcome: &Outcome) {
    let cell = format!("{} x {}", server.name(), end.name());
    match outcome {
        Outcome::Clean { after } => ui.status("Clean", format!("{cell} after {}", seconds(*after))),
        Outcome::Survived { count, named } => {
            let example = named.first().map(|living| format!(", such as {}", short(&living.command)));
            ui.bad("Survived", format!("{cell}: {count} left{}", example.unwrap_or_default()));
        }
        Outcome::Failed { why } => ui.bad("Failed", format!("{cell}: {why}")),
    }
}

/// The start of a command line that fits on one.
fn short(command: &str) -> String {
    let program = command.split(' ').next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    format!("{name}{}", &command[program.len()..]).chars().take(48).collect()
}
