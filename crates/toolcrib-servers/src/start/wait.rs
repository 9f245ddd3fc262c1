//! Why a server waited before its start.

use std::{fmt, num::NonZeroUsize, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{config::StartJobs, tool::ServerName};

/// The reason why a server waits before it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// A start slot: so many others are being started.
    Slot {
        /// How slots are counted.
        jobs: StartJobs,
        /// How many there are.
        slots: NonZeroUsize,
    },
    /// Another server, whose package runner installs the same package.
    Install {
        /// The package runner and the package.
        package: String,
        /// The other server.
        by: ServerName,
    },
}

/// One wait before a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Wait {
    /// The reason of the wait.
    pub reason: WaitReason,
    /// How long.
    #[serde(rename = "ms", with = "crate::task::millis::plain")]
    pub took: Duration,
}

impl fmt::Display for WaitReason {
    /// `slot: cores=2`, `slot: jobs=3`, `install of npx some-package by server-name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot { jobs: StartJobs::Cores, slots } => write!(f, "slot: cores={slots}"),
            Self::Slot { slots, .. } => write!(f, "slot: jobs={slots}"),
            Self::Install { package, by } => write!(f, "install of {package} by {by}"),
        }
    }
}

impl Serialize for WaitReason {
    /// Writes the reason as it is shown.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WaitReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for WaitReason {
    type Err = &'static str;

    /// Reads what is shown of a reason.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "not a reason to wait";
        if let Some(install) = text.strip_prefix("install of ") {
            let (package, by) = install.rsplit_once(" by ").ok_or(WRONG)?;
            let by = ServerName::new(by).map_err(|_| WRONG)?;
            return Ok(Self::Install { package: package.to_owned(), by });
        }
        let (kind, slots) =
            text.strip_prefix("slot: ").and_then(|slots| slots.split_once('=')).ok_or(WRONG)?;
        let slots: NonZeroUsize = slots.parse().map_err(|_| WRONG)?;
        let jobs = if kind == "cores" { StartJobs::Cores } else { StartJobs::AtMost(slots) };
        Ok(Self::Slot { jobs, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_reasons_are_parsed_back() {
        let slots = NonZeroUsize::new(3).unwrap();
        let by = ServerName::new("by").unwrap();
        for reason in [
            WaitReason::Slot { jobs: StartJobs::Cores, slots },
            WaitReason::Slot { jobs: StartJobs::AtMost(slots), slots },
            WaitReason::Install { package: "npx stand by me".to_owned(), by },
        ] {
            assert_eq!(reason.to_string().parse(), Ok(reason));
        }
        assert!("slot: cores=0".parse::<WaitReason>().is_err());
    }
}
