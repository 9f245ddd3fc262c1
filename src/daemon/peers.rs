//! Who is connected to the socket: each process has a share of the connections, and a budget for what it sends.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Instant,
};

use tokio::net::UnixStream;

use crate::{
    cancel::CancellationToken,
    config::GatewayConfig,
    gateway::{Budget, BudgetFull, TotalBudget},
    limit::possible_connections,
};

/// Clients at once: each is a file of this process. And of one process.
const CLIENTS: usize = 512;
const OF_PROCESS: usize = 64;

/// The clients that are connected.
pub(super) struct Peers(Arc<PeersState>);

struct PeersState {
    most: usize,
    terms: GatewayConfig,
    total: Arc<TotalBudget>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    last: u64,
    all: HashMap<u64, Peer>,
    budgets: HashMap<i32, Weak<Budget>>,
}

struct Peer {
    /// 0, if it is not known.
    pid: i32,
    since: Instant,
    has_asked: bool,
    end: CancellationToken,
}

/// A place for a client, until this is dropped.
pub(super) struct PeerPlace {
    peers: Arc<PeersState>,
    number: u64,
    /// Cancelled when another client has got the place.
    pub(super) end: CancellationToken,
    /// Budget of the client's process.
    pub(super) budget: Arc<Budget>,
    /// The reason why a line was given up.
    pub(super) full: Arc<Mutex<Option<BudgetFull>>>,
}

impl Peers {
    /// Nobody yet. `terms` has what each process may send.
    pub(super) fn new(terms: GatewayConfig) -> Self {
        let most = possible_connections(CLIENTS);
        let total = TotalBudget::new(terms.max_held);
        Self(Arc::new(PeersState { most, terms, total, open: Mutex::default() }))
    }

    /// Whether another one can be taken.
    pub(super) fn has_room(&self) -> bool {
        let open = self.0.open();
        open.all.len() < self.0.most || open.all.values().any(|peer| !peer.has_asked)
    }

    /// A place for who has connected. The one that was silent for the longest time may have to go for it.
    ///
    /// # Errors
    /// Its process has too many.
    pub(super) fn take(&self, stream: &UnixStream) -> Result<PeerPlace, String> {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or_default();
        let PeersState { most, terms, total, .. } = &*self.0;
        let mut open = self.0.open();
        let of_process = open.all.values().filter(|peer| peer.pid == pid).count();
        if of_process >= OF_PROCESS && !open.end_oldest(|peer| peer.pid == pid) {
            return Err(format!("process {pid} has {OF_PROCESS} connections to this daemon already"));
        }
        if open.all.len() >= *most && !open.end_oldest(|_| true) {
            return Err(format!("{most} clients are connected to this daemon already"));
        }
        open.budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = open.budgets.get(&pid).and_then(Weak::upgrade).unwrap_or_else(|| {
            let whose = format!("process {pid}");
            Arc::new(Budget::new(whose, terms.max_held, terms.max_own_servers, total))
        });
        open.budgets.insert(pid, Arc::downgrade(&budget));
        open.last += 1;
        let (number, end) = (open.last, CancellationToken::new());
        let peer = Peer { pid, since: Instant::now(), has_asked: false, end: end.clone() };
        open.all.insert(number, peer);
        Ok(PeerPlace { peers: self.0.clone(), number, end, budget, full: Arc::default() })
    }
}

impl PeersState {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Ends the oldest connection that has not asked anything.
    fn end_oldest(&mut self, which: impl Fn(&Peer) -> bool) -> bool {
        let silent = self.all.iter().filter(|(_, peer)| !peer.has_asked && which(peer));
        let Some(number) = silent.min_by_key(|(_, peer)| peer.since).map(|(number, _)| *number) else {
            return false;
        };
        if let Some(peer) = self.all.remove(&number) {
            peer.end.cancel();
        }
        true
    }
}

impl PeerPlace {
    /// A request has come.
    pub(super) fn asked(&self) {
        if let Some(peer) = self.peers.open().all.get_mut(&self.number) {
            peer.has_asked = true;
        }
    }

    /// The meter that each line of the client has to pass: see [`LineReader::metered`](crate::process::LineReader::metered).
    pub(super) fn meter(&self) -> impl FnMut(usize) -> bool + Send + use<> {
        let (mut held, full) = (self.budget.nothing(), self.full.clone());
        move |bytes| match held.set(bytes) {
            Ok(()) => true,
            Err(why) => {
                *full.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                false
            }
        }
    }

    /// Why its line was given up, if it was more than its process may hold.
    pub(super) fn why_full(&self) -> Option<BudgetFull> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        self.peers.open().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_has_a_share_of_the_connections() {
        let peers = Peers::new(GatewayConfig::default());
        let pairs: Vec<_> = (0..=OF_PROCESS).map(|_| UnixStream::pair().unwrap()).collect();
        let mut places: Vec<PeerPlace> = pairs[1..].iter().map(|pair| peers.take(&pair.0).unwrap()).collect();
        let last = peers.take(&pairs[0].0).unwrap();
        assert!(places[0].end.is_cancelled() && !places[1].end.is_cancelled(), "the oldest silent one goes");
        places[1..].iter().chain([&last]).for_each(PeerPlace::asked);
        let refused = peers.take(&pairs[0].0).err().unwrap();
        assert!(refused.contains("64 connections") && peers.has_room(), "{refused}");
        places.truncate(2);
        let budget = peers.take(&pairs[0].0).unwrap().budget.clone();
        assert!(Arc::ptr_eq(&budget, &last.budget), "one for all connections of a process");
    }

    #[tokio::test]
    async fn unfinished_lines_are_bounded_together() {
        let terms = GatewayConfig { max_held: 100_000, ..GatewayConfig::default() };
        let peers = Peers::new(terms);
        let pairs: Vec<_> = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
        let places: Vec<PeerPlace> = pairs.iter().map(|pair| peers.take(&pair.0).unwrap()).collect();
        let (mut one, mut other) = (places[0].meter(), places[1].meter());
        assert!(one(80_000) && !other(30_000) && places[1].why_full().is_some());
        assert!(one(10) && other(30_000));
    }
}
