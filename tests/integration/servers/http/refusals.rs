//! Starts that a server refuses: the error has its words, names the true cause, and says what helps.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use serde_json::json;
use toolcrib::{Endpoint, ErrorCode, Manager};

use super::{super::remote::remote, scripted::scripted};

struct Case {
    answer: fn() -> Response,
    /// A header of the configuration.
    header: Option<&'static str>,
    code: ErrorCode,
    /// Text that the causes contain.
    cause: &'static str,
    /// Text that the help contains, and text that it does not contain.
    help: &'static str,
    no_help: &'static str,
}

fn wants(challenge: &'static str, body: impl axum::response::IntoResponse) -> Response {
    (StatusCode::UNAUTHORIZED, [("www-authenticate", challenge)], body).into_response()
}

fn page(title: &str) -> String {
    format!("<!DOCTYPE html><html><head><title>{title}</title></head><body><div>{}</div>", "x".repeat(5000))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_start_names_the_true_cause() {
    let case =
        |answer, header, code, cause, help, no_help| Case { answer, header, code, cause, help, no_help };
    let (login, protocol) = (ErrorCode::LoginRequired, ErrorCode::ProtocolMismatch);
    let key = Some("x-api-key");
    let cases = [
        case(|| StatusCode::UNAUTHORIZED.into_response(), None, login, "HTTP 401", "toolcrib login", "/mcp"),
        case(|| StatusCode::UNAUTHORIZED.into_response(), key, login, "the `X-Api-Key`", "value", "login"),
        case(
            || (StatusCode::UNAUTHORIZED, Json(json!({"detail": "Invalid API key"}))).into_response(),
            key,
            login,
            "Invalid API key",
            "value",
            "login",
        ),
        case(
            || wants("bearer error=\"invalid_token\", error_description=\"expired, see docs\"", ""),
            Some("authorization"),
            login,
            "expired, see docs",
            "value",
            "login",
        ),
        case(
            || wants("Basic realm=\"x\"", "Unauthorized"),
            None,
            login,
            "`Basic`",
            "name and password",
            "login",
        ),
        case(
            || (StatusCode::FORBIDDEN, page("Attention Required! | WAF")).into_response(),
            None,
            login,
            "HTTP 403 Forbidden: a web page: `Attention Required! | WAF`",
            "proxy",
            "login",
        ),
        case(
            || ([("content-type", "text/html; charset=utf-8")], page("Sign in")).into_response(),
            None,
            protocol,
            "`Sign in`",
            "/mcp or /sse",
            "newer version",
        ),
        case(
            || (StatusCode::NOT_FOUND, page("Not here")).into_response(),
            None,
            protocol,
            "HTTP 404 Not Found: a web page: `Not here`",
            "/mcp or /sse",
            "newer version",
        ),
        case(
            || StatusCode::METHOD_NOT_ALLOWED.into_response(),
            None,
            protocol,
            "HTTP 405",
            "/mcp or /sse",
            "x",
        ),
        case(
            || (StatusCode::BAD_GATEWAY, Json(json!({"error": {"message": "no upstream"}}))).into_response(),
            None,
            ErrorCode::SpawnFailed,
            "HTTP 502 Bad Gateway: no upstream",
            "again later",
            "newer version",
        ),
        case(
            || Redirect::temporary("https://login.example.com/x?y").into_response(),
            None,
            protocol,
            "it leads to https://login.example.com",
            "`url`",
            "newer version",
        ),
    ];
    for Case { answer, header, code, cause, help, no_help } in cases {
        let (url, _script, _serving) = scripted(move |_| Some(answer())).await;
        let mut config = remote(url, None);
        if let (Some(header), Endpoint::Http(endpoint)) =
            (header, &mut config.servers[0].server.as_mut().unwrap().endpoint)
        {
            endpoint.headers.insert(header.to_owned(), "a-wrong-secret-1".to_owned());
        }
        let manager = Manager::start(&config).await.unwrap();
        let error = manager.report().servers[0].outcome.clone().unwrap_err();
        let (causes, helped) = (error.causes().join(" "), error.help().unwrap_or_default());
        assert_eq!(error.code(), code, "{cause}: {error} {causes}");
        assert!(causes.contains(cause), "{cause}: {causes}");
        assert!(helped.contains(help) && !helped.contains(no_help), "{cause}: {helped}");
        for hidden in ["<div", "a-wrong-secret-1"] {
            assert!(!format!("{error} {causes} {helped}").contains(hidden), "{cause}: {causes}");
        }
        manager.shutdown().await;
    }
}
