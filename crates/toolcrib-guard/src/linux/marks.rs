//! Finds and ends processes by the mark in their environment, or by the short one in a limit.

pub(crate) mod find;
pub(crate) mod frozen;
pub(crate) mod leftovers;
pub(crate) mod limit;
