//! Log messages of a server that has one level for all of its clients.

use serde_json::{Value, json};

use super::{Client, RICH, able};
use crate::support::{crib::Crib, wait_for};

/// The levels of the messages that come of a call.
fn logged(client: &mut Client) -> Vec<Value> {
    client.heard.clear();
    client.call("log", &json!({"text": "hear"}));
    let messages = client.heard.iter().filter(|message| message["method"] == "notifications/message");
    messages.map(|message| message["params"]["level"].clone()).collect()
}

#[test]
fn a_level_of_one_client_is_none_of_others() {
    let crib = Crib::new(RICH);
    let [mut first, mut second] = [(); 2].map(|()| Client::new(&crib, false, able(), Some("old")));
    first.ask("logging/setLevel", &json!({"level": "debug"}));
    assert_eq!(logged(&mut second), ["error"], "it has asked for nothing");
    assert_eq!(logged(&mut first), ["debug", "error"]);
    first.ask("logging/setLevel", &json!({"level": "error"}));
    assert!(second.text("state", &json!({})).contains(" info "), "what the other one gets is sent still");
    drop(second);
    wait_for("the level of who is left", || first.text("state", &json!({})).contains(" error "));
}

#[test]
fn a_server_hears_the_level_after_each_start() {
    let crib = Crib::new(&RICH.replace("[\"rich\"]\n", "[\"rich\"]\nlifecycle = \"lazy\"\n"));
    let mut client = Client::new(&crib, false, able(), None);
    client.ask("logging/setLevel", &json!({"level": "debug"}));
    let state = client.text("old__state", &json!({}));
    assert!(state.contains(" debug "), "before its first call: {state}");
    let id = client.request("tools/call", &json!({"name": "old__die", "arguments": {}}));
    client.wait(id);
    wait_for("the level", || client.text("old__state", &json!({})).contains(" debug "));
}

#[test]
fn a_request_keeps_its_level_while_it_is_under_way() {
    let crib = Crib::new(RICH);
    let mut client = Client::new(&crib, true, able(), Some("old"));
    let call = |name: &str, arguments: Value, level: &str| json!({"name": name, "arguments": arguments, "_meta": {"io.modelcontextprotocol/logLevel": level}});
    let question = json!({"method": "roots/list", "params": {}});
    let asked = client.ask("tools/call", &call("ask", question.clone(), "debug"));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let state = client.ask("tools/call", &call("state", json!({}), "error"));
    let state = state["content"][0]["text"].as_str().unwrap();
    assert!(state.contains(" debug "), "{state}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let mut again = call("ask", question, "debug");
    again["requestState"] = asked["requestState"].clone();
    again["inputResponses"] = json!({key: {"roots": []}});
    client.ask("tools/call", &again);
    wait_for("the end of that level", || client.text("state", &json!({})).contains(" info "));
}
