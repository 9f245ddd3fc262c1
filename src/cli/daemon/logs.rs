//! `toolcrib logs`: shows the daemon's kept stderr lines and events of servers.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::{Args, ValueEnum};
use jiff::{Timestamp, Zoned, civil::Date, tz::TimeZone};
use regex::Regex;
use serde_json::json;
use toolcrib::{
    Error, ErrorCode,
    daemon::{LogLine, LogStream},
};

use super::args;
use crate::cli::{
    context::Context,
    terminal::{output, stdout},
};

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

#[derive(Args)]
pub(crate) struct Logs {
    /// Only these servers (names or patterns).
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// Follow new lines until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    /// Only the last N lines that match the other options; with --follow, new lines as well.
    #[arg(long, short = 'n', value_name = "N")]
    lines: Option<usize>,
    /// Only lines newer than this, such as 5m. The daemon keeps 1000 lines of each server.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    since: Option<Duration>,
    /// Only lines of this kind [default: stderr and events].
    #[arg(long, value_enum)]
    stream: Option<Stream>,
    /// Only lines that match this regular expression.
    #[arg(long, value_name = "REGEX", value_parser = Regex::new)]
    grep: Option<Regex>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stream {
    /// Lines that servers wrote to stderr.
    Stderr,
    /// Events of servers.
    Events,
    /// Messages to (>) and from (<) servers; only recorded while a client follows them.
    Wire,
}

impl Logs {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let wire = matches!(self.stream, Some(Stream::Wire));
        if wire && !self.follow {
            let help = "add --follow: toolcrib logs -f --stream wire".to_owned();
            return Err(
                Error::input("messages are only recorded while a client follows them", Some(help)).into()
            );
        }
        let mut daemon = args::required(context)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since)).as_millis();
        let printer = Printer::new(context.ui.json);
        // Lines that are held back until it is known which are the last ones.
        let mut held = self.lines.map(|_| VecDeque::new());
        let told = daemon.logs(self.servers.clone(), self.follow, wire, |line| {
            let Some(line) = line else {
                let last = held.take().into_iter().flatten();
                return last.map(|line| printer.print(&line)).find(ControlFlow::is_break).unwrap_or(GO_ON);
            };
            let of_stream = match self.stream {
                None => !line.stream.is_wire(),
                Some(Stream::Stderr) => line.stream == LogStream::Stderr,
                Some(Stream::Events) => line.stream == LogStream::Events,
                Some(Stream::Wire) => line.stream.is_wire(),
            };
            let matches = || self.grep.as_ref().is_none_or(|grep| grep.is_match(&line.text));
            if u128::from(line.at_ms) < from || !of_stream || !matches() {
                return GO_ON;
            }
            let Some(held) = &mut held else { return printer.print(&line) };
            held.push_back(line);
            if held.len() > self.lines.unwrap_or(usize::MAX) {
                held.pop_front();
            }
            GO_ON
        });
        match told {
            // With --follow, it follows until the end.
            Err(error) if self.follow && error.code() == ErrorCode::SessionLost => {
                context.ui.status("Ended", "the daemon, and with it what there was to follow");
            }
            told => told?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Formats lines for people, and writes them to stdout.
pub(crate) struct Printer {
    json: bool,
    zone: TimeZone,
    today: Date,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, zone: TimeZone::system(), today: Zoned::now().date() }
    }

    fn print(&self, line: &LogLine) -> ControlFlow<()> {
        let text = if self.json { output::json(json!(line).to_string()) } else { self.text(line) };
        stdout::print_bytes(format!("{text}\n").as_bytes());
        if stdout::failed() { ControlFlow::Break(()) } else { GO_ON }
    }

    pub(crate) fn text(&self, line: &LogLine) -> String {
        let at = i64::try_from(line.at_ms).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
        let at = at.unwrap_or_default().to_zoned(self.zone.clone());
        let format = if at.date() == self.today { "%H:%M:%S%.3f" } else { "%Y-%m-%d %H:%M:%S%.3f" };
        let stream = match line.stream {
            LogStream::Stderr => "stderr",
            LogStream::Sent => "wire >",
            LogStream::Received => "wire <",
            _ => "event",
        };
        format!("{} {:<12} {stream:<6}  {}", at.strftime(format), line.server, output::one_line(&line.text))
    }
}
