//! Reads and writes points in time as text in UTC, to the second.

use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Functions for `#[serde(with)]` on an `Option<SystemTime>`.
pub fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| humantime::format_rfc3339_seconds(time).to_string()).serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| humantime::parse_rfc3339(&text).map_err(D::Error::custom)).transpose()
}

/// Functions for `#[serde(with)]` on a `SystemTime`.
pub mod plain {
    use super::{Deserializer, Error, Serializer, SystemTime};

    pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize(&Some(*time), serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        super::deserialize(deserializer)?.ok_or_else(|| D::Error::custom("no time"))
    }
}
