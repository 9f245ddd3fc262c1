//! Latest activity of the gateway, for its page: requests that have ended, and lines of servers. Both are bounded, and a busy
//! client or a noisy server takes no room from what failed or from other servers.
//!
//! Contents of messages are never kept: no argument, no result, no words of an error of a server.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use rmcp::model::ErrorCode;
use serde_json::value::RawValue;

use super::client::lock;
use crate::{
    catalog::CatalogEntry,
    config::Secrets,
    error::Error,
    json_rpc::RawObject,
    start::ServerEvent,
    text::cut,
    tool::{ServerName, is_unseen},
};

/// Ended requests that are kept; and as many that have failed.
const ENDED: usize = 100;
/// Lines kept of each server.
const LINES: usize = 200;
/// Letters of a line, or of a text about an error.
const MAX_LINE: usize = 500;
/// Bytes of a log message that are looked at.
const MAX_DATA: usize = 4096;

/// Words of others as they may be shown: so many letters at most, in one line, and none that is not seen but does something.
pub(super) fn shown(text: &str, most: usize) -> String {
    let mut letters = text.chars();
    let mut shown: String = letters
        .by_ref()
        .take(most)
        .map(|letter| match letter {
            '\n' | '\t' => ' ',
            letter if is_unseen(letter) => '\u{fffd}',
            letter => letter,
        })
        .collect();
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// The tool or the method that a request asks for.
#[derive(Clone)]
pub(super) enum Asked {
    Tool(Arc<CatalogEntry>),
    Method(Box<str>),
}

impl Asked {
    pub(super) fn of(tool: Option<&Arc<CatalogEntry>>, method: &str) -> Self {
        match tool {
            Some(entry) => Self::Tool(entry.clone()),
            None => Self::Method(shown(method, 100).into()),
        }
    }
}

/// How a request ended.
#[derive(Clone)]
pub(super) enum Outcome {
    Done,
    /// The tool says that it has failed.
    ToolError,
    /// The server refused it with this code.
    Refused(ErrorCode),
    /// There is no answer of the server.
    Failed(Arc<Failure>),
    /// Nobody waits for it any more.
    Cancelled,
}

/// Why there is no answer, and what to do.
pub(super) struct Failure {
    pub(super) code: String,
    pub(super) text: String,
    pub(super) help: Option<String>,
}

impl Outcome {
    /// Makes the outcome for an error of toolcrib. Its causes and the words of the server are left out: they can hold parts of
    /// an answer.
    pub(super) fn of_error(error: &Error) -> Self {
        let text = match error {
            Error::CallRefused { rpc_code, .. } => format!("refused with code {rpc_code}"),
            Error::ArgumentsInvalid { .. } => "the arguments do not fit the schema of the tool".to_owned(),
            error => shown(&error.to_string(), MAX_LINE),
        };
        let help = error.help().map(|help| shown(&help, MAX_LINE));
        Self::Failed(Arc::new(Failure { code: error.code().to_string(), text, help }))
    }

    fn is_failure(&self) -> bool {
        !matches!(self, Self::Done | Self::Cancelled)
    }
}

/// A request that has ended.
#[derive(Clone)]
pub(super) struct EndedRequest {
    /// Numbers grow in the order of the ends.
    pub(super) number: u64,
    /// The number of the client, and what it calls itself.
    pub(super) client: u64,
    pub(super) caller: Arc<str>,
    pub(super) server: ServerName,
    pub(super) asked: Asked,
    pub(super) began: Instant,
    /// Time of the end. It becomes a time of day only when the page is asked for.
    pub(super) ended: Instant,
    pub(super) outcome: Outcome,
}

/// The requests that ended last, and those that failed last.
#[derive(Default)]
pub(super) struct EndedRequests {
    last: u64,
    others: VecDeque<EndedRequest>,
    failed: VecDeque<EndedRequest>,
}

impl EndedRequests {
    /// Takes one in. Gives the one that it drives out, so that it is dropped outside of locks.
    pub(super) fn add(
        &mut self,
        (client, caller): (u64, Arc<str>),
        (server, asked): (ServerName, Asked),
        began: Instant,
        outcome: Outcome,
    ) -> Option<EndedRequest> {
        self.last += 1;
        let kept = if outcome.is_failure() { &mut self.failed } else { &mut self.others };
        let driven_out = if kept.len() < ENDED { None } else { kept.pop_front() };
        let (number, ended) = (self.last, Instant::now());
        kept.push_back(EndedRequest { number, client, caller, server, asked, began, ended, outcome });
        driven_out
    }

    /// Returns the requests with a number above this one, in order, and the number of the last request.
    pub(super) fn after(&self, number: u64) -> (Vec<EndedRequest>, u64) {
        let new = |kept: &VecDeque<EndedRequest>| {
            let first = kept.partition_point(|one| one.number <= number);
            kept.range(first..).cloned().collect::<Vec<_>>()
        };
        let mut all = [new(&self.others), new(&self.failed)].concat();
        all.sort_unstable_by_key(|one| one.number);
        (all, self.last)
    }
}

/// A line about a server, or of it.
#[derive(Clone)]
pub(super) struct ServerLine {
    pub(super) number: u64,
    pub(super) server: ServerName,
    /// `event`, `stderr` or `log`.
    pub(super) kind: &'static str,
    pub(super) at: SystemTime,
    pub(super) text: Arc<str>,
}

/// Events of servers, the lines that they wrote to stderr, and their log messages: the last [`LINES`] of each server.
pub(super) struct ServerLines {
    secrets: Secrets,
    kept: Mutex<KeptLines>,
}

#[derive(Default)]
struct KeptLines {
    last: u64,
    of: BTreeMap<ServerName, VecDeque<ServerLine>>,
    /// How long servers waited for their turn to start.
    queues: BTreeMap<ServerName, Duration>,
}

impl ServerLines {
    /// Starts without lines. `secrets` are hidden in log messages; in all else they are hidden already.
    pub(super) fn new(secrets: Secrets) -> Self {
        Self { secrets, kept: Mutex::default() }
    }

    /// Takes in what happened to a server, or what it wrote to stderr.
    pub(super) fn happened(&self, event: &ServerEvent) {
        if let ServerEvent::Ready { row } = event
            && let Ok(ready) = &row.outcome
        {
            lock(&self.kept).queues.insert(row.name.clone(), ready.phases.queue);
        } else if let ServerEvent::Restarted { server, .. } = event {
            lock(&self.kept).queues.remove(server);
        }
        match event {
            ServerEvent::Wrote { server, line } => self.add(server, "stderr", line),
            event => {
                if let Some((server, text)) = event.in_words() {
                    self.add(server, "event", &text);
                }
            }
        }
    }

    /// Takes in a log message of a server (`notifications/message`).
    pub(super) fn said(&self, server: &ServerName, params: Option<&RawValue>) {
        let params = RawObject::parse(params).unwrap_or_default();
        let word = |name: &str| params.read::<String>(name).map(|word| cut(&word, 40) + " ");
        let data = params.get("data").map(RawValue::get).unwrap_or_default();
        let text = match data.get(..floor_boundary(data, MAX_DATA)) {
            Some(begun) if begun.len() < data.len() => self.secrets.hide_cut(begun),
            _ => {
                let words: Option<String> = params.read("data");
                self.secrets.hide(words.as_deref().unwrap_or(data))
            }
        };
        let [level, logger] = ["level", "logger"].map(|name| word(name).unwrap_or_default());
        self.add(server, "log", &format!("{level}{}{text}", self.secrets.hide(&logger)));
    }

    /// How long the last start of a server waited for its turn, as far as that is known.
    pub(super) fn queue(&self, server: &ServerName) -> Duration {
        lock(&self.kept).queues.get(server).copied().unwrap_or_default()
    }

    fn add(&self, server: &ServerName, kind: &'static str, text: &str) {
        let text = shown(text.trim_end(), MAX_LINE).into();
        let mut kept = lock(&self.kept);
        kept.last += 1;
        let number = kept.last;
        let lines = kept.of.entry(server.clone()).or_default();
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(ServerLine { number, server: server.clone(), kind, at: SystemTime::now(), text });
    }

    /// The last `most` lines after this number, in order, of servers that `wanted` says; and the last number.
    pub(super) fn after(
        &self,
        number: u64,
        most: usize,
        wanted: impl Fn(&ServerName) -> bool,
    ) -> (Vec<ServerLine>, u64) {
        let kept = lock(&self.kept);
        let mut found: Vec<ServerLine> = Vec::new();
        for (_, lines) in kept.of.iter().filter(|(server, _)| wanted(server)) {
            let first = lines.partition_point(|line| line.number <= number);
            found.extend(lines.range(first..).cloned());
        }
        let last = kept.last;
        drop(kept);
        found.sort_unstable_by_key(|line| line.number);
        (found.split_off(found.len().saturating_sub(most)), last)
    }
}

/// The last place of a letter at or before `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_rpc;

    fn server(name: &str) -> ServerName {
        ServerName::new(name).unwrap()
    }

    #[test]
    fn many_calls_do_not_drive_out_the_failed_ones() {
        let mut ended = EndedRequests::default();
        let mut add = |outcome| {
            let asked = (server("s"), Asked::of(None, "prompts/get"));
            drop(ended.add((1, "agent".into()), asked, Instant::now(), outcome));
        };
        add(Outcome::ToolError);
        (0..3 * ENDED).for_each(|_| add(Outcome::Done));
        add(Outcome::Refused(ErrorCode(-32602)));
        let (all, last) = ended.after(0);
        let numbers: Vec<u64> = all.iter().map(|one| one.number).collect();
        assert_eq!((numbers.len(), numbers[0], last), (ENDED + 2, 1, 302));
        assert!(numbers.is_sorted());
        assert_eq!(ended.after(301).0.len(), 1);
    }

    #[test]
    fn lines_of_servers_are_bounded_and_without_secrets() {
        let lines = ServerLines::new(Secrets::new(["a-secret-of-16-bytes".to_owned()]));
        let wrote = |name: &str, line: String| ServerEvent::Wrote { server: server(name), line };
        lines.happened(&wrote("quiet", "\u{1b}[31mred\u{202e}".to_owned()));
        (0..LINES + 50).for_each(|number| lines.happened(&wrote("noisy", number.to_string())));
        lines.happened(&wrote("noisy", "x".repeat(9000)));
        let all = || lines.after(0, usize::MAX, |_| true).0;
        assert_eq!((all().len(), &*all()[0].text), (LINES + 1, "\u{fffd}[31mred\u{fffd}"));
        assert_eq!(all()[LINES].text.chars().count(), MAX_LINE + 1);
        assert_eq!(lines.after(0, 3, |name| name.as_str() == "noisy").0.len(), 3);
        for data in [
            serde_json::json!("it is a-secret-of-16-bytes."),
            serde_json::json!({"key": "a-secret-of-16-bytes"}),
            serde_json::json!("x".repeat(MAX_DATA - 10) + "a-secret-of-16-bytes" + &"x".repeat(MAX_DATA)),
        ] {
            let params = json_rpc::raw(&serde_json::json!({"level": "error", "logger": "db", "data": data}));
            lines.said(&server("talks"), Some(&params));
        }
        let said: Vec<_> = lines.after(0, 9, |name| name.as_str() == "talks").0;
        assert_eq!(&*said[0].text, "error db it is ****.");
        assert!(
            said.len() == 3 && said.iter().all(|line| !line.text.contains("secret")),
            "{:?}",
            said[2].text
        );
    }
}
