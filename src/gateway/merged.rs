//! Prompts and resources of all servers as one: names that lead back to their server by a map.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use rmcp::model::ErrorData;
use serde_json::{Value, json, value::RawValue};

use super::{
    Budget, BudgetFull, Endpoint, Held,
    bridge::to_modern,
    client::{RequestContext, lock},
    exchange::Outgoing,
    listed::listed_item,
    methods::list_of,
    results::is_uri,
    shapes::{self, Member},
    tasks::no_task,
};
use crate::{
    catalog::visible_name,
    config::Scope,
    json_rpc::RawObject,
    session::{ClientAnswer, Era, Session},
    tool::ServerName,
};

/// Pages, items and bytes of one list of one server. What a server lists beyond that is left out.
const MAX_PAGES: usize = 1000;
const MAX_ITEMS: usize = 10_000;
const MAX_BYTES: usize = 4 << 20;
/// Names of one client that are remembered though they are in no list any more.
const MAX_NAMES: usize = 50_000;
/// Bytes that a name takes besides its text.
const OF_NAME: usize = 160;
/// Begins the name of a resource whose own one leads to another server.
const PREFIX: &str = "toolcrib://";

/// Where the names lead that a client has been shown. A name leads to the same server for as long as that is configured, whatever is
/// listed meanwhile.
#[derive(Default)]
pub(super) struct MergedNames(Mutex<Names>);

#[derive(Default)]
struct Names {
    prompts: HashMap<String, (ServerName, String)>,
    resources: HashMap<String, (ServerName, String)>,
    /// The text before the first variable of a template, and its server; the first that was known comes first.
    templates: Vec<(String, ServerName)>,
    /// What they take.
    held: Option<Held>,
}

/// A kind of list, and what its items are known by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Prompts, Self::Resources, Self::Templates];

    fn method(self) -> &'static str {
        match self {
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    fn member(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// What an item is called, and its shape.
    fn shape(self) -> (&'static str, &'static [Member]) {
        match self {
            Self::Prompts => ("prompt", shapes::PROMPT),
            Self::Resources => ("resource", shapes::RESOURCE),
            Self::Templates => ("resource template", shapes::TEMPLATE),
        }
    }

    fn capability(self) -> &'static str {
        if self == Self::Prompts { "prompts" } else { "resources" }
    }
}

impl RequestContext<'_> {
    /// Answers a request at the endpoint of all servers that is not about tools.
    pub(super) async fn of_all(
        &self,
        method: String,
        mut params: RawObject,
        meta: RawObject,
        token: Option<Box<RawValue>>,
    ) -> ClientAnswer {
        if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.method() == method) {
            let items = self.gather(kind, &meta).await?;
            let result = list_of(kind.member(), &items);
            return Ok(if self.speaker.era == Era::Modern { to_modern(&result, &method) } else { result });
        }
        let server = match &*method {
            "prompts/get" => self.lead(&mut params, Kind::Prompts, "name", &meta).await?,
            "resources/read" => self.lead(&mut params, Kind::Resources, "uri", &meta).await?,
            "completion/complete" => {
                let mut of = RawObject::parse(params.get("ref")).unwrap_or_default();
                let kind = of.read::<String>("type").unwrap_or_default();
                let server = match &*kind {
                    "ref/prompt" => self.lead(&mut of, Kind::Prompts, "name", &meta).await?,
                    "ref/resource" => self.lead(&mut of, Kind::Resources, "uri", &meta).await?,
                    _ => {
                        return Err(ErrorData::invalid_params(
                            "`ref` is neither a prompt nor a resource",
                            None,
                        ));
                    }
                };
                params.set("ref", of.into_raw());
                server
            }
            _ if method.starts_with("tasks/") => {
                let task = params.read::<String>("taskId").unwrap_or_default();
                self.server_of_task(&task).ok_or_else(|| no_task(&task))?
            }
            _ => return Err(Self::no_such_method(&method)),
        };
        let session =
            self.toolbox().await?.awake(server.as_str()).await.map_err(|error| self.refusal(&error))?;
        self.exchange(Outgoing { session, method, params, meta, tool: None }, token).await
    }

    /// The server that a name leads to. Its own name for it takes the place of the one in `params`.
    pub(super) async fn server_of_resource(
        &self,
        uri: &mut String,
        meta: &RawObject,
    ) -> Result<ServerName, ErrorData> {
        let mut params = RawObject::default();
        params.write("uri", uri);
        let server = self.lead(&mut params, Kind::Resources, "uri", meta).await?;
        *uri = params.read("uri").unwrap_or_default();
        Ok(server)
    }

    async fn lead(
        &self,
        params: &mut RawObject,
        kind: Kind,
        member: &str,
        meta: &RawObject,
    ) -> Result<ServerName, ErrorData> {
        let Some(name) = params.read::<String>(member) else {
            return Err(ErrorData::invalid_params(format!("`{member}` is missing"), None));
        };
        let mut found = self.client.names.find(kind, &name);
        if found.is_none() {
            // It was not listed yet, or is new.
            let kinds = Kind::ALL.into_iter().filter(|other| other.capability() == kind.capability());
            for kind in kinds {
                self.gather(kind, meta).await?;
            }
            found = self.client.names.find(kind, &name);
        }
        if found.is_none() && kind != Kind::Prompts {
            // Another client was shown it, perhaps the same one before it connected again.
            let servers = self.toolbox().await?.names();
            found = prefixed(&name).and_then(|(server, own)| {
                let server = servers.into_iter().find(|known| known.as_str() == server)?;
                Some((server, decoded(own)?))
            });
        }
        let seen = |(server, _): &(ServerName, String)| self.client.endpoint.has(server);
        let Some((server, own)) = found.filter(seen) else {
            let (what, code) = match kind {
                Kind::Prompts => ("prompt", -32602),
                _ => ("resource", if self.speaker.era == Era::Modern { -32602 } else { -32002 }),
            };
            let why = format!("no server has a {what} `{name}`");
            return Err(ErrorData::new(rmcp::model::ErrorCode(code), why, Some(json!({member: name}))));
        };
        if own != name {
            params.write(member, &own);
        }
        Ok(server)
    }

    /// The items of all servers that are there, with the names that lead back to them. Own servers of the client that are being
    /// started are waited for.
    async fn gather(&self, kind: Kind, meta: &RawObject) -> Result<Vec<RawObject>, ErrorData> {
        let toolbox = self.toolbox().await?;
        let names = toolbox.names();
        let seen = names.iter().filter(|server| self.client.endpoint.has(server));
        let sessions: Vec<_> = seen.filter_map(|server| toolbox.current_session(server.as_str())).collect();
        join_all(sessions.iter().filter(|session| is_coming(session)).map(|session| async {
            if let Err(error) = session.start_parked().await {
                tracing::debug!(server = %session.name(), %error, "what it has is not listed");
            }
        }))
        .await;
        let lists = |session: &&Arc<Session>| {
            let capabilities = session.hello().and_then(|hello| hello.read::<Value>("capabilities"));
            // Some write `true` or an empty list for the object.
            let declares = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
            capabilities.is_some_and(|known| known.get(kind.capability()).is_some_and(declares))
        };
        let lists = join_all(sessions.iter().filter(lists).map(|session| async {
            let (what, members) = kind.shape();
            let (mut listed, mut faults) = (Vec::new(), Vec::new());
            let (mut bytes, mut cursors) = (0, HashSet::new());
            let mut cursor: Option<String> = None;
            for _ in 0..MAX_PAGES {
                let mut params = RawObject::default();
                if let Some(cursor) = &cursor {
                    params.write("cursor", cursor);
                }
                let method = kind.method().to_owned();
                let outgoing =
                    Outgoing { session: session.clone(), method, params, meta: meta.clone(), tool: None };
                let page = match self.exchange(outgoing, None).await {
                    Ok(page) => page,
                    Err(error) => {
                        tracing::warn!(server = %session.name(), error = %error.message, "{} failed", kind.method());
                        break;
                    }
                };
                bytes += page.get().len();
                let page = RawObject::parse(Some(&page)).unwrap_or_default();
                for item in page.read::<Vec<Box<RawValue>>>(kind.member()).unwrap_or_default() {
                    let (item, lines) = listed_item(&item, (what, kind.key()), listed.len(), members);
                    listed.extend(item);
                    faults.extend(lines);
                }
                cursor = page.read::<String>("nextCursor").filter(|next| !next.is_empty());
                let over = bytes > MAX_BYTES || listed.len() > MAX_ITEMS;
                if over || cursor.as_ref().is_none_or(|next| !cursors.insert(next.clone())) {
                    break;
                }
            }
            listed.truncate(MAX_ITEMS);
            self.client.gateway.faults().found(session.name(), kind.method(), &faults);
            (session.name().clone(), listed)
        }))
        .await;
        let Endpoint { max_name, budget, .. } = &self.client.endpoint;
        let shown = self.client.names.learn(kind, lists, &names, *max_name);
        self.client.names.count(budget)?;
        Ok(shown)
    }
}

/// Whether a client's own server is being started for it, or started again.
fn is_coming(session: &Session) -> bool {
    session.scope() != Scope::Shared && session.is_eager() && session.generation().is_none()
}

impl MergedNames {
    /// Takes in what servers list; gives the items under the names that are shown. `servers` are all that are configured. Names
    /// of prompts have at most `most` characters.
    fn learn(
        &self,
        kind: Kind,
        lists: Vec<(ServerName, Vec<RawObject>)>,
        servers: &[ServerName],
        most: usize,
    ) -> Vec<RawObject> {
        let mut names = lock(&self.0);
        names.retain(|server, _| servers.contains(server));
        let mut shown = Vec::new();
        for (server, items) in lists {
            for mut item in items {
                let Some(own) = item.read::<String>(kind.key()) else { continue };
                let visible = match kind {
                    Kind::Templates => {
                        names.add_template(&own, &server);
                        own.clone()
                    }
                    Kind::Prompts => add(&mut names.prompts, &server, &own, |names| {
                        visible_name(&server, &own, most, |name| !leads_to(names, name, &server, &own))
                    }),
                    Kind::Resources => add(&mut names.resources, &server, &own, |names| {
                        let is_other =
                            |name: &str| servers.iter().any(|one| *one != server && one.as_str() == name);
                        // Some clients refuse a list with a name that is no URI.
                        let is_free = is_uri(&own)
                            && leads_to(names, &own, &server, &own)
                            && prefixed(&own).is_none_or(|(name, _)| !is_other(name));
                        if is_free { own.clone() } else { format!("{PREFIX}{server}/{}", encoded(&own)) }
                    }),
                };
                if visible != own {
                    item.write(kind.key(), &visible);
                }
                shown.push(item);
            }
        }
        names.bound(kind, &shown);
        shown
    }

    /// Counts what is remembered as part of a budget.
    ///
    /// # Errors
    /// There is no room for it: it is forgotten, and known again from the next list.
    fn count(&self, budget: &Arc<Budget>) -> Result<(), BudgetFull> {
        let mut names = lock(&self.0);
        let leads =
            names.prompts.iter().chain(&names.resources).map(|(name, (_, own))| name.len() + own.len());
        let templates = names.templates.iter().map(|(beginning, _)| beginning.len());
        let bytes: usize = leads.chain(templates).map(|text| text + OF_NAME).sum();
        let counted = names.held.get_or_insert_with(|| budget.nothing()).set(bytes);
        if counted.is_err() {
            *names = Names::default();
        }
        counted
    }

    fn find(&self, kind: Kind, name: &str) -> Option<(ServerName, String)> {
        let names = lock(&self.0);
        if kind == Kind::Prompts {
            return names.prompts.get(name).cloned();
        }
        let by_template = || {
            let fitting = names.templates.iter().filter(|(beginning, _)| name.starts_with(beginning));
            // The first one of the longest.
            let best = fitting.rev().max_by_key(|(beginning, _)| beginning.len())?;
            Some((best.1.clone(), name.to_owned()))
        };
        names.resources.get(name).cloned().or_else(by_template)
    }
}

impl Names {
    fn retain(&mut self, mut wanted: impl FnMut(&ServerName, &String) -> bool) {
        self.prompts.retain(|name, (server, _)| wanted(server, name));
        self.resources.retain(|name, (server, _)| wanted(server, name));
        self.templates.retain(|(beginning, server)| wanted(server, beginning));
    }

    /// Forgets what is in no list any more, if that has become too much.
    fn bound(&mut self, kind: Kind, shown: &[RawObject]) {
        let leads = match kind {
            Kind::Prompts => &mut self.prompts,
            Kind::Resources => &mut self.resources,
            Kind::Templates => {
                let over = self.templates.len().saturating_sub(MAX_NAMES);
                return drop(self.templates.drain(..over));
            }
        };
        if leads.len() > MAX_NAMES {
            let listed: HashSet<String> = shown.iter().filter_map(|item| item.read(kind.key())).collect();
            leads.retain(|name, _| listed.contains(name));
        }
    }

    fn add_template(&mut self, template: &str, server: &ServerName) {
        let beginning = template.split('{').next().unwrap_or_default();
        if !self.templates.iter().any(|(known, of)| known == beginning && of == server) {
            self.templates.push((beginning.to_owned(), server.clone()));
        }
    }
}

/// Where names lead.
type Leads = HashMap<String, (ServerName, String)>;

/// Whether a name leads, or can lead, to what a server calls `own`.
fn leads_to(names: &Leads, name: &str, server: &ServerName, own: &str) -> bool {
    names.get(name).is_none_or(|(of, known)| of == server && known == own)
}

/// Adds a name for what a server calls `own`; gives it.
fn add(names: &mut Leads, server: &ServerName, own: &str, name: impl FnOnce(&Leads) -> String) -> String {
    let visible = name(names);
    names.entry(visible.clone()).or_insert_with(|| (server.clone(), own.to_owned()));
    visible
}

/// The server that the name of a resource says, and the server's own name as it is written there.
fn prefixed(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(PREFIX)?.split_once('/')
}

/// A text as one segment of the path of a URI.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// What [`encoded`] was made of.
fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit =
            |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit(rest.next())? << 4 | digit(rest.next())?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(kind: Kind, names: &[&str]) -> Vec<RawObject> {
        let item = |name: &&str| {
            let mut item = RawObject::default();
            item.write(kind.key(), name);
            item
        };
        names.iter().map(item).collect()
    }

    #[test]
    fn names_lead_back_to_their_servers() {
        let (one, two) = (ServerName::new("one").unwrap(), ServerName::new("two").unwrap());
        let names = MergedNames::default();
        let listed = |kind, lists: [&[&str]; 2]| {
            let [first, second] = lists.map(|list| items(kind, list));
            let lists = vec![(one.clone(), first), (two.clone(), second)];
            let shown = names.learn(kind, lists, &[one.clone(), two.clone()], 64);
            shown.iter().map(|item| item.read::<String>(kind.key()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(listed(Kind::Prompts, [&["ask"], &["ask"]]), ["one__ask", "two__ask"]);
        assert_eq!(names.find(Kind::Prompts, "two__ask"), Some((two.clone(), "ask".to_owned())));
        let uris = listed(Kind::Resources, [&["a://x", "a://y"], &["a://x"]]);
        assert_eq!(uris, ["a://x", "a://y", "toolcrib://two/a%3A%2F%2Fx"]);
        assert_eq!(names.find(Kind::Resources, &uris[2]), Some((two.clone(), "a://x".to_owned())));
        assert_eq!(names.find(Kind::Resources, "a://x"), Some((one.clone(), "a://x".to_owned())));
        listed(Kind::Templates, [&["a://{id}"], &["a://b/{id}"]]);
        assert_eq!(names.find(Kind::Resources, "a://b/7"), Some((two, "a://b/7".to_owned())));
        assert_eq!(names.find(Kind::Resources, "a://c/7"), Some((one, "a://c/7".to_owned())));
        assert_eq!(names.find(Kind::Resources, "b://c/7"), None);
    }

    #[test]
    fn a_known_name_leads_to_its_server_for_good() {
        let [one, two] = ["one", "two"].map(|name| ServerName::new(name).unwrap());
        let both = [one.clone(), two.clone()];
        let names = MergedNames::default();
        let listed = |server: &ServerName, kind, list: &[&str]| -> Vec<String> {
            let shown = names.learn(kind, vec![(server.clone(), items(kind, list))], &both, 64);
            shown.iter().map(|item| item.read(kind.key()).unwrap()).collect()
        };
        // As if the other one were parked, or its list failed.
        assert_eq!(listed(&one, Kind::Resources, &["a://x"]), ["a://x"]);
        assert_eq!(listed(&two, Kind::Resources, &["a://x"]), ["toolcrib://two/a%3A%2F%2Fx"]);
        assert_eq!(listed(&one, Kind::Resources, &["a://x"]), ["a://x"]);
        assert_eq!(names.find(Kind::Resources, "a://x"), Some((one.clone(), "a://x".to_owned())));
        for server in [&one, &two, &one] {
            listed(server, Kind::Templates, &["b://{id}"]);
        }
        assert_eq!(names.find(Kind::Resources, "b://7").unwrap().0, one);
        // No server has a name of another one.
        assert_eq!(
            listed(&one, Kind::Resources, &["toolcrib://two/b"]),
            ["toolcrib://one/toolcrib%3A%2F%2Ftwo%2Fb"]
        );
        assert_eq!(decoded(&encoded("ä/%")).as_deref(), Some("ä/%"));
        names.learn(Kind::Resources, Vec::new(), std::slice::from_ref(&two), 64);
        assert_eq!(
            listed(&two, Kind::Resources, &["a://x"]),
            ["a://x"],
            "the other one is not configured any more"
        );
    }
}
