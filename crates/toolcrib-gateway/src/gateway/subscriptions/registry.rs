//! The resources that are watched, by server and by client.

use std::{collections::HashMap, sync::Arc};

use super::{Upstream, unsubscribe_later};
use crate::{
    gateway::{Held, upstream::UpstreamListener},
    session::{Era, Session},
};

#[derive(Default)]
pub(super) struct All {
    pub(super) servers: HashMap<Upstream, Watched>,
    /// Resources that each client watches, by the client's names of them.
    pub(super) clients: HashMap<u64, HashMap<String, Named>>,
}

/// Resources that a client watches by one name.
#[derive(Default)]
pub(super) struct Named {
    /// Its requests that listen to it.
    pub(super) listeners: usize,
    pub(super) at: Vec<Place>,
}

/// A server, and its own name of a resource.
pub(super) type Place = (Upstream, String);

#[derive(Default)]
pub(super) struct Watched {
    /// The numbers of the clients.
    pub(super) uris: HashMap<String, HashMap<u64, Watcher>>,
    pub(super) session: Option<Arc<Session>>,
    /// The connection at which the subscriptions were made.
    pub(super) generation: Option<u64>,
    /// The subscription at a server of the new era.
    pub(super) listening: Option<UpstreamListener>,
    /// The one before, until the server has acknowledged that one: no change is missed meanwhile.
    pub(super) before: Option<UpstreamListener>,
}

/// A client that watches a resource.
pub(super) struct Watcher {
    /// The name by which it knows the resource.
    pub(super) name: String,
    pub(super) _held: Held,
}

/// A change that the server is to hear of.
pub(super) enum Change {
    None,
    First,
    Last,
}

impl All {
    pub(super) fn named(&mut self, client: u64, name: &str) -> Option<&mut Named> {
        self.clients.get_mut(&client)?.get_mut(name)
    }

    pub(super) fn remove(&mut self, of: &Upstream, client: u64, uri: &str) -> Change {
        let Some(watched) = self.servers.get_mut(of) else { return Change::None };
        let Some(clients) = watched.uris.get_mut(uri) else { return Change::None };
        let Some(Watcher { name, .. }) = clients.remove(&client) else { return Change::None };
        let is_last = clients.is_empty();
        if is_last {
            watched.uris.remove(uri);
        }
        if watched.uris.is_empty() {
            self.servers.remove(of);
        }
        if let Some(named) = self.named(client, &name) {
            named.at.retain(|(at, known)| at != of || known != uri);
            self.tidy(client, &name);
        }
        if is_last { Change::Last } else { Change::None }
    }

    /// A client does not watch what it knows by `name` any more; servers of the old era hear so when nobody else watches them.
    pub(super) fn leave(&mut self, client: u64, name: &str, named: Named) {
        for (of, uri) in named.at {
            let Some(watched) = self.servers.get(&of) else { continue };
            // It may know the same by another name since.
            let watcher = watched.uris.get(&uri).and_then(|clients| clients.get(&client));
            if watcher.is_none_or(|watcher| watcher.name != name) {
                continue;
            }
            let session = watched.session.clone();
            if matches!(self.remove(&of, client, &uri), Change::Last)
                && let Some(session) = session.filter(|session| session.era() == Some(Era::Legacy))
            {
                unsubscribe_later(session, uri);
            }
        }
    }

    /// Removes the entry of a name that nothing stands for any more.
    pub(super) fn tidy(&mut self, client: u64, name: &str) {
        let Some(names) = self.clients.get_mut(&client) else { return };
        if names.get(name).is_some_and(|named| named.at.is_empty() && named.listeners == 0) {
            names.remove(name);
        }
        if names.is_empty() {
            self.clients.remove(&client);
        }
    }
}
