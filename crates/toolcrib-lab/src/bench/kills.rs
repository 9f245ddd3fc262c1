//! `toolcrib-lab bench kills`: kills servers at random while many callers use them, and checks the outcome of every
//! call.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    num::NonZeroUsize,
    path::Path,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use toolcrib::{
    CancellationToken, Config, Error, Manager, Toolbox, cli_support::bench::Scratch, session::ServerState,
};

use super::victims::{calm, victim};
use crate::{
    context::Context,
    ui::{Ui, at_least_one, millis, seconds},
};

#[derive(Args)]
pub(crate) struct Kills {
    /// Deaths to cause with SIGKILL.
    #[arg(long, default_value = "1000", value_name = "N")]
    kills: usize,
    /// Concurrent callers.
    #[arg(long, default_value = "64", value_name = "N", value_parser = at_least_one)]
    callers: NonZeroUsize,
    /// Servers that the callers use.
    #[arg(long, default_value = "8", value_name = "N", value_parser = at_least_one)]
    servers: NonZeroUsize,
    /// For the same order of victims and calls again.
    #[arg(long)]
    seed: Option<u64>,
}

/// Outcomes of calls as the callers saw them. Numbers are the arguments of calls, each used once.
#[derive(Default)]
struct Ledger {
    calls: AtomicU64,
    answered: Mutex<HashSet<u64>>,
    not_run: Mutex<HashSet<u64>>,
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Kills {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let folder = Scratch::new()?;
        let effects = folder.file("effects");
        let servers = (0..self.servers.get()).map(|number| victim(number, &effects));
        let config = Config::new(servers.collect::<Result<Vec<_>, _>>()?);
        let manager = context.start(&config).await?;
        let toolbox = manager.toolbox();
        let (ledger, done) = (Ledger::default(), CancellationToken::new());
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        context
            .ui
            .status("Killing", format!("{} times under {} callers, seed {seed}", self.kills, self.callers));
        let began = Instant::now();
        let callers = (0..self.callers.get()).map(|number| {
            let random = fastrand::Rng::with_seed(seed.wrapping_add(1 + number as u64));
            call_on(&toolbox, &ledger, &done, random)
        });
        let killing = async {
            let killed = self.kill_on(context, &toolbox, fastrand::Rng::with_seed(seed)).await;
            done.cancel();
            killed
        };
        let (killed, _) = tokio::join!(killing, futures_util::future::join_all(callers));
        calm(&toolbox).await?;
        let wall = began.elapsed();
        let restarts: u64 = toolbox.status().iter().map(|server| server.restarts).sum();
        let account = Account::new(&ledger, &effects, killed, restarts, wall, manager).await?;
        account.print(context.ui);
        account.verdict()?;
        Ok(ExitCode::SUCCESS)
    }

    /// Kills processes that serve, each at most once; says how many.
    async fn kill_on(&self, context: &Context<'_>, toolbox: &Toolbox, mut random: fastrand::Rng) -> usize {
        let mut killed = HashSet::new();
        while killed.len() < self.kills && !context.cancel.is_cancelled() {
            let status = toolbox.status();
            let alive: Vec<u32> = status
                .iter()
                .filter(|server| matches!(server.state, ServerState::Ready | ServerState::Busy))
                .filter_map(|server| server.pid)
                .filter(|pid| !killed.contains(pid))
                .collect();
            if let Some(pid) = random.choice(alive)
                && let Some(victim) = Pid::from_raw(pid.cast_signed())
                && kill_process(victim, Signal::KILL).is_ok()
            {
                killed.insert(pid);
                if killed.len().is_multiple_of(100) {
                    context.ui.status("Killed", format!("{} of {}", killed.len(), self.kills));
                }
            }
            tokio::time::sleep(Duration::from_micros(random.u64(0..8000))).await;
        }
        killed.len()
    }
}

/// Calls one tool after the other until `done`.
async fn call_on(toolbox: &Toolbox, ledger: &Ledger, done: &CancellationToken, mut random: fastrand::Rng) {
    let names: Vec<_> = toolbox.status().into_iter().map(|server| server.name).collect();
    while !done.is_cancelled() {
        let number = ledger.calls.fetch_add(1, Relaxed);
        let server = &names[random.usize(..names.len())];
        let arguments = Map::from_iter([("n".to_owned(), Value::from(number))]);
        match toolbox.call(server.as_str(), "count", arguments).await {
            Ok(_) => {
                lock(&ledger.answered).insert(number);
            }
            Err(error) => {
                if error.to_string().contains("it was not run") || !matches!(error, Error::Server(_)) {
                    lock(&ledger.not_run).insert(number);
                }
                *lock(&ledger.errors).entry(error.code().to_string()).or_default() += 1;
                // A server that is down refuses at once: asking without a pause is no use to anybody.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

/// The sums, and what they have to be.
struct Account {
    killed: usize,
    restarts: u64,
    calls: u64,
    answered: usize,
    errors: BTreeMap<String, u64>,
    effects: usize,
    run_twice: usize,
    /// Answered, and yet without effect.
    lost: usize,
    /// Reported as not run, and yet with an effect.
    wrongly_denied: usize,
    survivors: usize,
    wall: Duration,
}

impl Account {
    async fn new(
        ledger: &Ledger,
        effects: &Path,
        killed: usize,
        restarts: u64,
        wall: Duration,
        manager: Manager,
    ) -> anyhow::Result<Self> {
        let survivors = manager.shutdown().await.survivors.len();
        let mut times: HashMap<u64, usize> = HashMap::new();
        for line in std::fs::read_to_string(effects)?.lines() {
            *times.entry(line.trim().parse()?).or_default() += 1;
        }
        let answered = lock(&ledger.answered);
        let not_run = lock(&ledger.not_run);
        Ok(Self {
            killed,
            restarts,
            calls: ledger.calls.load(Relaxed),
            answered: answered.len(),
            errors: lock(&ledger.errors).clone(),
            effects: times.len(),
            run_twice: times.values().filter(|times| **times > 1).count(),
            lost: answered.iter().filter(|number| !times.contains_key(number)).count(),
            wrongly_denied: not_run.iter().filter(|number| times.contains_key(number)).count(),
            survivors,
            wall,
        })
    }

    fn print(&self, ui: &Ui) {
        if ui.json {
            let document = json!({
                "schema": 1, "kills": self.killed, "restarts": self.restarts, "calls": self.calls,
                "answered": self.answered, "errors": self.errors, "effects": self.effects,
                "run_twice": self.run_twice, "answered_without_effect": self.lost,
                "denied_with_effect": self.wrongly_denied, "processes_left": self.survivors,
                "wall_ms": millis(self.wall),
            });
            return Ui::json(document);
        }
        Ui::data(format!("deaths {}, restarts {}, in {}", self.killed, self.restarts, seconds(self.wall)));
        let errors: u64 = self.errors.values().sum();
        Ui::data(format!(
            "calls {} = {} answers + {errors} errors {:?}",
            self.calls, self.answered, self.errors
        ));
        Ui::data(format!("side effects {}, run twice {}", self.effects, self.run_twice));
        Ui::data(format!(
            "answered without effect {}, reported as not run and yet run {}",
            self.lost, self.wrongly_denied
        ));
        Ui::data(format!("processes left {}", self.survivors));
    }

    fn verdict(&self) -> anyhow::Result<()> {
        let errors: u64 = self.errors.values().sum();
        anyhow::ensure!(self.calls == self.answered as u64 + errors, "a call has no outcome");
        anyhow::ensure!(self.run_twice == 0, "a call was run twice");
        anyhow::ensure!(self.lost == 0 && self.wrongly_denied == 0, "a wrong outcome was reported");
        anyhow::ensure!(self.restarts == self.killed as u64, "not one restart for each death");
        match self.survivors {
            0 => Ok(()),
            _ => Err(anyhow::anyhow!("{} processes are left", self.survivors)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
