//! Looks at processes through `/proc`.

pub(crate) mod activity;
pub(crate) mod peer;
pub(crate) mod stat;
pub(crate) mod usage;
