//! The managers of this process, for its metrics.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::toolbox::{Toolbox, ToolboxState};

static TOOLBOXES: Mutex<Vec<Weak<ToolboxState>>> = Mutex::new(Vec::new());

/// Adds that of a manager. It is forgotten once nobody has it any more.
pub(super) fn add(toolbox: &Toolbox) {
    let mut toolboxes = TOOLBOXES.lock().unwrap_or_else(PoisonError::into_inner);
    toolboxes.retain(|toolbox| toolbox.strong_count() > 0);
    toolboxes.push(Arc::downgrade(&toolbox.shared));
}

/// Those of all managers.
pub(crate) fn toolboxes() -> Vec<Toolbox> {
    let toolboxes = TOOLBOXES.lock().unwrap_or_else(PoisonError::into_inner);
    let held = toolboxes.iter().filter_map(Weak::upgrade);
    held.map(|shared| Toolbox { shared, observed: None }).collect()
}
