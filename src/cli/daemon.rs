//! The daemon's process, and the commands that talk to it.

pub(super) mod args;
pub(super) mod connect;
pub(super) mod control;
pub(super) mod down;
pub(super) mod logs;
pub(super) mod process;
pub(super) mod ps;
pub(super) mod refusal;
mod relay;
#[cfg_attr(not(feature = "top"), path = "daemon/top_off.rs")]
pub(super) mod top;
