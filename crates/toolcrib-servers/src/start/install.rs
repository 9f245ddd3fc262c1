//! Serialises the first start of a package, which may install it.
//!
//! Package runners download what they do not have, and several at once in one cache are slow at best; that of
//! npm is left broken by it. So of all servers of one package, the first one starts alone until it has said its
//! first byte, and by then the package is there; the others wait, and when the first one fails, the next one
//! tries. A package whose last start succeeded, as the history tells, is not waited for.
//!
//! Servers of other toolcrib processes are not waited for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedMutexGuard, watch};

use crate::{session::SpawnedProcess, tool::ServerName};

/// How often it is looked whether a package has been installed.
const PAUSE: Duration = Duration::from_millis(10);

/// The packages of one start of many servers.
#[derive(Default)]
pub(super) struct Installs(Mutex<HashMap<String, Arc<Package>>>);

#[derive(Default)]
struct Package {
    // Tokio's mutex: held for a whole install, which awaits. Its value: the package is there.
    installed: Arc<tokio::sync::Mutex<bool>>,
    installer: Mutex<Option<ServerName>>,
}

/// The right to install a package. Once this is dropped, the next server has it, or goes on without if this one
/// has said something.
pub(super) struct Install {
    installed: OwnedMutexGuard<bool>,
    server: Option<watch::Receiver<Option<SpawnedProcess>>>,
}

impl Installs {
    /// Waits until no other server installs the package with this key. `None`: another one has installed it meanwhile.
    /// `waits` gets the name of the server that it waits for.
    pub(super) async fn claim(
        &self,
        key: &str,
        server: &ServerName,
        waits: impl FnOnce(ServerName),
    ) -> Option<Install> {
        let package =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.to_owned()).or_default().clone();
        let guard = match package.installed.clone().try_lock_owned() {
            Ok(guard) => guard,
            Err(_) => {
                let installer = package.installer.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(installer) = installer {
                    waits(installer);
                }
                package.installed.clone().lock_owned().await
            }
        };
        if *guard {
            return None;
        }
        *package.installer.lock().unwrap_or_else(PoisonError::into_inner) = Some(server.clone());
        Some(Install { installed: guard, server: None })
    }
}

impl Install {
    /// Ends the right as soon as the server has said something.
    pub(super) async fn until_first_byte(mut self, server: watch::Receiver<Option<SpawnedProcess>>) {
        self.server = Some(server);
        while !self.heard() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn heard(&self) -> bool {
        let heard = |booting: &SpawnedProcess| booting.first_byte.get().is_some();
        self.server.as_ref().is_some_and(|server| server.borrow().as_ref().is_some_and(heard))
    }
}

impl Drop for Install {
    fn drop(&mut self) {
        *self.installed = self.heard();
    }
}
