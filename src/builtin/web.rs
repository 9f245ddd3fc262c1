//! What the servers that ask the web share: when they ask again, answers read up to a limit, causes in few words.

use std::time::Duration;

use reqwest::{
    Response,
    header::{HeaderMap, RETRY_AFTER},
};

use crate::retry::{self, Blame, Failure, Retry, RetryPolicy, Try};

/// Tries a request up to three times. It is over before the default timeout of a call, and an error says how often
/// it was tried.
pub(super) async fn ask<T, F>(request: impl FnMut(Try) -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, Failure<String>>>,
{
    let policy = RetryPolicy {
        max_attempts: 3,
        base: Duration::from_millis(500),
        cap: Duration::from_secs(4),
        total: Duration::from_secs(45),
        retry_after_max: Duration::from_secs(10),
        ..RetryPolicy::fast()
    };
    let run = retry::run(&policy, None, request).await;
    let failures = run.failures;
    run.result.map_err(|_| match &failures[..] {
        [.., last] if failures.len() > 1 => format!("{last} ({} attempts)", failures.len()),
        _ => failures.concat(),
    })
}

/// A failed attempt; `again` if it may be made again, after `wait` if the site named one.
pub(super) fn failure(error: String, again: bool, wait: Option<Duration>) -> Failure<String> {
    let retry = if again { Retry::Yes } else { Retry::Never };
    Failure { error, retry, hint: wait, blame: Blame::OWN, queued: Duration::ZERO }
}

/// The wait that a site asks for, in seconds. A date is not understood: it needs the site's clock.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// The body, and whether it is all of it: reading ends at `limit` bytes, counted after decompression.
pub(super) async fn body(mut response: Response, limit: usize) -> reqwest::Result<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = limit - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

/// The innermost cause of a failed request: the outer ones repeat the address, which may hold a key.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match std::ptr::addr_eq(innermost, error) {
        true => "the request failed".to_owned(),
        false => innermost.to_string(),
    }
}
