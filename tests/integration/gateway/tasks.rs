//! Tasks: who hears of them, and for how long their results are waited for.

use serde_json::{Value, json};

use super::{Client, RICH, able};
use crate::support::crib::Crib;

fn begin(client: &mut Client, tool: &str) -> Value {
    let params = json!({"name": tool, "arguments": {}, "task": {}, "_meta": {"progressToken": "mine"}});
    client.ask("tools/call", &params)["task"].clone()
}

/// Has the server say something by itself, during a call of `client`.
fn say(client: &mut Client, method: &str, params: &Value) {
    client.call("say", &json!({"method": method, "params": params}));
}

#[test]
fn messages_about_a_task_go_to_who_began_it() {
    let crib = Crib::new(RICH);
    let [mut first, mut second] = [(); 2].map(|()| Client::new(&crib, false, able(), Some("old")));
    let task = begin(&mut first, "meta");
    say(&mut second, "notifications/tasks/status", &task);
    assert_eq!(first.notification("notifications/tasks/status")["taskId"], task["taskId"]);
    say(&mut second, "notifications/progress", &json!({"progressToken": task["token"], "progress": 7}));
    let report = first.notification("notifications/progress");
    assert_eq!((&report["progressToken"], &report["progress"]), (&json!("mine"), &json!(7)));
    let related = |task: &Value| json!({"message": "?", "_meta": {"io.modelcontextprotocol/related-task": {"taskId": task}}});
    let question = json!({"method": "elicitation/create", "params": related(&task["taskId"])});
    let waiting = second.request("tools/call", &json!({"name": "ask", "arguments": question}));
    let asked = first.asked();
    first.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    let told = second.wait(waiting);
    assert!(told["result"]["content"][0]["text"].as_str().unwrap().contains("accept"), "{told}");
    let question = json!({"method": "elicitation/create", "params": related(&json!("unknown"))});
    let told = second.text("ask", &question);
    assert!(told.contains("is known to have the task `unknown`"), "{told}");
    assert!(first.unexpected().is_empty() && second.unexpected().is_empty(), "{:?}", second.heard);
}

#[test]
fn the_result_of_a_task_is_waited_for() {
    let short = "[\"rich\"]\ncall_timeout = \"500ms\"\n";
    let crib = Crib::new(&RICH.replace("[\"rich\"]\n", short));
    let mut client = Client::new(&crib, false, able(), Some("old"));
    let task = begin(&mut client, "meta");
    let result = client.request("tasks/result", &json!({"taskId": task["taskId"]}));
    // A call that begins later is cut off.
    let question = json!({"method": "roots/list", "params": {}});
    let cut_off = client.fail("tools/call", &json!({"name": "ask", "arguments": question}));
    assert!(cut_off["message"].as_str().unwrap().contains("500ms"), "{cut_off}");
    client.heard.retain(|message| message["method"] != "roots/list");
    // The server answers what it was asked with what it is told.
    client.call("say", &json!({"id": "result", "method": "roots/list", "params": {}}));
    let asked = client.heard.iter().rev().find(|message| message["method"] == "roots/list").cloned();
    let asked = asked.unwrap_or_else(|| client.asked());
    client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}));
    let answer = client.wait(result);
    assert_eq!(answer["result"]["content"][0]["text"], "{\"roots\":[]}", "{answer}");
}

#[test]
fn tasks_can_be_used_beside_all_servers() {
    let declares = RICH.replace("[\"rich\"]\n", "[\"rich\", \"declares-tasks\"]\n");
    for (config, modern) in
        [(declares.as_str(), false), (declares.as_str(), true), (RICH, false), (RICH, true)]
    {
        let crib = Crib::new(config);
        let mut client = Client::new(&crib, modern, able(), None);
        // What the servers have is known from here on.
        client.ask("tools/list", &json!({}));
        let hello = match modern {
            true => client.ask("server/discover", &json!({})),
            false => client.ask("initialize", &json!({"protocolVersion": "2025-11-25", "capabilities": {}})),
        };
        let capabilities = &hello["capabilities"];
        let tasks = match modern {
            true => &capabilities["extensions"]["io.modelcontextprotocol/tasks"],
            false => &capabilities["tasks"]["requests"]["tools"]["call"],
        };
        assert_eq!(tasks.is_object(), config != RICH, "{hello}");
        if !modern {
            let task = begin(&mut client, "old__meta");
            let got = client.ask("tasks/get", &json!({"taskId": task["taskId"]}));
            assert_eq!(got["taskId"], task["taskId"]);
        }
    }
}
