//! How a model's answers are kept, and how its requests are put together.

use std::{num::NonZeroUsize, time::Duration};

/// Answers that are given again without asking, for the very same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheConfig {
    /// Answers kept at most.
    pub size: NonZeroUsize,
    /// How long one is kept.
    pub ttl: Duration,
    /// Keep sampled answers too: those of a temperature that is not 0, without a seed. All who ask the same are then
    /// answered the same.
    pub sampled: bool,
    /// Those who ask what is being asked wait for that answer.
    pub single_flight: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        // Why these: what the users of batches of simulated agents are advised to start with.
        let size = const { NonZeroUsize::new(1000).expect("a thousand is not none") };
        Self { size, ttl: Duration::from_secs(300), sampled: false, single_flight: false }
    }
}
