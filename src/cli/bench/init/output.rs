//! Writes the result to the terminal and to files.

use std::path::{Path, PathBuf};

use clap::Args;
use toolcrib::{Error, cli_support::page::start_advice::advice};

use super::{document::Document, page, table, waterfall};
use crate::cli::terminal::ui::Ui;

#[derive(Args)]
pub(super) struct Output {
    /// Draw one start as a waterfall of servers and phases, even if stdout is not a terminal.
    #[arg(long)]
    waterfall: bool,
    /// Write the drawing to one self-contained HTML file, with the JSON document in it.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the JSON document to a file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl Output {
    pub(super) fn give(&self, document: &Document, ui: &Ui) -> anyhow::Result<()> {
        let json = serde_json::to_string(document)?;
        if let Some(file) = &self.save {
            write(file, &json, ui)?;
        }
        if let Some(file) = &self.html {
            write(file, &page::html(document, &json), ui)?;
        }
        if ui.json {
            Ui::json(json);
        } else {
            self.print(document);
        }
        Ok(())
    }

    fn print(&self, document: &Document) {
        for line in table::lines(document) {
            Ui::data(line);
        }
        if let Some(advice) = document.main_picture().and_then(|(_, picture)| advice(picture)) {
            Ui::data(advice);
        }
        if !self.waterfall && !Ui::is_terminal() {
            return;
        }
        if let Some((mode, picture)) = document.main_picture() {
            Ui::data(format!("mode {}, the run with the median wall time", mode.mode));
            for line in waterfall::lines(picture) {
                Ui::data(line);
            }
        }
    }
}

fn write(file: &Path, text: &str, ui: &Ui) -> Result<(), Error> {
    let written = std::fs::write(file, text);
    written.map_err(|error| Error::io(format!("could not write {}", file.display()), error))?;
    ui.status("Wrote", file.display().to_string());
    Ok(())
}
