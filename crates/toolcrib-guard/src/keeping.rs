//! How far the teardown of servers reaches on this system, and why not further.

use std::{path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::Guard;

/// What makes sure that nothing of a server outlives its manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeping {
    /// A guard process for each server (Linux). Holds however the manager ends, SIGKILL included, and for
    /// processes that left the server's group (`setsid`, double fork). Servers get no descriptor but their
    /// three pipes, signals with their default actions, and the rights that this process had when its first one was started.
    Guard {
        /// What is started as guard.
        executable: PathBuf,
    },
    /// The server's process group. Holds for every end of the manager that runs its destructors (return,
    /// error, panic), not for SIGKILL or `abort`, and not for processes that left the group. Servers inherit the
    /// descriptors that are not closed on exec, and the signals that are ignored or blocked (`reset_inherited`).
    Group {
        /// Why there is no guard.
        because: Arc<str>,
    },
}

impl Keeping {
    /// What `wanted` comes to in this process.
    pub fn new(wanted: &Guard) -> Self {
        let group = |because: &str| Self::Group { because: because.into() };
        match wanted {
            Guard::Off => group("`guard = \"off\"`"),
            _ if cfg!(not(target_os = "linux")) => group("guards need Linux"),
            #[cfg(target_os = "linux")]
            Guard::Program(executable) => match super::guard::refused(executable) {
                None => Self::Guard { executable: executable.clone() },
                Some(because) => group(&because),
            },
            #[cfg(not(target_os = "linux"))]
            Guard::Program(_) => group("guards need Linux"),
            Guard::Auto => Self::own().unwrap_or_else(|because| group(&because)),
        }
    }

    #[cfg(target_os = "linux")]
    fn own() -> Result<Self, String> {
        match super::guard::missing() {
            None => Ok(Self::Guard { executable: super::guard::OWN_EXECUTABLE.into() }),
            Some(because) => Err(because),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn own() -> Result<Self, String> {
        Err("guards need Linux".to_owned())
    }
}
