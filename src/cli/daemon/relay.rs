//! Passes the lines of an MCP client to the daemon and back, and knows what is needed to go on with the next daemon: which
//! requests are without an answer, and what a new server has to hear first.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    io::{self, BufRead, BufReader, Read as _, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use serde::Deserialize;
use serde_json::{json, value::RawValue};

/// Requests that a new server hears again.
const MOST_REPEATED: usize = 1_000;
/// The longest line that the gateway takes. Of longer ones nothing is kept.
const MAX_LINE: usize = 16 << 20;
/// Answers are looked at so far for their ids: the gateway writes them first.
const MOST_LOOKED_AT: usize = 4_096;

/// The state of a client's conversation.
#[derive(Default)]
pub(super) struct Relay {
    state: Mutex<State>,
    /// Notified when there is a connection again, or never will be.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    daemon: Option<Arc<UnixStream>>,
    /// Counts connections.
    number: u64,
    /// Whether the client has said all.
    over: bool,
    /// Requests without an answer, by their ids as they are written.
    open: BTreeMap<String, OpenRequest>,
    /// Requests that a new server has to get again, in order: `initialize`, the log level, subscriptions.
    repeated: Vec<Repeated>,
    /// The client's `notifications/initialized`.
    initialized: Option<String>,
    /// Answers that the client has already.
    unwanted: HashSet<String>,
}

struct OpenRequest {
    method: String,
    /// Whether it has been written whole.
    is_sent: bool,
}

struct Repeated {
    method: String,
    id: String,
    /// The subject of the request: of several with the same, only the last one counts.
    about: String,
    line: String,
}

/// The parts of a message of the client that matter here.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, rename = "requestId")]
    request: Option<&'a RawValue>,
    uri: Option<String>,
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what the client says, until it has said all.
    pub(super) fn pass_client(&self, client: &mut impl BufRead) {
        let mut line = Vec::new();
        loop {
            line.clear();
            match client.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(MAX_LINE) if !line.ends_with(b"\n") => self.say_long(std::mem::take(&mut line), client),
                Ok(_) => self.say(&line),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let mut state = self.state();
        state.over = true;
        // The daemon hears so, and hangs up once it has answered all.
        if let Some(daemon) = &state.daemon {
            let _ = daemon.shutdown(Shutdown::Write);
        }
    }

    /// Passes a line on that is too long to be kept, as it comes: the gateway answers that it is too long. Of one that a daemon does not
    /// take whole the rest is dropped.
    fn say_long(&self, begun: Vec<u8>, client: &mut impl BufRead) {
        let mut state = self.state();
        while state.daemon.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(daemon) = state.daemon.clone() else { return };
        drop(state);
        let mut is_taken = (&*daemon).write_all(&begun).is_ok();
        drop(begun);
        loop {
            let part = match client.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) | Ok([]) => return,
                Ok(part) => part,
            };
            let end = memchr::memchr(b'\n', part).map(|at| at + 1);
            let length = end.unwrap_or(part.len());
            is_taken = is_taken && (&*daemon).write_all(&part[..length]).is_ok();
            client.consume(length);
            if end.is_some() {
                return;
            }
        }
    }

    /// Sends one line of the client to the daemon, or to the next one if this one does not take it.
    fn say(&self, line: &[u8]) {
        loop {
            let mut state = self.state();
            while state.daemon.is_none() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(daemon) = state.daemon.clone() else { return };
            let (number, opened) = (state.number, state.note(line));
            drop(state);
            let written = (&*daemon).write_all(line).is_ok();
            let mut state = self.state();
            if written {
                for id in &opened {
                    if let Some(open) = state.open.get_mut(id) {
                        open.is_sent = true;
                    }
                }
                if state.number == number && state.daemon.is_some() {
                    return;
                }
                // It went to a daemon that has ended meanwhile.
                let lost: Vec<String> = opened.into_iter().filter(|id| state.open.contains_key(id)).collect();
                let answers: String = lost.iter().filter_map(|id| state.give_up(id)).collect();
                drop(state);
                return drop(io::stdout().lock().write_all(answers.as_bytes()));
            }
            // No daemon has read it whole, so that it has not run: the next one gets it.
            if state.number == number {
                state.daemon = None;
            }
            if opened.iter().any(|id| !state.open.contains_key(id)) {
                return;
            }
        }
    }

    /// Passes on what the daemon says, until its connection ends. Says whether the client has said all by then.
    pub(super) fn pass_daemon(&self, daemon: &mut impl BufRead, client: &mut impl Write) -> bool {
        let mut line = Vec::new();
        loop {
            line.clear();
            match daemon.read_until(b'\n', &mut line) {
                Ok(count) if count > 0 && line.ends_with(b"\n") => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => break,
            }
            if let Some(id) = answered(&line) {
                let mut state = self.state();
                state.open.remove(id);
                if state.unwanted.remove(id) {
                    continue;
                }
            }
            if client.write_all(&line).and_then(|()| client.flush()).is_err() {
                return true;
            }
        }
        let mut state = self.state();
        state.daemon = None;
        state.over
    }

    /// The answers to requests that the last daemon has taken and not answered: what came of them is not known.
    pub(super) fn give_up(&self) -> String {
        let mut state = self.state();
        let sent = state.open.iter().filter(|(_, open)| open.is_sent).map(|(id, _)| id.clone());
        let sent: Vec<String> = sent.collect();
        sent.iter().filter_map(|id| state.give_up(id)).collect()
    }

    /// Goes on with a connection to a daemon: it hears first what the client has said to the one before. Gives what the client
    /// is to hear of that.
    ///
    /// # Errors
    /// It does not take it.
    pub(super) fn go_on(&self, daemon: UnixStream) -> io::Result<String> {
        let mut state = self.state();
        let again = state.number > 0;
        let mut news = String::new();
        if again {
            let mut said = String::new();
            let repeated: Vec<(String, String, String)> = state
                .repeated
                .iter()
                // One that waits for its answer still is sent by itself.
                .filter(|one| !state.open.contains_key(&one.id))
                .map(|one| (one.method.clone(), one.id.clone(), one.line.clone()))
                .collect();
            for (method, id, line) in repeated {
                said.push_str(&line);
                state.unwanted.insert(id);
                if let ("initialize", Some(line)) = (&*method, &state.initialized) {
                    said.push_str(line);
                }
            }
            (&daemon).write_all(said.as_bytes())?;
            if state.initialized.is_some() {
                for list in ["tools", "prompts", "resources"] {
                    news.push_str(&format!(
                        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/{list}/list_changed\"}}\n"
                    ));
                }
            }
        }
        if state.over {
            daemon.shutdown(Shutdown::Write)?;
        }
        state.number += 1;
        state.daemon = Some(Arc::new(daemon));
        drop(state);
        self.changed.notify_all();
        Ok(news)
    }
}

impl State {
    /// Takes note of what the client says; the ids of the requests in it.
    fn note(&mut self, line: &[u8]) -> Vec<String> {
        let Ok(text) = std::str::from_utf8(line) else { return Vec::new() };
        let messages: Vec<Message<'_>> = match text.trim_start().starts_with('[') {
            true => serde_json::from_str(text).unwrap_or_default(),
            false => serde_json::from_str(text).into_iter().collect(),
        };
        messages.into_iter().filter_map(|message| self.note_message(&message, text)).collect()
    }

    fn note_message(&mut self, message: &Message<'_>, line: &str) -> Option<String> {
        let method = message.method.as_deref()?;
        let params =
            || message.params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok());
        let Some(id) = message.id else {
            match method {
                "notifications/initialized" => self.initialized = Some(ended(line)),
                "notifications/cancelled" => {
                    if let Some(id) = params().and_then(|params| params.request) {
                        self.open.remove(id.get());
                    }
                }
                _ => {}
            }
            return None;
        };
        let id = id.get().to_owned();
        let uri = || params().and_then(|params| params.uri).unwrap_or_default();
        match method {
            "initialize" | "logging/setLevel" => self.repeat(method, method.to_owned(), &id, line),
            "resources/subscribe" => self.repeat(method, uri(), &id, line),
            "resources/unsubscribe" => {
                let uri = uri();
                self.repeated.retain(|one| one.method != "resources/subscribe" || one.about != uri);
            }
            _ => {}
        }
        self.open.insert(id.clone(), OpenRequest { method: method.to_owned(), is_sent: false });
        Some(id)
    }

    fn repeat(&mut self, method: &str, about: String, id: &str, line: &str) {
        // Within a batch it cannot be told apart.
        if line.trim_start().starts_with('[') || self.repeated.len() >= MOST_REPEATED {
            return;
        }
        self.repeated.retain(|one| one.method != method || one.about != about);
        let (method, id) = (method.to_owned(), id.to_owned());
        self.repeated.push(Repeated { method, id, about, line: ended(line) });
    }

    /// The answer to a request whose outcome is not known.
    fn give_up(&mut self, id: &str) -> Option<String> {
        let OpenRequest { method, .. } = self.open.remove(id)?;
        let outcome = match &*method {
            "tools/call" => "outcome unknown, the call may have run",
            _ => "send the request again",
        };
        let error = json!({
            "code": -32603, "message": format!("the daemon of toolcrib has ended before it answered `{method}` ({outcome})"),
            "data": {"code": "session_lost"},
        });
        Some(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n"))
    }
}

/// A line with its end.
fn ended(line: &str) -> String {
    format!("{}\n", line.trim_end())
}

/// The id of the request that a line of the daemon answers.
fn answered(line: &[u8]) -> Option<&str> {
    let rest = line.strip_prefix(b"{\"jsonrpc\":\"2.0\",\"id\":")?;
    let rest = &rest[..rest.len().min(MOST_LOOKED_AT)];
    let end = [&b",\"result\":"[..], b",\"error\":"]
        .iter()
        .filter_map(|end| memchr::memmem::find(rest, end))
        .min()?;
    let id = std::str::from_utf8(&rest[..end]).ok()?;
    // Of a request of a server, what was found belongs to its parameters.
    serde_json::from_str::<&RawValue>(id).is_ok().then_some(id)
}

/// A connection as it is read.
pub(super) fn reader(stream: UnixStream) -> BufReader<UnixStream> {
    BufReader::with_capacity(64 << 10, stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_known_by_their_ids() {
        let id = |line: &str| answered(line.as_bytes()).map(ToOwned::to_owned);
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":7,"result":{"id":8}}"#).as_deref(), Some("7"));
        let odd = id(r#"{"jsonrpc":"2.0","id":"a,\"result\":","error":{}}"#);
        assert_eq!(odd.as_deref(), Some(r#""a,\"result\":""#));
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":"a","error":{"x":"\"result\":"}}"#).as_deref(), Some("\"a\""));
        assert_eq!(id(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":1,"result":2}}"#), None);
        assert_eq!(id(r#"{"jsonrpc":"2.0","method":"m"}"#), None);
    }

    #[test]
    fn the_next_daemon_hears_what_the_last_one_was_told() {
        let relay = Relay::default();
        let (mut first, ours) = UnixStream::pair().unwrap();
        assert_eq!(relay.go_on(ours.try_clone().unwrap()).unwrap(), "");
        let said = [
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":5,"method":"resources/unsubscribe","params":{"uri":"a"}}"#,
        ];
        let lines = |lines: &[usize]| lines.iter().flat_map(|line| [said[*line], "\n"]).collect::<String>();
        for line in said {
            relay.say(format!("{line}\n").as_bytes());
        }
        for id in 0..=5 {
            let mut out = Vec::new();
            let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\n");
            relay.pass_daemon(&mut answer.as_bytes(), &mut out);
            assert_eq!(out, answer.as_bytes());
            relay.state().daemon = Some(Arc::new(ours.try_clone().unwrap()));
        }
        relay.say(b"{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"tools/call\"}\n");
        relay.say(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\"}\n");
        relay.say(
            b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":7}}\n",
        );
        first.set_nonblocking(true).unwrap();
        let _ = io::Read::read_to_end(&mut first, &mut Vec::new());
        assert!(!relay.pass_daemon(&mut io::empty(), &mut Vec::new()));
        let told = relay.give_up();
        assert!(
            told.starts_with(r#"{"jsonrpc":"2.0","id":6,"error":{"code":-32603"#)
                && told.lines().count() == 1
        );
        assert!(told.contains("outcome unknown"), "{told}");
        let (second, ours) = UnixStream::pair().unwrap();
        let news = relay.go_on(ours).unwrap();
        assert!(news.contains("notifications/tools/list_changed") && news.lines().count() == 3, "{news}");
        let mut heard = String::new();
        let mut second = BufReader::new(second);
        (0..4).for_each(|_| drop(second.read_line(&mut heard)));
        assert_eq!(heard, lines(&[0, 1, 3, 5]));
        // The client has these answers already.
        let mut out = Vec::new();
        relay.pass_daemon(&mut &b"{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n"[..], &mut out);
        assert!(out.is_empty());
    }
}
