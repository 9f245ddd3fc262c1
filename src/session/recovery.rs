//! What happens when a server dies: notice it, start it again once, park it when nobody needs it.

pub(super) mod health;
pub(super) mod park;
pub(super) mod restart;
pub(super) mod slot;
pub(super) mod sync;
pub(super) mod watchdog;
