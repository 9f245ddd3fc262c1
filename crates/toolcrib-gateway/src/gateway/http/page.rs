//! The page of the gateway: one document without data, which asks for them ([`super::live`]) while it is looked at.

use std::sync::LazyLock;

use base64::{Engine, prelude::BASE64_STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY},
};
use sha2::{Digest, Sha256};

use super::answers::Answer;
use crate::{
    http::serve::{answer, unless_get},
    style::STYLE,
};

const SCRIPT: &str = include_str!("page/script.js");

/// The document, and what it may do: its own script and style run, and ask this server alone.
static PAGE: LazyLock<(String, HeaderValue)> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    // The colours and badges of all pages, and what only this one has.
    let style = [STYLE, include_str!("page/style.css")].concat();
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(&style)
    );
    let page = include_str!("page/page.html").replace("STYLE", &style).replace("SCRIPT", SCRIPT);
    (page, HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'")))
});

/// The answer to who asks for the page.
pub(super) fn page<B>(request: &Request<B>) -> Answer {
    if let Some(refused) = unless_get(request) {
        // A client that was given the address without a path.
        let text = "here is a page for a browser: MCP is at /mcp\n";
        return refused.map(|_| Full::from(text).boxed_unsync());
    }
    let (page, policy) = &*PAGE;
    let mut answer = answer(StatusCode::OK, "text/html; charset=utf-8", page.as_str());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
