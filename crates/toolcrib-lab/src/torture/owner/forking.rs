//! An owner whose server is forked from a template, and what it does to the template before it ends.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Map;
use toolcrib::{
    Endpoint, Error, Loan, Manager, StartOptions,
    config::{Scope, TaskValues, TaskVariable},
};
use toolcrib_fakes::servers::stubborn::TOOL;

use super::{Owned, SERVER, config_of, server};
use crate::torture::{census, row::Forked, trial::TEMPLATE_MARK};

/// How long it may take until a server is forked: the first one is not, and a template has to be there.
const LIMIT: Duration = Duration::from_secs(45);
/// Time between two looks or starts.
const PAUSE: Duration = Duration::from_millis(50);

/// How the server is forked.
#[derive(Args)]
pub(super) struct Forking {
    /// Which of the rows.
    #[arg(long, required = false)]
    forked: Forked,
    /// Marks the server and its template.
    #[arg(long, required = false)]
    mark: String,
    /// The folder of the trial.
    #[arg(long, required = false)]
    folder: PathBuf,
    /// The cache folder of all owners, which knows the servers that can be forked.
    #[arg(long, required = false)]
    cache: PathBuf,
}

impl Forking {
    /// A manager with a server that was forked and has answered a call, and a template with the trouble of this row.
    pub(super) async fn start(&self, line: &[String]) -> Result<Owned, Error> {
        let mut server = server(line)?;
        server.scope = Scope::Task;
        if let Endpoint::Stdio(child) = &mut server.endpoint {
            child.args.push(TaskVariable::TaskDir.placeholder().to_owned());
            // Not as a variable of the task: a template that no other task can use is not made.
            child.set_env(TEMPLATE_MARK, &*self.mark);
        }
        let mut config = config_of(server);
        config.cache_folder = Some(self.cache.clone());
        let manager = Manager::start_with(&config, StartOptions::new().task_values(self.values())).await?;
        let mut owned = Owned { loans: Vec::new(), manager };
        let began = Instant::now();
        loop {
            let (loan, how) = self.lend(&owned.manager).await?;
            let is_over = match self.forked {
                Forked::TemplateHangs => how != "forked" && !self.templates().is_empty(),
                _ => how == "forked",
            };
            if is_over {
                owned.loans.push(loan);
                break;
            }
            if began.elapsed() > LIMIT || (self.forked == Forked::TemplateHangs && how == "forked") {
                let seconds = began.elapsed().as_secs();
                let what = format!("the start is not the one of this row after {seconds} s: {how}");
                return Err(Error::input(what, None));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let signal = match self.forked {
            Forked::TemplateKilled => Signal::KILL,
            Forked::TemplateStopped => Signal::STOP,
            _ => return Ok(owned),
        };
        // One more start is under way from here on.
        owned.loans.push(owned.manager.lend_to_task(self.values()));
        let templates = self.templates();
        if templates.is_empty() {
            return Err(Error::input("the template of a server that was just forked is not there", None));
        }
        for template in templates {
            let _ = kill_process(template, signal);
        }
        owned.loans.push(owned.manager.lend_to_task(self.values()));
        Ok(owned)
    }

    fn values(&self) -> TaskValues {
        TaskValues::new(&self.mark, &self.folder, "run", &self.folder)
    }

    /// A server of a task's own, and what it says of its start.
    async fn lend(&self, manager: &Manager) -> Result<(Loan, String), Error> {
        let loan = manager.lend_to_task(self.values());
        let result = loan.toolbox().call(SERVER, TOOL, Map::new()).await?;
        Ok((loan, result.text()))
    }

    /// The templates of this owner; one at most, besides forks of it that are not servers yet.
    fn templates(&self) -> Vec<Pid> {
        let marked = census::marked(&[&format!("{TEMPLATE_MARK}={}", self.mark)]);
        let is_template = |pid: &Pid| census::describe(*pid).command.starts_with("toolcrib-template");
        marked.into_iter().filter(is_template).collect()
    }
}
