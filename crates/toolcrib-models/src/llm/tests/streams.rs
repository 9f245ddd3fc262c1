//! Tests streamed answers over real sockets: what observers get, broken streams, and time limits.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

fn piece(text: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"delta": {"content": text}}]}))
}

fn streamed(text: &str) -> String {
    let end = json!({"choices": [{"delta": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2}});
    format!("{}data: {end}\n\ndata: [DONE]\n\n", piece(text))
}

fn streaming(url: &str) -> LlmConfig {
    let mut config = config(url);
    config.stream = true;
    config
}

/// Sends a request and returns the observed pieces with the answer.
async fn observed(config: &LlmConfig) -> (Result<ChatAnswer, LlmError>, Vec<String>) {
    let (options, told) = observing();
    let answer = client(config).chat_with(&hello(), &options).await;
    let told = std::mem::take(&mut *told.lock().unwrap());
    (answer, told)
}

/// Writes `first`, then `again` every few milliseconds for ever.
async fn stalling(first: String, again: &'static str) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0, "the client went away");
        }
        let mut sent = socket.write_all(first.as_bytes()).await;
        while sent.is_ok() {
            tokio::time::sleep(Duration::from_millis(3)).await;
            sent = socket.write_all(again.as_bytes()).await;
        }
    });
    (url, tasks)
}

#[tokio::test]
async fn a_stream_is_an_answer_and_frees_its_connection() {
    let reply = Reply::text(200, streamed("hi")).header("content-type", "text/event-stream; charset=utf-8");
    let server = Server::with(&[reply]);
    let client = client(&streaming(&server.url));
    for _ in 0..3 {
        let answer = client.chat(&hello()).await.unwrap();
        assert_eq!((answer.content.as_str(), answer.finish), ("hi", Finish::Stop));
        assert_eq!((answer.usage.input, answer.usage.output), (5, 2));
    }
    let body = &server.seen.requests.lock().unwrap()[0].1;
    assert_eq!((&body["stream"], &body["stream_options"]), (&json!(true), &json!({"include_usage": true})));
    let stats = client.stats();
    assert_eq!((stats.connections_opened, stats.connections_reused), (1, 2));
}

#[tokio::test]
async fn a_server_may_answer_a_stream_request_in_one_piece() {
    let server = Server::with(&[Reply::say("hi")]);
    let (answer, told) = observed(&streaming(&server.url)).await;
    assert_eq!((answer.unwrap().content.as_str(), told), ("hi", vec!["Text(\"hi\")".to_owned()]));
}

#[tokio::test]
async fn broken_streams_are_never_joined() {
    let half = format!("{HEAD}{}", piece("ha"));
    let server = Server::raw(&[&half, &format!("{HEAD}{}", streamed("hi"))]);
    let (answer, told) = observed(&streaming(&server.url)).await;
    let answer = answer.unwrap();
    assert_eq!((answer.content.as_str(), classes(&answer.attempts)), ("hi", vec!["cut", "answered"]));
    assert_eq!(told, ["Text(\"ha\")", "Restarted", "Text(\"hi\")"]);
    // As often as the policy says, and no more.
    let server = Server::raw(&[&half, &half]);
    let mut config = streaming(&server.url);
    config.retry.max_attempts = 2;
    let error = observed(&config).await.0.unwrap_err();
    assert_eq!((classes(&error.attempts), server.count()), (vec!["cut", "cut"], 2));
    assert!(error.message.contains("the answer broke off after"), "{error}");
}

#[tokio::test]
async fn a_disconnect_after_the_end_is_no_error() {
    // More is announced than comes.
    let head = HEAD.replace("\r\n\r\n", "\r\ncontent-length: 9999\r\n\r\n");
    let server = Server::raw(&[&format!("{head}{}", streamed("hi").replace("data: [DONE]\n\n", ""))]);
    let mut config = streaming(&server.url);
    config.retry.max_attempts = 1;
    let answer = observed(&config).await.0.unwrap();
    assert_eq!((answer.content.as_str(), classes(&answer.attempts)), ("hi", vec!["answered"]));
}

#[tokio::test]
async fn an_endless_error_body_is_not_waited_for() {
    let head = "HTTP/1.1 500 Oops\r\ncontent-type: text/plain\r\ncontent-length: 9000000\r\n\r\nbroken";
    // Silent after its beginning, and one that goes on for ever.
    for again in ["", " "] {
        let (url, _serving) = stalling(head.to_owned(), again).await;
        let mut config = streaming(&url);
        config.first_token_timeout = Some(Duration::from_millis(300));
        config.retry.max_attempts = 1;
        let asked = tokio::time::timeout(Duration::from_secs(60), observed(&config)).await;
        let error = asked.expect("the end of the body is not waited for").0.unwrap_err();
        assert_eq!(classes(&error.attempts), ["server"]);
        let told = error.attempts[0].message.as_deref().unwrap();
        assert!(told.starts_with("500 Internal Server Error: broken"), "{told}");
    }
}

#[tokio::test]
async fn an_error_inside_a_stream_is_returned() {
    let error =
        format!("{HEAD}{}data: {}\n\n", piece("ha"), json!({"error": {"code": 503, "message": "gone"}}));
    let server = Server::raw(&[&error, &format!("{HEAD}{}", streamed("hi"))]);
    let answer = observed(&streaming(&server.url)).await.0.unwrap();
    assert_eq!(classes(&answer.attempts), ["overloaded", "answered"]);
    let told = answer.attempts[0].message.as_deref().unwrap();
    assert_eq!(told, "an error inside a good answer: gone");
}

#[tokio::test]
async fn each_stream_timeout_is_named() {
    for (first, message) in [
        (String::new(), "no first token within 40ms (first_token_timeout in [llm])"),
        (HEAD.to_owned(), "no first token within 40ms (first_token_timeout in [llm])"),
        (format!("{HEAD}{}", piece("ha")), "silent for 40ms during the answer (idle_timeout in [llm])"),
    ] {
        // Comments keep a connection alive, and are no sign of an answer.
        let again = if first.is_empty() { "" } else { ": still there\n\n" };
        let (url, _tasks) = stalling(first, again).await;
        let mut config = streaming(&url);
        config.retry.max_attempts = 1;
        config.first_token_timeout = Some(Duration::from_millis(40));
        config.idle_timeout = Some(Duration::from_millis(40));
        let error = observed(&config).await.0.unwrap_err();
        assert!(error.message.ends_with(message), "{error}");
        assert_eq!(error.class, LlmErrorClass::Timeout);
    }
}

#[tokio::test]
async fn request_timeout_cuts_a_stream_that_goes_on() {
    let more = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    let (url, _tasks) = stalling(HEAD.to_owned(), more).await;
    let mut config = streaming(&url);
    config.retry.max_attempts = 1;
    config.idle_timeout = Some(Duration::from_secs(20));
    config.request_timeout = Duration::from_millis(200);
    let (error, told) = observed(&config).await;
    assert!(error.unwrap_err().message.contains("request_timeout"));
    assert!(told.len() > 1, "{told:?}");
}

#[tokio::test]
async fn the_connect_timeout_is_per_client() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // Nobody accepts: the queue fills up, and then no connection is made any more.
    let mut queued = Vec::new();
    let soon = Duration::from_millis(300);
    while let Ok(connection) = tokio::time::timeout(soon, tokio::net::TcpStream::connect(address)).await {
        queued.push(connection.unwrap());
    }
    let mut config = config(&format!("http://{address}/v1"));
    config.name = Some("far".into());
    config.retry.max_attempts = 1;
    config.connect_timeout = Some(Duration::from_millis(40));
    let error = client(&config).chat(&hello()).await.unwrap_err();
    assert_eq!(error.message, "no connection in time (connect_timeout in [llm.clients.far])");
}
