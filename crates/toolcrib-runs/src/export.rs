//! The folder of a run in the formats of other tools. docs/export.md says what each format holds.
//!
//! An export reads the folder task by task, so that its memory does not grow with the number of tasks. It can read a run
//! that goes on, or one that was killed: what has ended by then is exported.
//!
//! # Example
//! ```no_run
//! # mod toolcrib { pub use {toolcrib_core::*, toolcrib_net::*, toolcrib_servers::*, toolcrib_models::*, toolcrib_runs::*}; }
//! # fn example() -> toolcrib::Result<()> {
//! use std::path::Path;
//!
//! use toolcrib::{Outcome, export::{Export, ExportFormat}};
//!
//! let export = Export::new(ExportFormat::OpenAi).only(Outcome::Passed);
//! let summary = export.write(Path::new("runs/4f2a"), Path::new("training.jsonl"))?;
//! println!("{} conversations", summary.tasks);
//! # Ok(())
//! # }
//! ```

mod atif;
mod chatml;
mod conversation;
mod csv;
mod inspect;
mod junit;
mod mirothinker;
mod openai;
mod otlp;
mod output;
mod perfetto;
mod run_reader;

use std::{
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use self::{output::Place, run_reader::RunReader};
use crate::{
    error::{Error, Result},
    task::Outcome,
};

/// A format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// A log of Inspect (`.eval`).
    Inspect,
    /// Trajectories of Harbor: one JSON file for each task.
    Atif,
    /// Conversations as for fine-tuning with OpenAI's API: JSON lines.
    OpenAi,
    /// Conversations as text with the markers of `ChatML`: JSON lines.
    ChatMl,
    /// Task logs of `MiroThinker`: one JSON file for each task.
    MiroThinker,
    /// OpenTelemetry traces as OTLP: JSON lines.
    Otlp,
    /// A table with one row for each task.
    Csv,
    /// JUnit XML with a test case for each task, which CI servers show.
    Junit,
    /// A trace for Perfetto: JSON of the Chrome trace format.
    Perfetto,
}

impl ExportFormat {
    /// All formats.
    pub const ALL: [Self; 9] = [
        Self::Inspect,
        Self::Atif,
        Self::OpenAi,
        Self::ChatMl,
        Self::MiroThinker,
        Self::Otlp,
        Self::Csv,
        Self::Junit,
        Self::Perfetto,
    ];

    /// The name of the format on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inspect => "inspect",
            Self::Atif => "atif",
            Self::OpenAi => "openai",
            Self::ChatMl => "chatml",
            Self::MiroThinker => "mirothinker",
            Self::Otlp => "otlp",
            Self::Csv => "csv",
            Self::Junit => "junit",
            Self::Perfetto => "perfetto",
        }
    }

    /// Whether an export is a folder with a file for each task.
    pub fn is_folder(self) -> bool {
        matches!(self, Self::Atif | Self::MiroThinker)
    }

    /// The name of an export in the folder of its run.
    fn file_name(self) -> &'static str {
        match self {
            Self::Inspect => "inspect.eval",
            Self::Atif => "atif",
            Self::OpenAi => "openai.jsonl",
            Self::ChatMl => "chatml.jsonl",
            Self::MiroThinker => "mirothinker",
            Self::Otlp => "otlp.jsonl",
            Self::Csv => "results.csv",
            Self::Junit => "junit.xml",
            Self::Perfetto => "perfetto.json",
        }
    }
}

/// An export of a run: the format, and which tasks it has.
#[derive(Clone, Copy, Debug)]
pub struct Export {
    format: ExportFormat,
    only: Option<Outcome>,
}

/// Contents of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSummary {
    /// Tasks in it.
    pub tasks: usize,
    /// Tasks that are not in it because they have no conversation with a model, which the format is about.
    pub without_conversation: usize,
    /// Tasks that are not in it because their conversation has a text that the format reserves.
    pub reserved_text: usize,
}

impl Export {
    /// All tasks of a run that have ended.
    pub fn new(format: ExportFormat) -> Self {
        Self { format, only: None }
    }

    /// Restricts the export to tasks that ended in this way.
    #[must_use]
    pub fn only(mut self, outcome: Outcome) -> Self {
        self.only = Some(outcome);
        self
    }

    /// Where the export of the run in `run` goes if nothing else is said: into its folder.
    pub fn default_path(&self, run: &Path) -> PathBuf {
        run.join(self.format.file_name())
    }

    /// Writes the export of the run in the folder `run` to `path`: a file, which is replaced, or a folder, which must be
    /// empty or new. Only their owner may read them, because runs contain private conversations.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] for a folder that is none of a run, and for a folder to write to that is not
    /// empty.
    pub fn write(&self, run: &Path, path: &Path) -> Result<ExportSummary> {
        let reader = RunReader::open(run, self.only)?;
        let place = Place { path, in_run: path == self.default_path(run) };
        match self.format {
            ExportFormat::Atif => atif::write(&reader, place),
            ExportFormat::MiroThinker => mirothinker::write(&reader, place),
            ExportFormat::Inspect => output::replace_file(place, |target| inspect::write(&reader, target)),
            _ => output::replace_file(place, |target| {
                let mut out = BufWriter::new(target.create()?);
                let summary = self.write_text(&reader, &mut out)?;
                out.flush().map_err(output::failed)?;
                Ok(summary)
            }),
        }
    }

    /// Writes the export of the run in the folder `run` to a stream.
    ///
    /// # Errors
    /// As [`Self::write`]; [`Error::Input`] for a format that is no text.
    pub fn write_to(&self, run: &Path, out: &mut dyn Write) -> Result<ExportSummary> {
        if self.format.is_folder() || self.format == ExportFormat::Inspect {
            let what = match self.format.is_folder() {
                true => "a folder with a file for each task",
                false => "an archive",
            };
            let what = format!("an export to `{}` is {what}: it cannot go to stdout", self.format.name());
            return Err(Error::input(what, Some("name a path with -o".to_owned())));
        }
        let summary = self.write_text(&RunReader::open(run, self.only)?, out)?;
        out.flush().map_err(output::failed)?;
        Ok(summary)
    }

    fn write_text(self, reader: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
        match self.format {
            ExportFormat::OpenAi => openai::write(reader, out),
            ExportFormat::ChatMl => chatml::write(reader, out),
            ExportFormat::Otlp => otlp::write(reader, out),
            ExportFormat::Csv => csv::write(reader, out),
            ExportFormat::Junit => junit::write(reader, out),
            ExportFormat::Perfetto => perfetto::write(reader, out),
            ExportFormat::Inspect | ExportFormat::Atif | ExportFormat::MiroThinker => {
                unreachable!("`write` and `write_to` handle these")
            }
        }
    }
}
