//! Tasks that servers have begun for clients: where each one is, whose it is, and whether the server may still have something to
//! say of it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::model::ErrorData;
use serde_json::value::RawValue;

use super::{
    client::{RequestContext, lock},
    subscriptions::Upstream,
};
use crate::{json_rpc::RawObject, session::ClientAnswer, tool::ServerName};

/// Tasks that are remembered. The oldest one of the owner with the most makes room.
const MAX_TASKS: usize = 10_000;
/// Bytes of the name of a task that is remembered.
const MAX_ID: usize = 512;
/// Time for which a task counts as under way if nothing is heard of its end.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Member of `_meta` by which a message names its task.
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Who may ask for a task: who began it. `None`: everybody.
pub(super) type TaskOwner = Option<Arc<str>>;

/// The tasks of all clients.
#[derive(Default)]
pub(super) struct Tasks(Mutex<KnownTasks>);

#[derive(Default)]
struct KnownTasks {
    last: u64,
    count: usize,
    /// Tasks by their ids. Two servers can give the same one.
    by_id: HashMap<String, Vec<Task>>,
}

struct Task {
    place: Upstream,
    owner: TaskOwner,
    /// The number of the client that began it.
    client: u64,
    /// Grows with each new one.
    number: u64,
    /// Time until which it counts as under way. `None`: it has ended.
    until: Option<Instant>,
}

/// The state of a task, as a message of its server tells it.
pub(super) struct TaskNews {
    id: String,
    is_over: bool,
    /// How long the server keeps it.
    ttl: Duration,
}

impl TaskNews {
    fn of(task: &RawObject) -> Option<Self> {
        let id = task.read::<String>("taskId").filter(|id| id.len() <= MAX_ID)?;
        let status = task.read::<String>("status").unwrap_or_default();
        let is_over = matches!(&*status, "completed" | "failed" | "cancelled");
        let ttl = task.read::<u64>("ttl").or_else(|| task.read("ttlMs")).map(Duration::from_millis);
        Some(Self { id, is_over, ttl: ttl.unwrap_or(LONGEST).min(LONGEST) })
    }

    /// The result of a task was given.
    pub(super) fn over(id: String) -> Self {
        Self { id, is_over: true, ttl: LONGEST }
    }

    /// Reads the state from a result that is about one task, or begins one.
    pub(super) fn of_result(result: &RawValue) -> Option<Self> {
        let result = RawObject::parse(Some(result)).ok()?;
        let nested = RawObject::parse(result.get("task")).unwrap_or_default();
        Self::of(&nested).or_else(|| Self::of(&result))
    }

    /// Reads the state from a notification about one task.
    pub(super) fn of_notification(method: &str, params: Option<&RawValue>) -> Option<Self> {
        if !method.starts_with("notifications/tasks") {
            return None;
        }
        Self::of(&RawObject::parse(params).ok()?)
    }
}

/// The task that a message of a server names, if it does.
pub(super) fn named_task(method: &str, params: Option<&RawValue>) -> Option<String> {
    let about_tasks = method.starts_with("notifications/tasks") || method.starts_with("tasks/");
    // A look at the text spares most messages the parsing.
    if !about_tasks && !params?.get().contains(RELATED) {
        return None;
    }
    let params = RawObject::parse(params).ok()?;
    let meta = RawObject::parse(params.get("_meta")).unwrap_or_default();
    let related = RawObject::parse(meta.get(RELATED)).unwrap_or_default();
    related.read("taskId").or_else(|| if about_tasks { params.read("taskId") } else { None })
}

impl Tasks {
    /// A server has begun a task for a client.
    pub(super) fn begun(&self, place: Upstream, (owner, client): (TaskOwner, u64), news: TaskNews) {
        let until = (!news.is_over).then(|| Instant::now() + news.ttl);
        let mut known = lock(&self.0);
        known.last += 1;
        let task = Task { place, owner, client, number: known.last, until };
        let same_id = known.by_id.entry(news.id).or_default();
        // A server that was restarted may give a name again.
        match same_id.iter_mut().find(|one| one.place == task.place) {
            Some(before) => *before = task,
            None => {
                same_id.push(task);
                known.count += 1;
            }
        }
        if known.count > MAX_TASKS {
            known.make_room();
        }
    }

    /// A result or a notification says how a task is.
    pub(super) fn heard(&self, place: &Upstream, news: &TaskNews) {
        let mut known = lock(&self.0);
        let task = known.by_id.get_mut(&news.id).into_iter().flatten().find(|task| task.place == *place);
        if let Some(task) = task
            && news.is_over
        {
            task.until = None;
        }
    }

    /// Who began a task of a server.
    pub(super) fn beginner(&self, place: &Upstream, id: &str) -> Option<(TaskOwner, u64)> {
        let known = lock(&self.0);
        let task = known.by_id.get(id)?.iter().find(|task| task.place == *place)?;
        Some((task.owner.clone(), task.client))
    }

    /// The server of a task, for a client of this owner.
    fn server_of(&self, owner: &TaskOwner, client: u64, id: &str) -> Option<ServerName> {
        let known = lock(&self.0);
        let within_reach =
            |task: &&Task| task.owner == *owner && task.place.1.is_none_or(|own_of| own_of == client);
        let newest = known.by_id.get(id)?.iter().filter(within_reach).max_by_key(|task| task.number)?;
        Some(newest.place.0.clone())
    }

    /// Whether somebody else than `owner` has a task under way at a server.
    pub(super) fn is_at_work_for_others(&self, place: &Upstream, owner: &TaskOwner) -> bool {
        let now = Instant::now();
        let other = |task: &Task| {
            task.place == *place && task.owner != *owner && task.until.is_some_and(|until| now < until)
        };
        lock(&self.0).by_id.values().flatten().any(other)
    }

    /// A client is gone, and its own servers with it.
    pub(super) fn forget(&self, client: u64) {
        lock(&self.0).retain(|task| task.place.1 != Some(client));
    }
}

impl KnownTasks {
    fn retain(&mut self, mut wanted: impl FnMut(&Task) -> bool) {
        self.by_id.retain(|_, same_id| {
            same_id.retain(&mut wanted);
            !same_id.is_empty()
        });
        self.count = self.by_id.values().map(Vec::len).sum();
    }

    /// Forgets the oldest task of the owner with the most of them.
    fn make_room(&mut self) {
        let mut of_owners: HashMap<&TaskOwner, (usize, u64)> = HashMap::new();
        for task in self.by_id.values().flatten() {
            let (count, oldest) = of_owners.entry(&task.owner).or_insert((0, task.number));
            *count += 1;
            *oldest = task.number.min(*oldest);
        }
        if let Some((_, oldest)) = of_owners.into_values().max() {
            self.retain(|task| task.number != oldest);
        }
    }
}

impl RequestContext<'_> {
    pub(super) fn server_of_task(&self, task: &str) -> Option<ServerName> {
        self.client.gateway.router().tasks.server_of(&self.endpoint.owner, self.client.number, task)
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
        match self.has_task(server, &task) {
            true => Ok(()),
            false => Err(no_task(&task)),
        }
    }

    fn has_task(&self, server: &ServerName, task: &str) -> bool {
        let router = self.client.gateway.router();
        [None, Some(self.client.number)].into_iter().any(|own| {
            let beginner = router.tasks.beginner(&(server.clone(), own), task);
            beginner.is_some_and(|(owner, _)| owner == self.endpoint.owner)
        })
    }

    /// A list of tasks without those of others.
    pub(super) fn own_tasks(&self, server: &ServerName, listed: &RawValue) -> ClientAnswer {
        let mut listed = RawObject::parse(Some(listed))
            .map_err(|_| ErrorData::internal_error("the server gave no list of tasks", None))?;
        let mut tasks: Vec<RawObject> = listed.read("tasks").unwrap_or_default();
        tasks.retain(|task| {
            let id = task.read::<String>("taskId").unwrap_or_default();
            self.has_task(server, &id)
        });
        listed.write("tasks", &tasks);
        Ok(listed.into_raw())
    }
}

pub(super) fn no_task(task: &str) -> ErrorData {
    ErrorData::invalid_params(format!("there is no task `{task}`"), None)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json_rpc;

    fn news(value: &Value) -> TaskNews {
        TaskNews::of_result(&json_rpc::raw(value)).unwrap()
    }

    fn begun(tasks: &Tasks, owner: &str, id: &str) {
        let place = (ServerName::new("one").unwrap(), None);
        let news = news(&json!({"task": {"taskId": id, "status": "working"}}));
        tasks.begun(place, (Some(owner.into()), 1), news);
    }

    fn is_known(tasks: &Tasks, owner: &str, id: &str) -> bool {
        tasks.server_of(&Some(owner.into()), 1, id).is_some()
    }

    #[test]
    fn the_owner_with_the_most_tasks_makes_room() {
        let tasks = Tasks::default();
        begun(&tasks, "alice", "hers");
        for number in 0..MAX_TASKS + 5 {
            begun(&tasks, "bob", &number.to_string());
            assert!(is_known(&tasks, "bob", &number.to_string()), "the newest stays");
        }
        assert!(is_known(&tasks, "alice", "hers"));
        assert!(!is_known(&tasks, "bob", "5") && is_known(&tasks, "bob", "6"), "the oldest go");
        assert_eq!(lock(&tasks.0).count, MAX_TASKS);
        begun(&tasks, "bob", "6");
        assert!(is_known(&tasks, "bob", "7"), "one that is known takes no room");
    }

    #[test]
    fn a_task_that_has_ended_keeps_nobody_waiting() {
        let tasks = Tasks::default();
        begun(&tasks, "alice", "hers");
        let place = (ServerName::new("one").unwrap(), None);
        let waits = |who: &str| tasks.is_at_work_for_others(&place, &Some(who.into()));
        assert!(waits("bob") && !waits("alice"));
        tasks.heard(&place, &news(&json!({"taskId": "hers", "status": "working"})));
        assert!(waits("bob"));
        tasks.heard(&place, &news(&json!({"taskId": "hers", "status": "completed"})));
        assert!(!waits("bob") && is_known(&tasks, "alice", "hers"));
    }

    #[test]
    fn messages_name_their_task() {
        let named = |method, params: Value| named_task(method, Some(&json_rpc::raw(&params)));
        let related = json!({"_meta": {RELATED: {"taskId": "a"}}, "taskId": "b"});
        assert_eq!(named("elicitation/create", related.clone()).as_deref(), Some("a"));
        assert_eq!(named("notifications/tasks/status", related).as_deref(), Some("a"));
        assert_eq!(named("notifications/tasks/status", json!({"taskId": "b"})).as_deref(), Some("b"));
        assert_eq!(named("elicitation/create", json!({"taskId": "b"})), None);
    }
}
