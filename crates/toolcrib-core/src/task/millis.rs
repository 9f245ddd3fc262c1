//! Reads and writes durations as milliseconds with three decimals.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// A time that was written as milliseconds. What is no time counts as none.
fn from_millis(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis / 1e3).unwrap_or_default()
}

/// Functions for `#[serde(with)]` on a `Duration`.
pub mod plain {
    use super::{Deserialize, Deserializer, Duration, Serializer, from_millis};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(crate::task::millis(*time))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        f64::deserialize(deserializer).map(from_millis)
    }
}

/// Functions for `#[serde(with)]` on an `Option<Duration>`.
pub mod optional {
    use serde::Serialize;

    use super::{Deserialize, Deserializer, Duration, Serializer, from_millis};

    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(crate::task::millis).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.map(from_millis))
    }
}
