//! Reads the tools of a connection: all pages within limits, and again whenever the server says that they changed.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use crate::cancel::CancellationToken;
use serde_json::{Map, Value};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{
    accept_tools::ToolListCheck,
    facts::{Declared, ServerFacts, excerpt},
    failure::Cause,
    handshake::{Era, era_of},
};
use crate::session::{
    NEVER,
    result::words,
    rpc::{client::RpcClient, requests::RpcAnswer},
};
use crate::{catalog::Listing, tool::Tool};

/// Pages of a tool list before it counts as endless.
const MAX_PAGES: usize = 1000;
/// Tools of one server.
const MAX_TOOLS: usize = 10_000;
/// Bytes of one server's tools, as JSON.
const MAX_BYTES: usize = 4 << 20;
/// Values in one server's tools: they cost more memory than their bytes do.
const MAX_VALUES: usize = 200_000;
/// Oddities that are reported of one list, at most.
const MAX_ODDITIES: usize = 20;
/// How long a server that does not say whether it has tools may take to list them.
const UNSAID: Duration = Duration::from_secs(5);

/// The delay from the first notification of a change until the list is read: several changes often follow each other.
const SETTLE: Duration = Duration::from_millis(50);
/// After a list was read, nothing is done about changes for so many times as long as that took, up to a limit: a server
/// that tells of changes without end does not keep us reading.
const REST: u32 = 10;
const MAX_REST: Duration = Duration::from_secs(5);
/// How long a page of a list that is read again may take.
const PAGE_LIMIT: Duration = Duration::from_secs(30);
/// How long a caller waits for a list that is read again for it.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Pause before a subscription that ended is asked for again. It doubles, up to a limit, while there is no answer.
const RESUBSCRIBE: Duration = Duration::from_secs(1);
const MAX_RESUBSCRIBE: Duration = Duration::from_secs(60);

/// The tools of one server as last listed.
pub(in crate::session) struct ToolList {
    now: Mutex<Listed>,
    /// Requests a new reading of the list.
    wanted: Notify,
    /// How often it was read again, with or without success.
    reads: watch::Sender<u64>,
    /// Cancelled once the server has listed what it must not.
    refused: CancellationToken,
}

/// A list, with its version.
#[derive(Clone)]
pub(in crate::session) struct Listed {
    /// How often it has changed.
    pub(in crate::session) times: u64,
    pub(in crate::session) tools: Arc<[Tool]>,
    /// When it was given.
    pub(in crate::session) when: SystemTime,
}

impl ToolList {
    pub(in crate::session) fn new(tools: Arc<[Tool]>, when: SystemTime) -> Self {
        let now = Mutex::new(Listed { times: 0, tools, when });
        let (wanted, reads) = Default::default();
        Self { now, wanted, reads, refused: CancellationToken::new() }
    }

    pub(in crate::session) fn now(&self) -> Listed {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Cancelled once the server has listed what it must not: it is not to be called any more.
    pub(in crate::session) fn refused(&self) -> &CancellationToken {
        &self.refused
    }

    /// Makes the list be read again, waits for that, and returns whether it has changed.
    pub(in crate::session) async fn read_again(&self) -> bool {
        let before = self.now().times;
        let mut reads = self.reads.subscribe();
        self.wanted.notify_one();
        let _ = timeout(READ_AGAIN, reads.changed()).await;
        self.now().times != before
    }

    fn replace(&self, tools: Arc<[Tool]>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.when = SystemTime::now();
        if *now.tools != *tools {
            (now.times, now.tools) = (now.times + 1, tools);
        }
    }
}

/// A list as it was read.
pub(super) struct ReadList {
    pub(super) listing: Listing,
    /// Entries and members that were left out or reinterpreted, each with its place.
    pub(super) oddities: Vec<String>,
}

/// The tools of a server. One that does not say whether it has any is asked, and has none if it does not answer that.
pub(super) async fn tools_of(
    client: &RpcClient,
    facts: &ServerFacts,
    deadline: std::time::Instant,
) -> Result<ReadList, Cause> {
    let left = deadline.saturating_duration_since(std::time::Instant::now());
    let is_sure = match facts.tools {
        Declared::No => return Ok(read_list(facts, Vec::new(), None, Vec::new())),
        Declared::Yes => true,
        Declared::Unsaid => false,
    };
    let limit = if is_sure { left } else { left.min(UNSAID) };
    let outcome = timeout(limit, all_tools(client, facts, limit)).await;
    match outcome.unwrap_or(Err(Cause::Timeout)) {
        Err(cause @ (Cause::Protocol(_) | Cause::Timeout)) if !is_sure => {
            let why = match cause {
                Cause::Protocol(why) => why,
                _ => format!("`tools/list` has no answer within {limit:?}"),
            };
            let oddity =
                format!("it declares no capability `tools`, and {why}: it counts as a server without tools");
            Ok(read_list(facts, Vec::new(), None, vec![oddity]))
        }
        outcome => outcome,
    }
}

/// All pages. The list ends before a page that cannot be had, at a cursor that comes back, and after a page that is one too many.
/// What is more than is bearable otherwise is an error. `limit` is that of one page.
async fn all_tools(client: &RpcClient, facts: &ServerFacts, limit: Duration) -> Result<ReadList, Cause> {
    let broken = |what: String| Cause::Protocol(format!("`tools/list` {what}"));
    let (mut tools, mut oddities): (Vec<Tool>, Vec<String>) = Default::default();
    let (mut entries, mut bytes, mut values) = (0, 0, 0);
    let mut seen = std::collections::HashSet::new();
    let mut cursor: Option<String> = None;
    let mut ttl = None;
    for _ in 0..MAX_PAGES {
        let is_first = cursor.is_none();
        let page = match client.page(cursor.take(), entries, limit).await {
            Ok(page) => page,
            Err(Cause::Protocol(why)) if !is_first => {
                oddities.push(format!("{why}; the list ends before this page"));
                return Ok(read_list(facts, tools, ttl, oddities));
            }
            Err(cause) => return Err(cause),
        };
        ttl = ttl.into_iter().chain(page.ttl_ms).min();
        entries += page.entries;
        bytes += page.bytes;
        values += page.values;
        tools.extend(page.tools);
        for oddity in page.oddities {
            add_oddity(&mut oddities, oddity);
        }
        for (what, count, limit) in
            [("tools", entries, MAX_TOOLS), ("bytes", bytes, MAX_BYTES), ("values", values, MAX_VALUES)]
        {
            if count > limit {
                return Err(broken(format!("has more than {limit} {what}")));
            }
        }
        match page.next_cursor {
            None => return Ok(read_list(facts, tools, ttl, oddities)),
            Some(next) if !seen.insert(next.clone()) => {
                let next = excerpt(&next);
                oddities.push(format!("`nextCursor` is {next:?} for the second time; the list ends there"));
                return Ok(read_list(facts, tools, ttl, oddities));
            }
            Some(next) => {
                // It is sent back, and kept to be known again.
                bytes += next.len();
                cursor = Some(next);
            }
        }
    }
    oddities.push(format!("`tools/list` has more than {MAX_PAGES} pages: the list ends there"));
    Ok(read_list(facts, tools, ttl, oddities))
}

/// Adds what was found, up to a limit.
fn add_oddity(oddities: &mut Vec<String>, oddity: String) {
    match oddities.len() {
        0..MAX_ODDITIES => oddities.push(oddity),
        MAX_ODDITIES => oddities.push("`tools/list` has more of such entries".to_owned()),
        _ => {}
    }
}

/// The list with what is known of the server. A time to live is for the era that has such a thing: what servers of
/// the old one call so is nobody's word on it.
fn read_list(facts: &ServerFacts, tools: Vec<Tool>, ttl_ms: Option<u64>, oddities: Vec<String>) -> ReadList {
    let listing = Listing {
        software: facts.software.clone(),
        ttl: ttl_ms.map(Duration::from_millis).filter(|_| era_of(&facts.version) == Era::Modern),
        version: facts.version.to_string(),
        tools: tools.into(),
    };
    ReadList { listing, oddities }
}

/// Keeps `list` up to date for as long as the connection lives.
pub(super) async fn follow(
    client: RpcClient,
    facts: Arc<ServerFacts>,
    list: Arc<ToolList>,
    list_check: ToolListCheck,
    era: Era,
) {
    // In a box, as most of the time nothing changes, and this waits for as long as the server lives.
    let changed = client.changed();
    let (to, facts, list, list_check) = (&client, &*facts, &*list, &list_check);
    let relisting =
        read_when_changed((&changed, &list.wanted), move || Box::pin(relist(to, facts, list, list_check)));
    match era {
        Era::Modern => tokio::join!(relisting, subscribe(&client, facts, list_check)).0,
        Era::Legacy => relisting.await,
    }
}

/// Reads what has `changed`, or is `wanted`, again and again, with rests.
async fn read_when_changed<F: Future<Output = ()>>(
    (changed, wanted): (&Notify, &Notify),
    read: impl Fn() -> F,
) {
    loop {
        tokio::select! {
            () = changed.notified() => {}
            () = wanted.notified() => {}
        }
        tokio::time::sleep(SETTLE).await;
        let began = Instant::now();
        read().await;
        tokio::time::sleep((began.elapsed() * REST).min(MAX_REST)).await;
    }
}

/// Subscribes to changes of the lists. In the era of 2026-07-28, the server reports changes as long as a subscription request
/// is open. Changes of prompts and resources are for clients of the gateway.
async fn subscribe(client: &RpcClient, facts: &ServerFacts, list_check: &ToolListCheck) {
    if facts.told_lists.is_empty() {
        return;
    }
    let lists: Map<String, Value> =
        facts.told_lists.iter().map(|list| ((*list).to_owned(), true.into())).collect();
    let wanted = Map::from_iter([("notifications".to_owned(), lists.into())]);
    let mut pause = RESUBSCRIBE;
    let mut is_told = false;
    loop {
        let began = Instant::now();
        match Box::pin(client.ask("subscriptions/listen", &wanted, NEVER)).await {
            Ok(RpcAnswer::Refused(error)) => {
                list_check.unwatched(&words::of_error(&error));
                return;
            }
            // Over HTTP each request has a stream of its own, which may break off.
            _ if client.is_ended() => return,
            Ok(_) => pause = RESUBSCRIBE,
            Err(_) if began.elapsed() > MAX_RESUBSCRIBE => pause = RESUBSCRIBE,
            Err(_) => {
                // Once is an accident.
                if pause > RESUBSCRIBE && !std::mem::replace(&mut is_told, true) {
                    list_check.unwatched("its subscription breaks off again and again");
                }
                pause = (pause * 2).min(MAX_RESUBSCRIBE);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn relist(client: &RpcClient, facts: &ServerFacts, list: &ToolList, list_check: &ToolListCheck) {
    match all_tools(client, facts, PAGE_LIMIT).await {
        Ok(ReadList { mut listing, oddities }) => match list_check.take(&mut listing, oddities) {
            Ok(taken) => list.replace(taken.tools),
            Err(cause @ Cause::SameName(_)) => {
                let cause = list_check.shown(&cause);
                tracing::warn!(cause, "the changed tool list cannot be used; the old one stays");
            }
            Err(cause) => {
                tracing::warn!(cause = list_check.shown(&cause), "the changed tool list is refused");
                list.refused.cancel();
            }
        },
        Err(cause) => {
            let cause = list_check.shown(&cause);
            tracing::warn!(cause, "the changed tool list cannot be read; the old one stays");
        }
    }
    list.reads.send_modify(|reads| *reads += 1);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn frequent_list_changes_are_throttled_but_not_lost() {
        let (changed, wanted, reads) = (Notify::new(), Notify::new(), AtomicUsize::new(0));
        let storm = async {
            for _ in 0..60_000 {
                changed.notify_one();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let during = reads.load(Relaxed);
            tokio::time::sleep(Duration::from_secs(10)).await;
            (during, reads.load(Relaxed))
        };
        let reading = read_when_changed((&changed, &wanted), || async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            reads.fetch_add(1, Relaxed);
        });
        let (during, after) = tokio::select! {
            counts = storm => counts,
            () = reading => unreachable!(),
        };
        assert!((30..60).contains(&during), "{during} in a minute, each of which takes 100 ms");
        assert!(after > during, "what came during a rest counts");
    }
}
