//! `toolcrib-lab bench llm`: checks the promises about model requests by counts at the server: a model server in this
//! very program that follows a script.

mod burst;
mod faults;
mod flaky;
mod narrow;
mod scenes;

use std::{num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{context::Context, ui::Ui};
use toolcrib_fakes::models::Reply;

/// Model requests against a server that counts: no hidden cap, one retry layer, one pause for all.
///
/// `flaky` takes four minutes, everything else but `outage` one. An outage takes as long as it lasts; 240s is
/// a restart of a large engine.
#[derive(Args)]
pub(crate) struct Llm {
    /// Only these.
    #[arg(long, value_delimiter = ',', value_name = "SCENE,..")]
    only: Vec<Scene>,
    /// How long the endpoint is down in `outage`, a row each.
    #[arg(long, value_delimiter = ',', default_value = "45s", value_name = "TIME,..", value_parser = humantime::parse_duration)]
    outage: Vec<Duration>,
    /// Decides which request takes how long.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,
    /// Exit with 1 if a target is missed.
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scene {
    /// 20 requests of 1.5 to 2 s at once, with a limit of 6 too, and 1,000 at once.
    Flight,
    /// Scripts of statuses: attempts at the server and attempts reported.
    Status,
    /// 1,000 requests of 50 ms at once, twice: time, CPU, connections; and the same by the HTTP client alone and over bare sockets.
    Burst,
    /// Requests whose first attempt fails.
    First,
    /// 200 callers at once of a server that takes 32 at a time: with 1,000 requests, and with one each.
    Narrow,
    /// Endpoints that fail in part, beside a client that shares nothing and repeats each request separately: 100 ms
    /// doubling to 1 s, drawn from 0, at most 12 attempts.
    Flaky,
    /// 100 agents and an endpoint that is down.
    Outage,
}

/// One line of the table.
struct Row {
    name: String,
    target: &'static str,
    ok: bool,
    measured: Value,
    text: String,
}

impl Llm {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let rows = context.cancel.run_until_cancelled(self.measure(context)).await;
        let rows = rows.unwrap_or(Err(toolcrib::Error::Cancelled.into()))?;
        let missed = rows.iter().any(|row| !row.ok);
        if context.ui.json {
            let row = |row: &Row| json!({"scene": row.name, "target": row.target, "ok": row.ok, "measured": row.measured});
            let document =
                json!({"schema": 1, "seed": self.seed, "rows": rows.iter().map(row).collect::<Vec<_>>()});
            Ui::json(document);
        } else {
            Ui::data(format!("{:<24} {:<50} {:<6} measured", "scene", "target", ""));
            for row in &rows {
                let mark = if row.ok { "ok" } else { "MISSED" };
                Ui::data(format!("{:<24} {:<50} {mark:<6} {}", row.name, row.target, row.text));
            }
        }
        Ok(ExitCode::from(u8::from(self.check && missed)))
    }

    async fn measure(&self, context: &Context<'_>) -> anyhow::Result<Vec<Row>> {
        let wanted = |scene| self.only.is_empty() || self.only.contains(&scene);
        let mut rows = Vec::new();
        if wanted(Scene::Flight) {
            context.ui.status("Asking", "20 at once, 20 with a limit of 6, 1000 at once");
            rows.push(scenes::twenty(self.seed, None).await?);
            rows.push(scenes::twenty(self.seed, NonZeroUsize::new(6)).await?);
            rows.push(scenes::thousand().await?);
        }
        if wanted(Scene::Status) {
            context.ui.status("Asking", "servers that follow scripts");
            rows.extend(statuses().await?);
        }
        if wanted(Scene::Burst) {
            context.ui.status("Asking", "1000 at once, twice");
            rows.push(burst::row().await?);
        }
        if wanted(Scene::First) {
            context.ui.status("Asking", "servers that fail once");
            rows.push(scenes::first_fails(503).await?);
        }
        if wanted(Scene::Narrow) {
            context.ui.status("Asking", "200 at once of a server that takes 32");
            rows.push(narrow::stream().await?);
            rows.push(narrow::wave().await?);
        }
        if wanted(Scene::Flaky) {
            rows.extend(flaky::rows(self.seed, context.ui).await?);
        }
        for lasts in self.outage.iter().filter(|_| wanted(Scene::Outage)) {
            context
                .ui
                .status("Asking", format!("100 agents, down for {}", humantime::format_duration(*lasts)));
            rows.push(scenes::outage(*lasts).await?);
        }
        Ok(rows)
    }
}

/// The scripts of statuses, all at once: each has a server of its own.
async fn statuses() -> anyhow::Result<Vec<Row>> {
    let context = "maximum context length is 512 tokens";
    let good = || Reply::good(Duration::ZERO);
    let limited = |seconds| move |_| Reply::error(429, "slow down").header("retry-after", seconds);
    let starting = move |number| if number < 2 { Reply::error(503, "starting") } else { good() };
    let reset = move |number| if number == 0 { good().reset() } else { good() };
    let rows = tokio::join!(
        scenes::script("500 always", "12 to 16 attempts", 12..=16, |_| Reply::error(500, "out of luck")),
        scenes::script("429, Retry-After 1", "12 attempts, 1 s between or more", 12..=12, limited("1")),
        scenes::script("429, Retry-After 1h", "1 attempt", 1..=1, limited("3600")),
        scenes::script("401", "1 attempt", 1..=1, |_| Reply::error(401, "who are you")),
        scenes::script("400, context", "1 attempt", 1..=1, move |_| Reply::error(400, context)),
        scenes::script("503, 503, 200", "3 attempts, answered", 3..=3, starting),
        scenes::script("reset in mid-body", "2 attempts, answered", 2..=2, reset),
    );
    [rows.0, rows.1, rows.2, rows.3, rows.4, rows.5, rows.6].into_iter().collect()
}
