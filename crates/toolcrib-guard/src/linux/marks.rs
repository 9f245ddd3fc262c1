//! Finds and ends processes by the mark in their environment.

pub(crate) mod find;
pub(crate) mod frozen;
pub(crate) mod leftovers;
