//! What the servers that ask the web share: answers read up to a limit, and causes in few words.

use reqwest::Response;

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
