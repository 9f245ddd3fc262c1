//! `toolcrib diff`: two runs of the same tasks, side by side.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use toolcrib::{
    Error,
    cli_support::rounded_count,
    report::{ComparedTask, RunComparison, RunInfo, TaskChange, TaskPair, find_run, list_runs},
};

use crate::cli::{
    context::Context,
    terminal::{
        columns::{self, Fit},
        ui::{Ui, counted, seconds},
    },
};

/// Tasks of each kind of change that are named.
const NAMED: usize = 25;

#[derive(Args)]
pub(crate) struct Diff {
    /// The first run: an id, or a folder [default: the last run before RUN_B with the same file of tasks].
    #[arg(value_name = "RUN_A")]
    before: Option<String>,
    /// The second run [default: the latest run; if only one is named, that is RUN_A].
    #[arg(value_name = "RUN_B")]
    after: Option<String>,
    /// Exit with 100 if a task that passed in RUN_A failed or errored in RUN_B.
    #[arg(long)]
    fail_on_regression: bool,
    /// The folder of all runs.
    #[arg(long, default_value = "runs", value_name = "FOLDER")]
    out: PathBuf,
}

impl Diff {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let after = find_run(&self.out, self.after.as_deref())?;
        let before = match &self.before {
            Some(run) => find_run(&self.out, Some(run))?,
            None => self.run_before(&after)?,
        };
        let comparison = RunComparison::read(&before, &after)?;
        if context.ui.json {
            Ui::json(comparison.document());
        } else {
            show(&comparison);
        }
        let regressed = comparison.count(TaskChange::Regressed);
        if regressed > 0 && self.fail_on_regression {
            context.ui.bad("Regressed", counted(regressed, "task"));
            return Ok(ExitCode::from(100));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Diff {
    /// The last run before that of `after` that had the same tasks.
    fn run_before(&self, after: &Path) -> Result<PathBuf, Error> {
        let info = RunInfo::read(after)?;
        let runs = list_runs(&self.out)?;
        let is_other = |run: &&RunInfo| run.run != info.run && run.started <= info.started;
        let same = runs.iter().filter(is_other).find(|run| run.tasks_file == info.tasks_file);
        same.map(|run| run.dir.clone()).ok_or_else(|| {
            let what = format!("there is no run of the same tasks before {}", info.run);
            Error::input(
                what,
                Some("name two runs: toolcrib diff RUN_A RUN_B; `toolcrib runs` lists them".to_owned()),
            )
        })
    }
}

fn show(comparison: &RunComparison) {
    let RunComparison { before, after, paired_test: test, .. } = comparison;
    let head = [String::new(), before.run.clone(), after.run.clone(), String::new()];
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(comparison.figures()).collect();
    let fit = Fit { width: Ui::width(), drop: &[], cut: &[1, 2] };
    for line in columns::fitted(&rows, &[1, 2, 3], &fit) {
        Ui::data(line);
    }
    Ui::data("");
    for caution in comparison.cautions() {
        Ui::data(caution);
    }
    if comparison.in_both() > 0 {
        Ui::data(test.words());
    }
    if before.tasks_total != after.tasks_total || comparison.count(TaskChange::OnlyBefore) > 0 {
        Ui::data(format!(
            "{} only in {}, {} only in {}",
            counted(comparison.count(TaskChange::OnlyBefore), "task"),
            before.run,
            comparison.count(TaskChange::OnlyAfter),
            after.run
        ));
    }
    for (change, word) in
        [(TaskChange::Regressed, "REGRESSED"), (TaskChange::Fixed, "FIXED"), (TaskChange::Changed, "CHANGED")]
    {
        let tasks = comparison.tasks.iter().filter(|pair| pair.change == change);
        let rows: Vec<[String; 5]> = tasks.clone().take(NAMED).filter_map(|pair| row(word, pair)).collect();
        if rows.is_empty() {
            continue;
        }
        Ui::data("");
        let fit = Fit { width: Ui::width(), drop: &[4, 3], cut: &[1, 2] };
        for line in columns::fitted(&rows, &[], &fit) {
            Ui::data(line);
        }
        let more = tasks.count() - rows.len();
        if more > 0 {
            Ui::data(format!("and {more} more: toolcrib --json diff {} {}", before.run, after.run));
        }
    }
}

fn row(word: &str, pair: &TaskPair) -> Option<[String; 5]> {
    let (before, after) = (pair.before.as_ref()?, pair.after.as_ref()?);
    let status = |task: &ComparedTask| match &task.reason {
        Some(reason) => format!("{} ({reason})", task.status),
        None => task.status.clone(),
    };
    let time = |ms: f64| seconds(Duration::from_secs_f64(ms / 1e3));
    Some([
        word.to_owned(),
        pair.name(),
        format!("{} -> {}", status(before), status(after)),
        format!("{} -> {}", time(before.wall_ms), time(after.wall_ms)),
        format!("{} -> {} tok", rounded_count(before.tokens), rounded_count(after.tokens)),
    ])
}
