//! `toolcrib-lab bench lazy`: the time from the start of the program to the first model request, with many servers that
//! start at their first call.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::Command,
};
use toolcrib::cli_support::bench::{Scratch, median, sorted};
use toolcrib_fakes::models::request;

use super::times::spread_json;
use crate::{
    context::Context,
    ui::{Ui, at_least_one, millis},
};

/// How long one run may take before something is broken.
const LIMIT: Duration = Duration::from_secs(60);
/// The only answer of the model.
const ANSWER: &str =
    r#"{"choices":[{"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}]}"#;

#[derive(Args)]
pub(crate) struct Lazy {
    /// Configured servers, each with the tools of `toolcrib builtin files`.
    #[arg(long, default_value = "100", value_name = "N", value_parser = at_least_one)]
    servers: NonZeroUsize,
    /// Runs to measure.
    #[arg(long, default_value = "20", value_name = "N", value_parser = at_least_one)]
    runs: NonZeroUsize,
    /// The program to measure [default: the one beside toolcrib-lab].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<PathBuf>,
}

impl Lazy {
    fn program(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.toolcrib {
            return Ok(path.clone());
        }
        let beside = std::env::current_exe()?.with_file_name("toolcrib");
        anyhow::ensure!(beside.is_file(), "{} is not there: run `cargo build` first", beside.display());
        Ok(beside)
    }

    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let folder = Scratch::new()?;
        let own = self.program()?.display().to_string();
        let mut config = "[defaults]\nlifecycle = \"lazy\"\n".to_owned();
        for number in 0..self.servers.get() {
            config.push_str(&format!(
                "[servers.s{number}]\ncommand = {own:?}\nargs = [\"builtin\", \"files\", \".\"]\n"
            ));
        }
        let file = folder.file("servers.toml");
        std::fs::write(&file, config)?;
        let command = |arguments: &[&str]| {
            let mut command = Command::new(&own);
            command.args(arguments).arg("--config").arg(&file).current_dir(folder.file("."));
            command.env("XDG_CACHE_HOME", folder.file("cache"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            command
        };
        context.ui.status("Starting", format!("{} servers, for their tools", self.servers));
        let taught = command(&["tools", "--refresh"]).status().await?;
        anyhow::ensure!(taught.success(), "the servers could not be started once: {taught}");
        let model = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1", model.local_addr()?);
        let mut times = Vec::new();
        let mut request = 0;
        for _ in 0..self.runs.get() {
            let began = Instant::now();
            let mut child = command(&["run", "hello", "--model", "m", "--base-url", &url]).spawn()?;
            let asked = tokio::time::timeout(LIMIT, answer(&model, began));
            let (took, bytes) = context.cancel.run_until_cancelled(asked).await.context("cancelled")???;
            let ended = tokio::time::timeout(LIMIT, child.wait()).await??;
            anyhow::ensure!(ended.success(), "the run failed: {ended}");
            times.push(took);
            request = bytes;
        }
        let times = sorted(times.into_iter());
        if context.ui.json {
            let document = json!({"schema": 1, "servers": self.servers, "runs": self.runs,
                "request_bytes": request, "first_request_ms": spread_json(&times)});
            Ui::json(document);
        } else {
            let ms = |time: Option<&Duration>| time.map_or(0.0, |time| millis(*time));
            Ui::data(format!(
                "from the start of the program until the first request to a model, {} lazy servers, {} runs",
                self.servers, self.runs
            ));
            Ui::data(format!(
                "min {:.1} ms   median {:.1} ms   max {:.1} ms   request {request} bytes",
                ms(times.first()),
                millis(median(&times)),
                ms(times.last())
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits for one request, and answers it; says when its first byte came and how long it was.
async fn answer(model: &TcpListener, began: Instant) -> anyhow::Result<(Duration, usize)> {
    let (stream, _) = model.accept().await?;
    let mut stream = BufReader::new(stream);
    stream.fill_buf().await?;
    let first = began.elapsed();
    let (_, body) = request(&mut stream).await?.context("the request ended early")?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{ANSWER}", ANSWER.len()).as_bytes()).await?;
    stream.shutdown().await?;
    Ok((first, body.len()))
}
