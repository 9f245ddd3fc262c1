//! The status of a template, as a report tells it.

use std::time::Instant;

use toolcrib_guard::Template;

use crate::{
    forking::{TemplateState, TemplateStatus},
    template::{
        key::Key,
        pool::{Slot, Stage},
    },
};

/// The status of the template with this key at `now`.
pub(super) fn status(key: &Key, slot: &Slot<Template>, now: Instant) -> TemplateStatus {
    let mut status = TemplateStatus::new(key.to_string());
    status.forks = slot.forks;
    status.waiting = slot.waiting;
    status.ready_time = slot.memory.ready;
    match &slot.stage {
        Stage::None => {}
        Stage::Starting { since, .. } => {
            status.state = TemplateState::Starting;
            status.age = Some(now.saturating_duration_since(*since));
        }
        Stage::Ready { since, template, modules } => {
            status.state = TemplateState::Ready;
            status.age = Some(now.saturating_duration_since(*since));
            status.pid = Some(template.pid());
            status.modules = Some(*modules);
        }
        Stage::Failed { reason, .. } => {
            status.state = TemplateState::Failed;
            status.reason = Some(reason.clone());
        }
    }
    status
}
