//! Lanes: parts of the queue that workers take from in the order that they like, each with a cap of tasks under way.

use std::{num::NonZeroU32, time::Duration};

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use futures_util::TryStreamExt as _;
use tokio::{sync::Mutex, time::Instant};

use super::{NatsStore, name_of, token};
use crate::error::Result;

/// The lane of runs that name none.
pub(crate) const DEFAULT_LANE: &str = "default";

/// Tasks under way at once in a lane without a cap.
const UNCAPPED: i64 = 100_000;

/// How long a list of lanes is used.
const FRESH: Duration = Duration::from_secs(2);

/// The lanes that a worker takes from, and when they were looked up. Held while they are.
#[derive(Debug, Default)]
pub(super) struct KnownLanes(Mutex<Option<(Instant, Vec<PullConsumer>)>>);

impl NatsStore {
    /// Makes a lane, if it is not there. A cap takes the place of the one that it has.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io).
    pub(crate) async fn open_lane(&self, lane: &str, cap: Option<NonZeroU32>) -> Result<PullConsumer> {
        let name = consumer(lane);
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: format!("toolcrib.q.{}.>", token(lane)),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.lease_time(),
            max_deliver: -1,
            max_ack_pending: cap.map_or(UNCAPPED, |cap| cap.get().into()),
            ..pull::Config::default()
        };
        let queue = &self.0.queue;
        let opened = match cap {
            Some(_) => queue.create_consumer(config).await.map_err(|error| error.to_string()),
            None => queue.get_or_create_consumer(&name, config).await.map_err(|error| error.to_string()),
        };
        opened.map_err(|error| self.failed(&format!("cannot make the lane `{lane}` of"), &error))
    }

    /// The lanes of this worker, the first one first: those that were named, or all, with the default one first.
    pub(super) async fn lanes(&self) -> Result<Vec<PullConsumer>> {
        let mut known = self.0.lanes.0.lock().await;
        if let Some((_, lanes)) = known.as_ref().filter(|(since, _)| since.elapsed() < FRESH) {
            return Ok(lanes.clone());
        }
        let mut names = self.0.setup.lanes.clone();
        if names.is_empty() {
            let all: Vec<String> = self
                .0
                .queue
                .consumer_names()
                .try_collect()
                .await
                .map_err(|error| self.failed("cannot read the lanes of", &error))?;
            names = all.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(name_of).collect();
            names.sort_by_key(|name| (name != DEFAULT_LANE, name.clone()));
        }
        let mut lanes = Vec::with_capacity(names.len());
        for name in &names {
            lanes.push(self.open_lane(name, None).await?);
        }
        *known = Some((Instant::now(), lanes.clone()));
        Ok(lanes)
    }

    /// The subjects of the queue that this worker takes from.
    pub(super) fn lane_subjects(&self) -> Vec<String> {
        match &self.0.setup.lanes[..] {
            [] => vec!["toolcrib.q.>".to_owned()],
            lanes => lanes.iter().map(|lane| format!("toolcrib.q.{}.>", token(lane))).collect(),
        }
    }
}

const PREFIX: &str = "lane-";

fn consumer(lane: &str) -> String {
    format!("{PREFIX}{}", token(lane))
}

/// The journal of an entry of the queue, in any lane.
pub(super) fn key_of(subject: &str) -> Option<&str> {
    subject.strip_prefix("toolcrib.q.")?.split_once('.').map(|(_, key)| key)
}
