//! Stops tasks whose run was cancelled.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::held::HeldTasks;
use crate::nats::NatsStore;

/// How often the flags of the runs under way are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Cancels the tasks under way that are to be stopped, again and again.
pub(super) async fn watch(store: &NatsStore, held: &HeldTasks) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for run in held.by_run().into_keys() {
            // What cannot be read now is read later.
            let Ok(Some(flag)) = store.cancel_flag(&run).await else { continue };
            for task in held.all() {
                if task.run == run && flag.covers(&task.id) {
                    task.cancel();
                }
            }
        }
    }
}
