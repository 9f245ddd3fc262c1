//! Combines requests that arrive at about the same time into one request on the wire.
//!
//! No background task: the callers that wait in a group drive it together, so any of them can finish it, and a group
//! that all callers left is cancelled on the wire too. Several groups can be under way at once.

use std::{
    num::NonZeroUsize,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{Shared, WeakShared},
};
use tokio::{sync::Notify, time::Instant};

use crate::config::LlmConfig;
use crate::llm::{
    ChatAnswer, ChatOptions, ChatRequest, LlmClient, LlmError, LlmErrorClass, errors::fault::Fault,
};

type Outcomes = Arc<Vec<Option<Result<ChatAnswer, LlmError>>>>;
type Driven = Pin<Box<dyn Future<Output = Outcomes> + Send>>;

/// The batch queue of one client.
pub(in crate::llm) struct BatchQueue {
    size: NonZeroUsize,
    interval: Duration,
    /// The group that takes more. Its members keep it alive.
    open: Mutex<Option<(Arc<Group>, WeakShared<Driven>)>>,
}

/// Callers who share a request.
struct Group {
    /// The requests by their place; `None` for a caller that was dropped. Empty once they are sent.
    members: Mutex<Option<Vec<Option<Member>>>>,
    /// Notified when no further member is waited for.
    complete: Notify,
}

struct Member {
    request: ChatRequest,
    deadline: Option<Instant>,
}

/// A place in a group, given up on drop.
struct GroupPlace {
    group: Arc<Group>,
    number: usize,
}

impl BatchQueue {
    /// `None` unless requests can be shared.
    pub(in crate::llm) fn of(config: &LlmConfig) -> Option<Self> {
        let batch = config.batch;
        (batch.size.get() > 1).then(|| Self {
            size: batch.size,
            interval: batch.interval,
            open: Mutex::default(),
        })
    }

    /// Asks together with others.
    pub(in crate::llm) async fn ask(
        &self,
        client: &LlmClient,
        request: &ChatRequest,
        deadline: Option<Instant>,
    ) -> Result<ChatAnswer, LlmError> {
        let (place, outcomes) = self.join(client, Member { request: request.clone(), deadline });
        let outcomes = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, outcomes).await.ok(),
            None => Some(outcomes.await),
        };
        match outcomes.and_then(|outcomes| outcomes.get(place.number).cloned().flatten()) {
            Some(outcome) => outcome,
            None => {
                let fault = Fault::new(LlmErrorClass::Deadline, "no answer before the caller's deadline");
                Err(client.error(fault).with_others())
            }
        }
    }

    /// Sends what waits for others now.
    pub(in crate::llm) fn flush(&self) {
        if let Some((group, _)) = lock(&self.open).take() {
            group.complete.notify_one();
        }
    }

    fn join(&self, client: &LlmClient, member: Member) -> (GroupPlace, Shared<Driven>) {
        let mut open = lock(&self.open);
        let joined = open.take().and_then(|(group, driven)| Some((driven.upgrade()?, group)));
        let (group, driven) = match joined.filter(|(_, group)| lock(&group.members).is_some()) {
            Some((driven, group)) => (group, driven),
            None => {
                let group =
                    Arc::new(Group { members: Mutex::new(Some(Vec::new())), complete: Notify::new() });
                let driven: Driven = Box::pin(drive(client.clone(), Arc::clone(&group), self.interval));
                (group, driven.shared())
            }
        };
        let mut members = lock(&group.members);
        let waiting = members.get_or_insert_default();
        let number = waiting.len();
        waiting.push(Some(member));
        if waiting.len() == self.size.get() {
            group.complete.notify_one();
        } else {
            // Only who holds `driven` keeps the group alive.
            *open = driven.downgrade().map(|weak| (Arc::clone(&group), weak));
        }
        drop(members);
        (GroupPlace { group, number }, driven)
    }
}

/// Waits for members, then asks for all of them.
async fn drive(client: LlmClient, group: Arc<Group>, interval: Duration) -> Outcomes {
    // Whichever comes first.
    let _ = tokio::time::timeout(interval, group.complete.notified()).await;
    let members = lock(&group.members).take().unwrap_or_default();
    let there: Vec<_> =
        members.iter().enumerate().filter_map(|(n, member)| Some((n, member.as_ref()?))).collect();
    // The last one that is still waited for; each member knows its own.
    let deadlines: Option<Vec<Instant>> = there.iter().map(|(_, member)| member.deadline).collect();
    let deadline = deadlines.and_then(|deadlines| deadlines.into_iter().max());
    let requests = there.iter().map(|(n, member)| (*n, &member.request)).collect();
    let mut outcomes: Vec<_> = members.iter().map(|_| None).collect();
    let mut asked = std::pin::pin!(
        client.together(requests, ChatOptions::new().deadline(deadline.map(Instant::into_std)))
    );
    while let Some((number, outcome)) = asked.next().await {
        outcomes[number] = Some(outcome);
    }
    Arc::new(outcomes)
}

impl Drop for GroupPlace {
    fn drop(&mut self) {
        if let Some(member) = lock(&self.group.members).as_mut().and_then(|all| all.get_mut(self.number)) {
            *member = None;
        }
    }
}

impl LlmClient {
    /// Sends at once what waits for others to share a request with ([`BatchConfig`](toolcrib_core::config::BatchConfig)).
    pub fn flush(&self) {
        if let Some(queue) = &self.inner.batch_queue {
            queue.flush();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
