//! Fake tool servers and fake model servers, for tests and measurements.
//!
//! Nothing here uses toolcrib, so that no mistake is shared with the code under test.

pub mod models;
pub mod oddities;
pub mod servers;
