//! Results of calls: reading, truncation, files with whole results.

mod again;
pub(super) mod outputs;
pub(super) mod read;
pub(super) mod reply;
mod shorten;
pub(super) mod truncate;
pub(super) mod words;
