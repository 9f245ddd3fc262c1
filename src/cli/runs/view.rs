//! `toolcrib view`: the runs of a folder as pages for the browser.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::json;
use toolcrib::{Error, view::ViewServer};

use super::report::open;
use crate::cli::{
    context::{Context, name_option},
    terminal::ui::Ui,
};

#[derive(Args)]
pub(crate) struct View {
    /// The folder of all runs, or that of one run [default: runs].
    #[arg(value_name = "FOLDER")]
    runs: Option<PathBuf>,
    /// The port on 127.0.0.1 [default: any free one].
    #[arg(long, default_value = "0", value_name = "N", hide_default_value = true)]
    port: u16,
    /// Open the page in the browser.
    #[arg(long)]
    open: bool,
}

impl View {
    pub(crate) async fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        // Runs may still be made in the usual folder; of another one the name is wrong.
        if let Some(runs) = self.runs.as_ref().filter(|runs| !runs.is_dir()) {
            let help = "name the folder of all runs, or that of one: `toolcrib runs` lists those in ./runs"
                .to_owned();
            return Err(Error::input(format!("there is no folder {}", runs.display()), Some(help)).into());
        }
        let runs = self.runs.as_deref().unwrap_or(Path::new("runs"));
        let server = ViewServer::bind(runs, self.port).await;
        let server = server.map_err(|error| name_option(error, "--port N"))?;
        context.ui.status("Viewing", format!("the runs in {} until Ctrl-C", runs.display()));
        match context.ui.json {
            true => Ui::json(json!({"schema": 1, "address": server.address()})),
            false => Ui::data(server.address()),
        }
        if self.open {
            open(server.address())?;
        }
        server.serve(&context.cancel).await;
        Ok(ExitCode::SUCCESS)
    }
}
