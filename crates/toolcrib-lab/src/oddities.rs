//! `toolcrib-lab oddities`: servers, models and clients that send random but well-formed oddities, one node of one message at a
//! time. Nothing crashes, nothing hangs, and an oddity costs no more than the item that it is in.

mod client;
mod model;
mod server;

use std::{
    fmt,
    panic::PanicHookInfo,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::{
    context::Context,
    ui::{Ui, seconds},
};

/// A sender is given up after so many faults.
const MAX_FAULTS: usize = 20;
/// How long a round may take before it counts as a hang.
const ROUND_LIMIT: Duration = Duration::from_secs(120);
/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(15);

/// Send random oddities as a tool server, a model endpoint and a client: what do they cost?
///
/// Each seed changes one node of one message: it is missing, null, of another type, has an unknown sibling, is there twice,
/// or is huge. The same seed always makes the same change.
#[derive(Args)]
pub(crate) struct Oddities {
    /// The senders, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "server,model,client", value_name = "SENDERS")]
    from: Vec<Sender>,
    /// How long each sender goes on.
    #[arg(long = "for", default_value = "30s", value_parser = humantime::parse_duration, value_name = "TIME")]
    time: Duration,
    /// The first seed.
    #[arg(long, default_value = "0", value_name = "N")]
    seed: u64,
    /// Stop after so many seeds: with --seed, to look at one again.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The program that serves the client [default: the one beside toolcrib-lab].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<std::path::PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sender {
    /// A tool server over stdio, with others beside it.
    Server,
    /// A model endpoint of an agent.
    Model,
    /// A client of `toolcrib serve`, over HTTP and over stdio.
    Client,
}

/// Something that an oddity cost, and should not have.
struct Fault {
    seed: u64,
    change: String,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} ({}): {}", self.seed, self.change, self.what)
    }
}

/// Results of one sender.
#[derive(Default)]
struct Tally {
    seeds: u64,
    faults: Vec<Fault>,
}

/// One sender, ready for rounds.
enum Rounds {
    Server(server::Servers),
    Model(model::Models),
    Client(client::Clients),
}

impl Oddities {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let panics = Panics::watch();
        let mut tallies = Vec::new();
        for sender in &self.from {
            let mut rounds = match sender {
                Sender::Server => Rounds::Server(server::Servers::new()?),
                Sender::Model => Rounds::Model(model::Models::new().await?),
                Sender::Client => Rounds::Client(client::Clients::start(self.toolcrib.as_deref()).await?),
            };
            let tally = self.send(*sender, &mut rounds, &panics, context).await?;
            rounds.end().await;
            tallies.push((*sender, tally));
            if context.cancel.is_cancelled() {
                break;
            }
        }
        Ok(print(context.ui, &tallies))
    }

    async fn send(
        &self,
        sender: Sender,
        rounds: &mut Rounds,
        panics: &Panics,
        context: &Context<'_>,
    ) -> anyhow::Result<Tally> {
        let (began, mut shown) = (Instant::now(), Instant::now());
        let (mut tally, mut seed) = (Tally::default(), self.seed);
        let last = self.seeds.map_or(u64::MAX, |count| self.seed.saturating_add(count));
        while began.elapsed() < self.time && seed < last && !context.cancel.is_cancelled() {
            let size = rounds.size().min(last - seed);
            let round = tokio::time::timeout(ROUND_LIMIT, rounds.round(seed..seed + size)).await;
            let mut faults = round.unwrap_or_else(|_| {
                let what = format!("the round of {size} seeds has no end after {}", seconds(ROUND_LIMIT));
                Ok(vec![Fault { seed, change: "any of them".to_owned(), what }])
            })?;
            faults.extend(panics.take().into_iter().map(|what| {
                let what = format!("a thread panicked: {what}");
                Fault { seed, change: format!("or one of the next {size}"), what }
            }));
            for fault in &faults {
                context.ui.bad("Fault", fault.to_string());
            }
            tally.faults.extend(faults);
            (seed, tally.seeds) = (seed + size, tally.seeds + size);
            if tally.faults.len() >= MAX_FAULTS {
                context.ui.bad("Stopping", format!("after {} faults", tally.faults.len()));
                break;
            }
            if shown.elapsed() > PROGRESS {
                shown = Instant::now();
                let count = tally.faults.len();
                let line = format!(
                    "{sender:?}: {} seeds, {count} faults, {}",
                    tally.seeds,
                    seconds(began.elapsed())
                );
                context.ui.status("Sending", line);
            }
        }
        Ok(tally)
    }
}

impl Rounds {
    /// How many seeds one round takes.
    fn size(&self) -> u64 {
        match self {
            Self::Server(_) => server::AT_ONCE,
            Self::Model(_) => model::AT_ONCE,
            Self::Client(_) => client::AT_ONCE,
        }
    }

    async fn round(&mut self, seeds: std::ops::Range<u64>) -> anyhow::Result<Vec<Fault>> {
        match self {
            Self::Server(servers) => Box::pin(servers.round(seeds)).await,
            Self::Model(models) => Box::pin(models.round(seeds)).await,
            Self::Client(clients) => Box::pin(clients.round(seeds)).await,
        }
    }

    async fn end(self) {
        match self {
            Self::Server(_) => {}
            Self::Model(models) => models.end().await,
            Self::Client(clients) => clients.end().await,
        }
    }
}

/// Messages of threads of this process that panicked: also in tasks whose owner hides it.
struct Panics(Arc<Mutex<Vec<String>>>);

impl Panics {
    fn watch() -> Self {
        let said = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&said);
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
        }));
        Self(said)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn print(ui: &Ui, tallies: &[(Sender, Tally)]) -> ExitCode {
    let name = |sender: &Sender| format!("{sender:?}").to_lowercase();
    if ui.json {
        let rows = tallies.iter().map(|(sender, tally)| {
            let fault =
                |fault: &Fault| json!({"seed": fault.seed, "change": fault.change, "fault": fault.what});
            let faults: Vec<_> = tally.faults.iter().map(fault).collect();
            json!({"from": name(sender), "seeds": tally.seeds, "faults": faults})
        });
        Ui::json(json!({"schema": 1, "senders": rows.collect::<Vec<_>>()}));
    } else {
        for (sender, tally) in tallies {
            Ui::data(format!("{}: {} seeds, {} faults", name(sender), tally.seeds, tally.faults.len()));
        }
    }
    let clean = tallies.iter().all(|(_, tally)| tally.faults.is_empty());
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
