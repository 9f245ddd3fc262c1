//! Several clients of the same servers: nothing of one reaches another.

use serde_json::{Value, json};

use super::{Client, RICH, able};
use crate::support::crib::Crib;

#[test]
fn a_question_that_may_be_for_several_clients_goes_to_none() {
    let crib = Crib::new(RICH);
    let mut first = Client::new(&crib, false, able(), Some("old"));
    let mut second = Client::new(&crib, false, able(), Some("old"));
    let question = json!({"method": "roots/list", "params": {}});
    let ask = json!({"name": "ask", "arguments": question});
    // While one client alone has a call under way, it is asked.
    let waiting = first.request("tools/call", &ask);
    let asked = first.asked();
    assert_eq!(asked["method"], "roots/list");
    let told = second.text("ask", &question);
    assert!(told.contains("several clients") && told.contains("scope = \\\"client\\\""), "{told}");
    first.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": [{"uri": "file:///a"}]}}));
    assert!(first.wait(waiting)["result"]["content"][0]["text"].as_str().unwrap().contains("file:///a"));
    assert!(first.unexpected().is_empty() && second.unexpected().is_empty());
}

#[test]
fn ids_and_cancellations_do_not_cross() {
    let crib = Crib::new(RICH);
    let mut clients = [(); 2].map(|()| Client::new(&crib, false, able(), Some("old")));
    let question = json!({"method": "sampling/createMessage", "params": {}});
    let ask = json!({"name": "ask", "arguments": question});
    let id = clients[0].request("tools/call", &ask);
    let asked = clients[0].asked();
    // The same number, by another client: it cancels and answers nothing.
    clients[1].notify("notifications/cancelled", &json!({"requestId": id}));
    clients[1].send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"forged": true}}));
    let mine = clients[1].ask("tools/call", &json!({"name": "progress", "_meta": {"progressToken": id}}));
    assert_eq!(mine["content"][0]["text"], "done");
    clients[0].send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"real": true}}));
    let answer = clients[0].wait(id);
    assert_eq!(answer["result"]["content"][0]["text"], "{\"real\":true}", "{answer}");
    assert!(clients[0].unexpected().is_empty(), "{:?}", clients[0].heard);
}

#[test]
fn each_client_has_its_own_server_if_configured() {
    let config = RICH.replace("[\"rich\"]\n", "[\"rich\"]\nscope = \"client\"\n");
    let crib = Crib::new(&config);
    let mut first = Client::new(&crib, false, able(), Some("old"));
    let mut second = Client::new(&crib, false, json!({"sampling": {"tools": {}}}), Some("old"));
    let hello =
        |client: &mut Client| -> Value { serde_json::from_str(&client.text("hello", &json!({}))).unwrap() };
    assert_eq!(hello(&mut first)["capabilities"], able(), "the client's own words");
    assert_eq!(hello(&mut first)["clientInfo"]["extra"], true);
    assert_eq!(hello(&mut second)["capabilities"], json!({"sampling": {"tools": {}}}));
    first.notify("notifications/roots/list_changed", &json!({}));
    crate::support::wait_for("the news", || first.text("state", &json!({})).starts_with('1'));
    assert!(second.text("state", &json!({})).starts_with('0'), "it is not told to others");
    // Both can be asked at the same time.
    let question = json!({"method": "sampling/createMessage", "params": {}});
    let ask = json!({"name": "ask", "arguments": question});
    let ids = [first.request("tools/call", &ask), second.request("tools/call", &ask)];
    for (client, id) in [&mut first, &mut second].into_iter().zip(ids) {
        let asked = client.asked();
        assert_eq!(asked["method"], "sampling/createMessage", "{asked}");
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"of": id}}));
        assert_eq!(client.wait(id)["result"]["content"][0]["text"], json!({"of": id}).to_string());
    }
}

#[test]
fn a_client_that_goes_stops_watching() {
    let crib = Crib::new(RICH);
    let mut first = Client::new(&crib, false, able(), Some("old"));
    let mut second = Client::new(&crib, false, able(), Some("old"));
    first.ask("resources/subscribe", &json!({"uri": "rich://one"}));
    first.ask("resources/subscribe", &json!({"uri": "rich://two"}));
    second.ask("resources/subscribe", &json!({"uri": "rich://two"}));
    assert!(second.text("state", &json!({})).contains("rich://one"));
    second.call("touch", &json!({"uri": "rich://one"}));
    first.notification("notifications/resources/updated");
    drop(first);
    crate::support::wait_for("the end of it", || !second.text("state", &json!({})).contains("rich://one"));
    assert!(second.text("state", &json!({})).contains("rich://two"), "another client watches it still");
    assert!(second.unexpected().is_empty(), "{:?}", second.heard);
}
