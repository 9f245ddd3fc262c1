//! Nothing of a task, or of a request that was given up, goes from one owner to another.

use super::*;

pub(super) const SERVERS: &str = r#"[servers.rich]
command = FIXTURE
args = ["rich"]

[gateway]
tokens = [
  { name = "alice", token = "alice-token-0123456789" },
  { name = "bob", token = "bob-token-0123456789" },
]
"#;

/// A session of one owner.
pub(super) struct Party<'a> {
    gate: &'a Gate,
    bearer: String,
    session: String,
}

impl<'a> Party<'a> {
    pub(super) fn new(gate: &'a Gate, name: &str) -> Self {
        let mut party =
            Self { gate, bearer: format!("Bearer {name}-token-0123456789"), session: String::new() };
        let mut hello = initialize("2025-11-25");
        hello["params"]["capabilities"] = json!({"elicitation": {}});
        let made = party.post(&hello).reply();
        made.header("mcp-session-id").unwrap_or_else(|| panic!("{made:?}")).clone_into(&mut party.session);
        party
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = [&JSON[..], &[("Authorization", &*self.bearer)]].concat();
        if !self.session.is_empty() {
            headers.push(("Mcp-Session-Id", &self.session));
        }
        headers
    }

    pub(super) fn post(&self, message: &Value) -> Connection {
        let mut connection = self.gate.connect();
        connection.send("POST /mcp/rich", &self.headers(), &message.to_string());
        connection
    }

    pub(super) fn ask(&self, id: u64, method: &str, params: &Value) -> Reply {
        self.post(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).reply()
    }

    /// The stream of what belongs to no request.
    fn listen(&self) -> Connection {
        let mut stream = self.gate.connect();
        stream.send("GET /mcp/rich", &self.headers(), "");
        assert_eq!(stream.head().status, 200);
        stream
    }

    /// Says yes to the question in `text`.
    pub(super) fn agree(&self, text: &str) {
        let messages = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut questions = messages.filter_map(|text| serde_json::from_str::<Value>(text).ok());
        let question = questions.find(|message| message["method"] == "elicitation/create").unwrap();
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
        assert_eq!(self.post(&answer).reply().status, 202);
    }
}

pub(super) fn tool(name: &str, arguments: &Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// A question of the server, about a task or about nothing in particular.
pub(super) fn question(task: Option<&str>) -> Value {
    let mut params =
        json!({"message": "Delete it?", "requestedSchema": {"type": "object", "properties": {}}});
    if let Some(task) = task {
        params["_meta"]["io.modelcontextprotocol/related-task"] = json!({"taskId": task});
    }
    json!({"method": "elicitation/create", "params": params})
}

#[test]
fn a_task_of_one_owner_is_none_of_another() {
    let gate = Gate::new(SERVERS);
    let [alice, bob] = ["alice", "bob"].map(|name| Party::new(&gate, name));
    let mut begin = tool("meta", &json!({}));
    begin["task"] = json!({"ttl": 60000});
    assert_eq!(alice.ask(1, "tools/call", &begin).answer()["result"]["task"]["taskId"], "task-1");
    // Only a call of the other owner is under way when the server says these.
    let status =
        json!({"method": "notifications/tasks/status", "params": {"taskId": "task-1", "status": "working"}});
    let heard = bob.ask(1, "tools/call", &tool("say", &status));
    assert!(heard.text() == "said" && !heard.body.contains("task-1"), "{heard:?}");
    let mut asked = question(Some("task-1"));
    asked["id"] = json!("result");
    let heard = bob.ask(2, "tools/call", &tool("say", &asked));
    assert!(heard.text() == "said" && !heard.body.contains("elicitation"), "{heard:?}");
    let mut general = alice.listen();
    let heard = general.until("elicitation/create");
    assert!(heard.contains("notifications/tasks/status"), "{heard}");
    // What names no task may be about this one.
    let refused = bob.ask(3, "tools/call", &tool("ask", &question(None)));
    assert!(refused.text().contains("several clients"), "{refused:?}");
    // Who waits for its result is asked there.
    let message =
        json!({"jsonrpc": "2.0", "id": 2, "method": "tasks/result", "params": {"taskId": "task-1"}});
    let mut result = alice.post(&message);
    assert_eq!(result.head().status, 200);
    bob.ask(4, "tools/call", &tool("say", &asked));
    alice.agree(&result.until("elicitation/create"));
    assert!(result.until("\"id\":2").contains("accept"));
    // It is over, and what names no task may still be about it.
    let refused = bob.ask(5, "tools/call", &tool("ask", &question(None)));
    assert!(refused.text().contains("several clients"), "{refused:?}");
}

#[test]
fn a_call_that_was_given_up_asks_nobody_else() {
    let gate = Gate::new(SERVERS);
    let [alice, bob] = ["alice", "bob"].map(|name| Party::new(&gate, name));
    let message =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool("ask", &question(None))});
    let mut asked = alice.post(&message);
    assert_eq!(asked.head().status, 200);
    asked.until("elicitation/create");
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(alice.post(&cancelled).reply().status, 202);
    // The server hears of it, and gives its question up: the next call comes after that.
    alice.ask(2, "tools/call", &tool("meta", &json!({})));
    let refused = bob.ask(1, "tools/call", &tool("ask", &question(None)));
    assert!(refused.text().contains("several clients"), "{refused:?}");
    // The other one has had a request meanwhile.
    let refused = alice.ask(3, "tools/call", &tool("ask", &question(None)));
    assert!(refused.text().contains("several clients"), "{refused:?}");
}
