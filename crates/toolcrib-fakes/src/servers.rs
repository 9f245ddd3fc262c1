//! Tool servers on standard streams: one as fast as possible, and others that are wrong on purpose.

pub mod baseline;
pub mod chaos;
pub mod fixture;
#[cfg(target_os = "linux")]
pub mod stubborn;
