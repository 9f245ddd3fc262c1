//! Prompts and resources of all servers as one: names that lead back to their server by a map.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use indexmap::IndexMap;
use rmcp::model::ErrorData;
use serde_json::{Value, json, value::RawValue};

use super::{
    bridge::to_modern,
    client::{RequestContext, lock},
    exchange::{Outgoing, refusal},
};
use crate::{
    catalog::visible_name,
    json_rpc::{self, RawObject},
    session::{ClientAnswer, Era},
    tool::ServerName,
};

/// Pages, items and bytes of one list of one server. What a server lists beyond that is left out.
const MAX_PAGES: usize = 1000;
const MAX_ITEMS: usize = 10_000;
const MAX_BYTES: usize = 4 << 20;
/// Tasks whose servers are remembered.
const MAX_TASKS: usize = 10_000;

/// Where the names lead that clients have been shown.
#[derive(Default)]
pub(super) struct MergedNames(Mutex<Names>);

#[derive(Default)]
struct Names {
    prompts: HashMap<String, (ServerName, String)>,
    resources: HashMap<String, (ServerName, String)>,
    /// The text before the first variable of a template, and its server.
    templates: Vec<(String, ServerName)>,
    tasks: IndexMap<(TaskOwner, String), ServerName>,
}

/// Who may ask for a task: who began it. `None`: everybody.
type TaskOwner = Option<Arc<str>>;

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
            let items = self.gather(kind, &meta).await;
            let result = json_rpc::raw(&json!({kind.member(): items}));
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
        let session = self.toolbox().await.awake(server.as_str()).await.map_err(|error| refusal(&error))?;
        self.exchange(Outgoing { session, method, params, meta, tool: None }, token).await
    }

    fn names(&self) -> &MergedNames {
        self.client.gateway.names()
    }

    /// Remembers which server has a task that a result begins.
    pub(super) fn note_task(&self, server: &ServerName, result: &RawValue) {
        if !result.get().contains("\"taskId\"") {
            return;
        }
        let Ok(result) = RawObject::parse(Some(result)) else { return };
        let task = RawObject::parse(result.get("task")).unwrap_or_default();
        let id = task.read::<String>("taskId").or_else(|| result.read("taskId"));
        let mut names = lock(&self.names().0);
        if let Some(id) = id {
            if names.tasks.len() >= MAX_TASKS {
                names.tasks.swap_remove_index(0);
            }
            names.tasks.insert((self.endpoint.owner.clone(), id), server.clone());
        }
    }

    fn server_of_task(&self, task: &str) -> Option<ServerName> {
        let key = (self.endpoint.owner.clone(), task.to_owned());
        lock(&self.names().0).tasks.get(&key).cloned()
    }

    /// Keeps those who are told apart from the tasks of others at `server`.
    ///
    /// # Errors
    /// The request is about a task that is not theirs.
    pub(super) fn check_task(
        &self,
        server: &ServerName,
        method: &str,
        params: &RawObject,
    ) -> Result<(), ErrorData> {
        if self.endpoint.owner.is_none() || !method.starts_with("tasks/") || method == "tasks/list" {
            return Ok(());
        }
        let task = params.read::<String>("taskId").unwrap_or_default();
        match self.server_of_task(&task).is_some_and(|known| known == *server) {
            true => Ok(()),
            false => Err(no_task(&task)),
        }
    }

    /// A list of tasks without those of others.
    pub(super) fn own_tasks(&self, server: &ServerName, listed: &RawValue) -> ClientAnswer {
        let mut listed = RawObject::parse(Some(listed))
            .map_err(|_| ErrorData::internal_error("the server gave no list of tasks", None))?;
        let mut tasks: Vec<RawObject> = listed.read("tasks").unwrap_or_default();
        tasks.retain(|task| {
            let id = task.read::<String>("taskId").unwrap_or_default();
            self.server_of_task(&id).is_some_and(|known| known == *server)
        });
        listed.write("tasks", &tasks);
        Ok(listed.into_raw())
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
        let mut found = self.names().find(kind, &name);
        if found.is_none() {
            // It was not listed yet, or is new.
            let kinds = Kind::ALL.into_iter().filter(|other| other.capability() == kind.capability());
            for kind in kinds {
                self.gather(kind, meta).await;
            }
            found = self.names().find(kind, &name);
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

    /// The items of all servers that are there, with the names that lead back to them.
    async fn gather(&self, kind: Kind, meta: &RawObject) -> Vec<RawObject> {
        let toolbox = self.toolbox().await;
        let sessions: Vec<_> = toolbox
            .names()
            .into_iter()
            .filter(|server| self.client.endpoint.has(server))
            .filter_map(|server| toolbox.current_session(server.as_str()))
            .filter(|session| {
                let capabilities = session.hello().and_then(|hello| hello.read::<Value>("capabilities"));
                capabilities.is_some_and(|known| known.get(kind.capability()).is_some_and(Value::is_object))
            })
            .collect();
        let lists = join_all(sessions.iter().map(|session| async {
            let mut listed: Vec<RawObject> = Vec::new();
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
                listed.extend(page.read::<Vec<RawObject>>(kind.member()).unwrap_or_default());
                cursor = page.read::<String>("nextCursor").filter(|next| !next.is_empty());
                let over = bytes > MAX_BYTES || listed.len() > MAX_ITEMS;
                if over || cursor.as_ref().is_none_or(|next| !cursors.insert(next.clone())) {
                    break;
                }
            }
            listed.truncate(MAX_ITEMS);
            (session.name().clone(), listed)
        }))
        .await;
        self.names().learn(kind, lists)
    }
}

impl MergedNames {
    /// Takes in what the servers list; gives the items under the names that are shown.
    fn learn(&self, kind: Kind, lists: Vec<(ServerName, Vec<RawObject>)>) -> Vec<RawObject> {
        let mut shown = Vec::new();
        let mut names = lock(&self.0);
        let mut seen: HashMap<String, (ServerName, String)> = HashMap::new();
        let mut templates = Vec::new();
        for (server, items) in lists {
            for mut item in items {
                let Some(own) = item.read::<String>(kind.key()) else { continue };
                match kind {
                    Kind::Templates => {
                        let beginning = own.split('{').next().unwrap_or_default().to_owned();
                        templates.push((beginning, server.clone()));
                    }
                    Kind::Prompts | Kind::Resources => {
                        let visible = match kind {
                            Kind::Prompts => visible_name(&server, &own, |name| seen.contains_key(name)),
                            _ if seen.contains_key(&own) => format!("toolcrib://{server}/{}", encoded(&own)),
                            _ => own.clone(),
                        };
                        if visible != own {
                            item.write(kind.key(), &visible);
                        }
                        seen.insert(visible, (server.clone(), own));
                    }
                }
                shown.push(item);
            }
        }
        match kind {
            Kind::Prompts => names.prompts = seen,
            Kind::Resources => names.resources = seen,
            Kind::Templates => names.templates = templates,
        }
        shown
    }

    fn find(&self, kind: Kind, name: &str) -> Option<(ServerName, String)> {
        let names = lock(&self.0);
        if kind == Kind::Prompts {
            return names.prompts.get(name).cloned();
        }
        let by_template = || {
            let fitting = names.templates.iter().filter(|(beginning, _)| name.starts_with(beginning));
            let best = fitting.max_by_key(|(beginning, _)| beginning.len())?;
            Some((best.1.clone(), name.to_owned()))
        };
        names.resources.get(name).cloned().or_else(by_template)
    }
}

fn no_task(task: &str) -> ErrorData {
    ErrorData::invalid_params(format!("there is no task `{task}`"), None)
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
            let shown = names.learn(kind, vec![(one.clone(), first), (two.clone(), second)]);
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
}
