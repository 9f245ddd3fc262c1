//! The connections of a server: each peer has a share of them, and when all are taken, the one that was silent for the longest time
//! makes room. If none is silent, it is one that waits for its client, of an owner of requests who has more than a share; and an eighth
//! of them is kept for owners who have fewer.

use std::{
    cmp::Reverse,
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Instant,
};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::Notify;

use super::AnswerBody;
use crate::{cancel::CancellationToken, large::WhoseWork};

/// Which part of the places is kept for requests of owners who have fewer than their share.
const KEPT: usize = 8;

/// Where a connection comes from. Of version 6 a whole network (/64), which one machine may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                Self(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into())
            }
            other => Self(other),
        }
    }

    /// All programs of this machine are one peer.
    fn is_here(self) -> bool {
        self.0.is_loopback()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) if !address.is_loopback() => write!(f, "{address}/64"),
            address => write!(f, "{address}"),
        }
    }
}

/// Why a connection is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All connections are at work.
    All,
    /// All connections that its peer may have are at work.
    OfPeer,
}

/// The places for connections.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    of_peer: usize,
    taken: Mutex<Taken>,
    /// One is free, or silent.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    all: HashMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    peer: Peer,
    /// Requests that are not answered yet.
    busy: usize,
    /// Whether there was any.
    has_asked: bool,
    /// Whose the request is, once that is known.
    whose: Option<WhoseWork>,
    /// Whether it waits for its client, or is a stream without an end of its own: it may end for others.
    is_open: bool,
    /// Since when it is silent, or open.
    since: Instant,
    end: CancellationToken,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let of_peer = most.div_ceil(2);
        Arc::new(Self { most, of_peer, taken: Mutex::default(), changed: Notify::new() })
    }

    /// A place for a connection of `peer`. A silent one may have to go for it.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(self: &Arc<Self>, peer: Peer) -> Result<Place, NoPlace> {
        let mut taken = self.taken();
        let of_peer = taken.all.values().filter(|held| held.peer == peer).count();
        // Who is on this machine may be one client or all of them.
        let is_over = of_peer >= self.of_peer && !peer.is_here();
        if is_over && !taken.make_room(self.of_peer, |held| held.peer == peer) {
            return Err(NoPlace::OfPeer);
        }
        if taken.all.len() >= self.most && !taken.make_room(self.most, |_| true) {
            return Err(NoPlace::All);
        }
        taken.last += 1;
        let (number, end) = (taken.last, CancellationToken::new());
        let held = OpenConnection {
            peer,
            busy: 0,
            has_asked: false,
            whose: None,
            is_open: false,
            since: Instant::now(),
            end: end.clone(),
        };
        taken.all.insert(number, held);
        Ok(Place { places: self.clone(), number, peer, end })
    }

    /// Takes a place like [`Places::take`], and waits until there is one.
    ///
    /// # Errors
    /// The peer has too many.
    pub(super) async fn wait(self: &Arc<Self>, peer: Peer) -> Result<Place, NoPlace> {
        loop {
            let changed = self.changed.notified();
            match self.take(peer) {
                Err(NoPlace::All) => changed.await,
                other => return other,
            }
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Ends a connection for a new one: a silent one, or else an open one of the owner who has most of `most`, if these are more than a
    /// share for each owner and for who comes.
    fn make_room(&mut self, most: usize, which: impl Fn(&OpenConnection) -> bool) -> bool {
        if self.end_oldest(&which) {
            return true;
        }
        let counts = self.counts(&which);
        let share = most / (counts.len() + 1);
        let open = self.all.iter().filter(|(_, held)| held.is_open && which(held));
        let open = open.filter_map(|(number, held)| Some((*counts.get(&held.whose?)?, held.since, *number)));
        let rich = open.filter(|(count, ..)| *count > share);
        match rich.max_by_key(|(count, since, _)| (*count, Reverse(*since))) {
            Some((.., number)) => self.end(number),
            None => false,
        }
    }

    /// Whether an owner has more of `most` than a share, while only those are not at work that are kept for others.
    fn is_over(&self, whose: WhoseWork, most: usize, which: impl Fn(&OpenConnection) -> bool) -> bool {
        let for_all = most - most / KEPT;
        // Mostly there is enough for everybody.
        let is_enough = self.all.len() <= for_all
            || self.all.values().filter(|held| held.busy > 0 && which(held)).count() <= for_all;
        let share = |counts: &HashMap<WhoseWork, usize>| for_all / counts.len().max(1);
        !is_enough && {
            let counts = self.counts(which);
            counts.get(&whose).is_some_and(|own| *own > share(&counts))
        }
    }

    /// How many connections each owner has that are at work.
    fn counts(&self, which: impl Fn(&OpenConnection) -> bool) -> HashMap<WhoseWork, usize> {
        let mut counts = HashMap::new();
        for whose in self.all.values().filter(|held| which(held)).filter_map(|held| held.whose) {
            *counts.entry(whose).or_default() += 1;
        }
        counts
    }

    fn end(&mut self, number: u64) -> bool {
        self.all.remove(&number).inspect(|held| held.end.cancel()).is_some()
    }

    /// Ends the connection that was silent for the longest time: of those that never asked anything, if there are such.
    fn end_oldest(&mut self, which: impl Fn(&OpenConnection) -> bool) -> bool {
        let silent = self.all.iter().filter(|(_, held)| held.busy == 0 && which(held));
        let oldest = silent.min_by_key(|(_, held)| (held.has_asked, held.since)).map(|(number, _)| *number);
        oldest.is_some_and(|number| self.end(number))
    }
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    peer: Peer,
    /// Another one has it now.
    pub(super) end: CancellationToken,
}

impl Place {
    /// It, for who answers its requests.
    pub(super) fn for_request(&self) -> RequestPlace {
        RequestPlace { places: self.places.clone(), number: self.number, peer: self.peer }
    }

    /// A request has come. `None`: the place has been given to another one before.
    pub(super) fn begin(&self) -> Option<Busy> {
        let mut taken = self.places.taken();
        let held = taken.all.get_mut(&self.number)?;
        held.busy += 1;
        held.has_asked = true;
        Some(Busy { places: self.places.clone(), number: self.number })
    }
}

/// The connection of a request, for who answers that.
#[derive(Debug, Clone)]
pub struct RequestPlace {
    places: Arc<Places>,
    number: u64,
    pub peer: Peer,
}

impl RequestPlace {
    /// Says whose request it is. `false`: they have more than their share, and what is free is kept for others.
    pub fn belongs_to(&self, whose: WhoseWork) -> bool {
        let mut taken = self.places.taken();
        let Some(held) = taken.all.get_mut(&self.number) else { return false };
        held.whose = Some(whose);
        let (peer, places) = (held.peer, &self.places);
        let is_over = taken.is_over(whose, places.most, |_| true)
            || (!peer.is_here() && taken.is_over(whose, places.of_peer, |held| held.peer == peer));
        !is_over
    }

    /// Says whether it waits for its client, or is a stream without an end of its own, from now on.
    pub fn set_open(&self, is_open: bool) {
        if let Some(held) = self.places.taken().all.get_mut(&self.number) {
            held.is_open = is_open;
            held.since = Instant::now();
        }
        if is_open {
            self.places.changed.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().all.remove(&self.number);
        self.places.changed.notify_waiters();
    }
}

/// A request that is not answered to its end, until this is dropped.
#[derive(Debug)]
pub(super) struct Busy {
    places: Arc<Places>,
    number: u64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(held) = self.places.taken().all.get_mut(&self.number) {
            held.busy -= 1;
            (held.whose, held.is_open, held.since) = (None, false, Instant::now());
        }
        self.places.changed.notify_waiters();
    }
}

/// The body of an answer, during which its connection is at work.
pub(super) struct BusyBody {
    pub(super) body: AnswerBody,
    pub(super) _busy: Busy,
}

impl Body for BusyBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::of(text.parse().unwrap())
    }

    #[test]
    fn who_was_silent_longest_makes_room() {
        let places = Places::new(3);
        let here = peer("127.0.0.1");
        let [first, second, third] = [(); 3].map(|()| places.take(here).unwrap());
        // It has asked before, and is silent again.
        drop(first.begin().unwrap());
        let fourth = places.take(here).unwrap();
        assert!(second.end.is_cancelled() && second.begin().is_none());
        assert!(!first.end.is_cancelled() && !third.end.is_cancelled());
        let busy: Vec<Busy> = [&first, &third, &fourth].map(|place| place.begin().unwrap()).into();
        assert_eq!(places.take(here).unwrap_err(), NoPlace::All);
        drop(busy);
        let _fifth = places.take(here).unwrap();
        assert!([&first, &third, &fourth].iter().filter(|place| place.end.is_cancelled()).count() == 1);
        drop((second, third));
        assert!(places.taken().all.len() <= 3);
    }

    #[test]
    fn a_peer_has_no_more_than_its_share() {
        let places = Places::new(4);
        let (one, other) = (peer("10.0.0.1"), peer("10.0.0.2"));
        let first: Vec<Place> = (0..2).map(|_| places.take(one).unwrap()).collect();
        let theirs = places.take(other).unwrap();
        let third = places.take(one).unwrap();
        assert!(first[0].end.is_cancelled() && !theirs.end.is_cancelled(), "its own one makes room");
        let _busy = [first[1].begin(), third.begin()];
        assert_eq!(places.take(one).unwrap_err(), NoPlace::OfPeer);
        assert!(places.take(other).is_ok());
    }

    #[test]
    fn who_has_most_leaves_room_for_others() {
        let places = Places::new(16);
        let [rich, poor, other] = [(); 3].map(|()| Arc::new(()));
        let take = |whose: &Arc<()>| {
            let place = places.take(peer("127.0.0.1")).unwrap();
            let (busy, request) = (place.begin().unwrap(), place.for_request());
            let is_taken = request.belongs_to(WhoseWork::of(whose));
            request.set_open(true);
            is_taken.then_some((place, busy))
        };
        let of_rich: Vec<_> = (0..20).map_while(|_| take(&rich)).collect();
        assert_eq!(of_rich.len(), 14, "an eighth is kept");
        let of_poor: Vec<_> = (0..4).map(|_| take(&poor).unwrap()).collect();
        assert!(take(&rich).is_none());
        let ended = of_rich.iter().filter(|(place, _)| place.end.is_cancelled()).count();
        assert!(ended >= 2 && of_rich[0].0.end.is_cancelled() && !of_rich[13].0.end.is_cancelled());
        assert!(of_poor.iter().all(|(place, _)| !place.end.is_cancelled()));
        // Who is at work is not ended.
        let places = Places::new(8);
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let place = places.take(peer("127.0.0.1")).unwrap();
                let busy = place.begin().unwrap();
                (place.for_request().belongs_to(WhoseWork::of(&other)), place, busy)
            })
            .collect();
        assert_eq!(calls.iter().filter(|(is_taken, ..)| *is_taken).count(), 7);
        assert_eq!(places.take(peer("127.0.0.1")).unwrap_err(), NoPlace::All);
    }

    #[test]
    fn a_network_of_version_6_is_one_peer() {
        assert_eq!(peer("2001:db8:1:2:3::4"), peer("2001:db8:1:2:ffff::"));
        assert_ne!(peer("2001:db8:1:2::"), peer("2001:db8:1:3::"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_eq!([peer("2001:db8::1"), peer("::1")].map(|peer| peer.to_string()), ["2001:db8::/64", "::1"]);
        assert!(peer("::1").is_here() && peer("127.0.0.2").is_here());
    }

    #[tokio::test]
    async fn who_waits_gets_the_first_place_that_is_free() {
        let places = Places::new(1);
        let here = peer("127.0.0.1");
        let place = places.take(here).unwrap();
        let busy = place.begin();
        let (waited, ()) = tokio::join!(places.wait(here), async {
            tokio::task::yield_now().await;
            drop(busy);
        });
        assert!(waited.is_ok() && place.end.is_cancelled());
    }
}
