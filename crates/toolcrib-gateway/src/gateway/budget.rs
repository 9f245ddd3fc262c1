//! Budgets for the bytes that are held for owners of clients: messages half received, calls under way, sessions, subscriptions,
//! answers that nobody reads. Each owner has one budget, and all owners together have one; what goes over it is refused, in
//! words.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rmcp::model::{ErrorCode, ErrorData};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// Limit of all owners together, in limits of one owner. Above it only owners that hold less than their equal share may take
/// more, so that the total is at most twice this limit.
const ALL: usize = 2;
/// Messages that wait for clients to read have a limit of their own, so that calls end well while others are under way: the
/// owner's limit divided by this. A short message to a client that has nothing waiting may take all of the owner's limit.
const OF_WAITING: usize = 2;
const SHORT: usize = 64 << 10;
/// Bytes that are counted for a request under way besides its message, and for a session: tasks, tables, queues.
pub(super) const OF_REQUEST: usize = 8 << 10;
pub(super) const OF_SESSION: usize = 8 << 10;
/// Bytes that are counted for a message to a server besides its text.
pub(super) const OF_MESSAGE: usize = 256;
/// Bytes of notifications that may wait until servers read them. A notification may be longer if no other waits before it.
const MAX_TOLD: usize = 1 << 20;
/// Time for which a client that needs servers of its own waits until other servers have ended.
const MAX_ENDING: Duration = Duration::from_secs(10);
/// The code of a refusal, the same as for other limits.
pub(super) const REFUSED: ErrorCode = ErrorCode(-32000);

/// Bytes that all owners hold, and their common limit.
#[derive(Debug)]
pub struct TotalBudget {
    held: AtomicUsize,
    most: usize,
    /// Owners that hold anything.
    owners: AtomicUsize,
}

impl TotalBudget {
    /// Starts a budget for all owners. Each of them may hold `each` bytes.
    pub fn new(each: usize) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            most: each.saturating_mul(ALL),
            owners: AtomicUsize::new(0),
        })
    }
}

/// Bytes and servers that one owner holds, and the limits of both.
#[derive(Debug)]
pub struct Budget {
    /// The owner, in the words of messages.
    whose: String,
    most: usize,
    held: AtomicUsize,
    /// The part of it that waits for clients to read.
    waiting: AtomicUsize,
    /// The part of it that waits for servers to read.
    told: AtomicUsize,
    total: Arc<TotalBudget>,
    own_servers: AtomicUsize,
    /// Own servers that are being ended.
    ending: AtomicUsize,
    ended: Notify,
    most_own_servers: usize,
}

impl Default for Budget {
    /// Has no limits.
    fn default() -> Self {
        let total = TotalBudget { held: 0.into(), most: usize::MAX, owners: 0.into() };
        Self::new("the client".to_owned(), usize::MAX, usize::MAX, &Arc::new(total))
    }
}

impl Budget {
    /// Starts the budget of the owner that messages call `whose`, who may hold `most` bytes and `most_own_servers` servers of
    /// their own.
    pub fn new(whose: String, most: usize, most_own_servers: usize, total: &Arc<TotalBudget>) -> Self {
        let [held, waiting, told, own_servers, ending] = [(); 5].map(|()| AtomicUsize::new(0));
        let (total, ended) = (total.clone(), Notify::new());
        Self { whose, most, held, waiting, told, total, own_servers, ending, ended, most_own_servers }
    }

    /// Takes so many bytes until the result is dropped.
    ///
    /// # Errors
    /// The owner, or all of them, hold too much.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Held, BudgetFull> {
        let mut held = self.nothing();
        held.grow(bytes)?;
        Ok(held)
    }

    /// Takes bytes like [`Budget::take`] for a message that waits until a client reads it. `is_first`: no other waits there.
    ///
    /// # Errors
    /// The errors of [`Budget::take`], or more would wait than may.
    pub(super) fn take_waiting(self: &Arc<Self>, bytes: usize, is_first: bool) -> Result<Held, BudgetFull> {
        let mut held = self.nothing_waiting();
        held.grow_waiting(bytes, is_first)?;
        Ok(held)
    }

    /// Takes bytes like [`Budget::take`] for a notification that waits until a server reads it.
    ///
    /// # Errors
    /// The errors of [`Budget::take`], or too much waits already.
    pub(super) fn take_told(self: &Arc<Self>, bytes: usize) -> Result<Told, BudgetFull> {
        let told = Told(self.take(bytes)?);
        let before = self.told.fetch_add(bytes, Relaxed);
        if before > 0 && before.saturating_add(bytes) > MAX_TOLD {
            return Err(BudgetFull::Told { whose: self.whose.clone(), waiting: before });
        }
        Ok(told)
    }

    /// Starts a count at no bytes.
    pub fn nothing(self: &Arc<Self>) -> Held {
        Held { budget: self.clone(), bytes: 0, is_waiting: false }
    }

    /// Starts a count at no bytes, for messages that wait until a client reads them.
    pub(super) fn nothing_waiting(self: &Arc<Self>) -> Held {
        Held { budget: self.clone(), bytes: 0, is_waiting: true }
    }

    /// A count of own servers that begins at none.
    pub(super) fn no_servers(self: &Arc<Self>) -> OwnServers {
        OwnServers { budget: self.clone(), servers: 0, are_ending: false }
    }

    /// Does `grow`, again as long as servers are being ended that leave room for others.
    ///
    /// # Errors
    /// There is no room, and none is made in time.
    pub(super) async fn while_servers_end(
        &self,
        mut grow: impl FnMut() -> Result<(), BudgetFull>,
    ) -> Result<(), BudgetFull> {
        let until = Instant::now() + MAX_ENDING;
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let Err(full) = grow() else { return Ok(()) };
            if self.ending.load(Relaxed) == 0 || timeout_at(until, ended).await.is_err() {
                return Err(full);
            }
        }
    }

    fn add(&self, bytes: usize, most: usize, is_waiting: bool) -> Result<(), BudgetFull> {
        if bytes == 0 {
            return Ok(());
        }
        let held = self.held.fetch_add(bytes, Relaxed);
        if held == 0 {
            self.total.owners.fetch_add(1, Relaxed);
        }
        let all = self.total.held.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let own = held.saturating_add(bytes);
        let before = match is_waiting {
            true => self.waiting.fetch_add(bytes, Relaxed),
            false => held.saturating_sub(self.waiting.load(Relaxed)),
        };
        let whose = || self.whose.clone();
        let full = if before.saturating_add(bytes) > most {
            Some(BudgetFull::Owner { whose: whose(), held: before, wanted: bytes, most: self.most })
        } else if all > self.total.most && own > self.total.most / self.total.owners.load(Relaxed).max(1) {
            Some(BudgetFull::All { whose: whose(), wanted: bytes, most: self.total.most })
        } else {
            None
        };
        full.map_or(Ok(()), |full| {
            self.give_back(bytes, is_waiting);
            Err(full)
        })
    }

    fn give_back(&self, bytes: usize, is_waiting: bool) {
        if bytes == 0 {
            return;
        }
        if is_waiting {
            self.waiting.fetch_sub(bytes, Relaxed);
        }
        self.total.held.fetch_sub(bytes, Relaxed);
        if self.held.fetch_sub(bytes, Relaxed) == bytes {
            self.total.owners.fetch_sub(1, Relaxed);
        }
    }

    /// Bytes that are held now.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

/// Bytes that are held for an owner, until this is dropped.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: usize,
    is_waiting: bool,
}

impl Held {
    /// Takes more.
    ///
    /// # Errors
    /// There is no room for it: nothing is taken.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), BudgetFull> {
        self.budget.add(more, self.budget.most, self.is_waiting)?;
        self.bytes += more;
        Ok(())
    }

    /// Takes more like [`Held::grow`] for a message that waits until a client reads it. `is_first`: no other waits there.
    ///
    /// # Errors
    /// The errors of [`Held::grow`], or more would wait than may.
    pub(super) fn grow_waiting(&mut self, more: usize, is_first: bool) -> Result<(), BudgetFull> {
        let most = self.budget.most;
        let most = if is_first && more <= SHORT { most } else { most / OF_WAITING };
        self.budget.add(more, most, self.is_waiting)?;
        self.bytes += more;
        Ok(())
    }

    /// The budget that these bytes count for.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives some back.
    pub(crate) fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.budget.give_back(less, self.is_waiting);
    }

    /// Holds so many from now on.
    ///
    /// # Errors
    /// There is no room for more: all stays as it is.
    pub fn set(&mut self, bytes: usize) -> Result<(), BudgetFull> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// All that is held, and nothing here any more.
    pub(crate) fn take_all(&mut self) -> Self {
        Self {
            budget: self.budget.clone(),
            bytes: std::mem::take(&mut self.bytes),
            is_waiting: self.is_waiting,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes, self.is_waiting);
    }
}

/// A notification that waits for a server to read it, until this is dropped.
#[derive(Debug)]
pub(super) struct Told(Held);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.budget.told.fetch_sub(self.0.bytes, Relaxed);
    }
}

/// A text that counts until it is dropped.
pub(crate) struct HeldText {
    text: String,
    _held: Held,
}

impl HeldText {
    pub(super) fn new(text: String, held: Held) -> Self {
        Self { text, _held: held }
    }
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Servers of its own that a client has, until this is dropped: when they have ended.
#[derive(Debug)]
pub(super) struct OwnServers {
    budget: Arc<Budget>,
    servers: usize,
    are_ending: bool,
}

impl OwnServers {
    /// Has so many at least from now on.
    ///
    /// # Errors
    /// The owner would have too many: nothing changes.
    pub(super) fn grow_to(&mut self, servers: usize) -> Result<(), BudgetFull> {
        let more = servers.saturating_sub(self.servers);
        let Budget { own_servers, most_own_servers, whose, .. } = &*self.budget;
        let before = own_servers.fetch_add(more, Relaxed);
        if more > 0 && before.saturating_add(more) > *most_own_servers {
            own_servers.fetch_sub(more, Relaxed);
            return Err(BudgetFull::Servers { whose: whose.clone(), most: *most_own_servers });
        }
        self.servers += more;
        Ok(())
    }

    /// They are being ended: those who wait for room know that there will be some.
    pub(super) fn are_ending(&mut self) {
        if !std::mem::replace(&mut self.are_ending, true) {
            self.budget.ending.fetch_add(self.servers, Relaxed);
        }
    }
}

impl Drop for OwnServers {
    fn drop(&mut self) {
        self.budget.own_servers.fetch_sub(self.servers, Relaxed);
        if self.are_ending {
            self.budget.ending.fetch_sub(self.servers, Relaxed);
            self.budget.ended.notify_waiters();
        }
    }
}

/// Why nothing more is held for an owner.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetFull {
    /// It holds too much.
    Owner { whose: String, held: usize, wanted: usize, most: usize },
    /// All together do, and it holds more than its share.
    All { whose: String, wanted: usize, most: usize },
    /// Too much waits that servers are told.
    Told { whose: String, waiting: usize },
    /// It has too many servers of its own.
    Servers { whose: String, most: usize },
}

impl fmt::Display for BudgetFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner { whose, held, wanted, most } => write!(
                f,
                "too much is held for {whose} (messages, calls under way, sessions, subscriptions; answers that are not read): {}, and {} more \
                 for this; `max_held` in [gateway] is {}",
                size(*held),
                size(*wanted),
                size(*most)
            ),
            Self::All { whose, wanted, most } => write!(
                f,
                "too much is held for all clients together: there are no {} more for {whose}; `max_held` in [gateway] allows {} for all",
                size(*wanted),
                size(*most)
            ),
            Self::Told { whose, waiting } => write!(
                f,
                "servers have not read {} of notifications of {whose}; {} may wait",
                size(*waiting),
                size(MAX_TOLD)
            ),
            Self::Servers { whose, most } => write!(
                f,
                "too many servers of their own (`scope = \"client\"`) are there for {whose}: `max_own_servers` in [gateway] is {most}; end \
                 sessions that are not used"
            ),
        }
    }
}

impl From<BudgetFull> for ErrorData {
    fn from(full: BudgetFull) -> Self {
        Self::new(REFUSED, full.to_string(), None)
    }
}

/// `1.5 MiB`.
pub(crate) fn size(bytes: usize) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(each: usize, names: &[&str]) -> Vec<Arc<Budget>> {
        let total = TotalBudget::new(each);
        names.iter().map(|name| Arc::new(Budget::new((*name).to_owned(), each, 2, &total))).collect()
    }

    #[test]
    fn an_owner_holds_no_more_than_its_budget() {
        let [one] = &budgets(100, &["token `a`"])[..] else { unreachable!() };
        let mut held = one.take(60).unwrap();
        let full = one.take(41).unwrap_err();
        assert!(full.to_string().contains("60 bytes") && full.to_string().contains("`max_held`"), "{full}");
        held.set(10).unwrap();
        let other = one.take(90).unwrap();
        assert!(held.grow(1).is_err() && held.set(11).is_err());
        drop(held);
        let moved = { other }.take_all();
        let waiting = one.take_waiting(50, false).unwrap();
        assert!(one.take_waiting(1, false).is_err() && one.take_waiting(1, true).is_ok(), "beside the rest");
        drop(waiting);
        assert_eq!(one.held(), 90);
        drop(moved);
        assert_eq!((one.held(), one.total.held.load(Relaxed), one.total.owners.load(Relaxed)), (0, 0, 0));
    }

    #[test]
    fn notifications_that_no_server_reads_are_dropped() {
        let all = budgets(1 << 30, &["a", "b"]);
        let long = all[0].take_told(8 << 20).unwrap();
        assert!(all[0].take_told(1).unwrap_err().to_string().contains("8 MiB of notifications of a"));
        drop(long);
        let many: Vec<Told> = (0..10_000).map_while(|_| all[0].take_told(512).ok()).collect();
        assert_eq!((many.len(), all[0].held()), (MAX_TOLD / 512, MAX_TOLD));
        assert!(all[1].take_told(512).is_ok());
        drop(many);
        assert_eq!((all[0].held(), all[0].told.load(Relaxed)), (0, 0));
    }

    #[test]
    fn who_holds_little_has_room_while_others_fill_all() {
        let all = budgets(100, &["a", "b", "c", "d"]);
        let held: Vec<Held> = all[..2].iter().map(|one| one.take(100).unwrap()).collect();
        assert!(matches!(all[2].take(80), Err(BudgetFull::All { .. })));
        let small = all[2].take(60).unwrap();
        assert!(all[3].take(50).is_ok());
        drop(held);
        assert!(all[3].take(100).is_ok());
        drop(small);
    }

    #[test]
    fn own_servers_are_counted_for_each_owner() {
        let all = budgets(100, &["a", "b"]);
        let [mut one, mut more, mut other] = [&all[0], &all[0], &all[1]].map(Budget::no_servers);
        assert!(one.grow_to(1).is_ok() && one.grow_to(2).is_ok() && one.grow_to(1).is_ok());
        let full = more.grow_to(1).unwrap_err().to_string();
        assert!(full.contains("`max_own_servers` in [gateway] is 2"), "{full}");
        assert!(other.grow_to(1).is_ok());
        drop(one);
        assert!(more.grow_to(2).is_ok());
    }
}
