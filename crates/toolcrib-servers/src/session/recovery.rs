//! Recovery of servers: notices a death, restarts the server once, and parks idle servers.

pub(super) mod early_end;
pub(super) mod health;
pub(super) mod park;
pub(super) mod renew;
pub(super) mod restart;
pub(super) mod slot;
pub(super) mod sync;
pub(super) mod watchdog;
