//! `toolcrib report`: writes the folder of a run as one HTML page.

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use clap::Args;
use toolcrib::{
    Error,
    report::{RunFolder, RunPage, find_run},
};

use crate::cli::{context::Context, terminal::ui::Ui};

#[derive(Args)]
pub(crate) struct Report {
    /// The id of a run, or its folder [default: the latest run].
    run: Option<String>,
    /// Where to write the page [default: report.html in the run's folder].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Open the page in the browser.
    #[arg(long)]
    open: bool,
    /// The folder of all runs.
    #[arg(long, default_value = "runs", value_name = "FOLDER")]
    out: PathBuf,
}

impl Report {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let dir = find_run(&self.out, self.run.as_deref())?;
        let made = RunPage::of(&RunFolder::read(&dir)?);
        let page = match &self.output {
            Some(page) => {
                made.write(page)?;
                page.clone()
            }
            None => made.write_in(&dir)?,
        };
        context.ui.status("Run", made.summary);
        context.ui.status("Report", page.display().to_string());
        if context.ui.json {
            Ui::json(made.json);
        }
        if self.open {
            open(&page)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Opens a file or an address in the browser.
pub(in crate::cli) fn open(what: impl AsRef<OsStr>) -> Result<(), Error> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let what = what.as_ref();
    let mut command = Command::new(program);
    command.arg(what).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let failed = |error| Error::io(format!("cannot show {} with {program}", what.display()), error);
    match command.status().map_err(failed)? {
        status if status.success() => Ok(()),
        status => Err(failed(std::io::Error::other(status.to_string()))),
    }
}
