//! Results of calls: truncation, files with whole results, conversions.

pub(super) mod outputs;
pub(super) mod reply;
pub(super) mod sdk_types;
mod shorten;
pub(super) mod truncate;
