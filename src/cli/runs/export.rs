//! `toolcrib export`: writes a run in the format of another tool.

use std::{io::BufWriter, path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum, builder::PossibleValue};
use serde_json::json;
use toolcrib::{
    Error, Outcome,
    export::{Export as RunExport, ExportFormat},
    report::find_run,
};

use crate::cli::{
    context::Context,
    terminal::{
        stdout::Stdout,
        ui::{Ui, counted},
    },
};

#[derive(Args)]
pub(crate) struct Export {
    /// The id of a run, or its folder [default: the latest run], or the format in place of --format.
    run: Option<String>,
    /// The run, if the first argument is the format: `export csv RUN`.
    #[arg(value_name = "RUN", hide = true)]
    second: Option<String>,
    /// The format; docs/export.md says what each holds.
    #[arg(long, short, value_name = "FORMAT")]
    format: Option<Format>,
    /// Where to write it; `-` is stdout [default: a file, or for atif and mirothinker a folder, in the run's folder].
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Only tasks that ended in this way.
    #[arg(long, value_name = "OUTCOME")]
    only: Option<Only>,
    /// The folder of all runs.
    #[arg(long, default_value = "runs", value_name = "FOLDER")]
    out: PathBuf,
}

#[derive(Clone, Copy)]
struct Format(ExportFormat);

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Format; ExportFormat::ALL.len()] = {
            let mut all = [Format(ExportFormat::Inspect); ExportFormat::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = Format(ExportFormat::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Only {
    Passed,
    Failed,
    Errored,
}

impl Export {
    /// The format and the run, in whichever order they are: `csv`, `csv 16cb`, `16cb --format csv`, `16cb csv`.
    fn format_and_run(&self) -> Result<(ExportFormat, Option<&str>), Error> {
        let named = |word: &Option<String>| Format::from_str(word.as_deref()?, true).ok();
        let [run, second] = [&self.run, &self.second].map(Option::as_deref);
        match (&self.format, named(&self.run), named(&self.second)) {
            (Some(format), ..) if second.is_none() => Ok((format.0, run)),
            (None, Some(format), _) => Ok((format.0, second)),
            (None, _, Some(format)) => Ok((format.0, run)),
            (None, ..) => {
                let names: Vec<&str> = ExportFormat::ALL.iter().map(|format| format.name()).collect();
                let help = format!("toolcrib export FORMAT [RUN]; there are: {}", names.join(", "));
                Err(Error::input("the format is missing", Some(help)))
            }
            (Some(_), ..) => {
                let what = format!(
                    "two runs are named: {} and {}",
                    run.unwrap_or_default(),
                    second.unwrap_or_default()
                );
                Err(Error::input(what, Some("toolcrib export RUN --format FORMAT".to_owned())))
            }
        }
    }

    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let (format, run) = self.format_and_run()?;
        let dir = find_run(&self.out, run)?;
        let mut export = RunExport::new(format);
        if let Some(only) = self.only {
            export = export.only(match only {
                Only::Passed => Outcome::Passed,
                Only::Failed => Outcome::Failed,
                Only::Errored => Outcome::Errored,
            });
        }
        let path = self.output.clone().unwrap_or_else(|| export.default_path(&dir));
        let stdout = path.as_os_str() == "-";
        let summary = match stdout {
            true => export.write_to(&dir, &mut BufWriter::new(Stdout))?,
            false => export.write(&dir, &path)?,
        };
        let name = format.name();
        for (count, why) in [
            (summary.without_conversation, "no conversation with a model"),
            (summary.reserved_text, "a marker of the format in a message"),
        ] {
            if count > 0 {
                context.ui.warn(format!("{} left out: {why}", counted(count, "task")));
            }
        }
        let place = if stdout { "stdout".to_owned() } else { path.display().to_string() };
        context.ui.status("Exported", format!("{} as {name} to {place}", counted(summary.tasks, "task")));
        if context.ui.json && !stdout {
            Ui::json(json!({
                "format": name, "path": path, "tasks": summary.tasks,
                "without_conversation": summary.without_conversation, "reserved_text": summary.reserved_text,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
