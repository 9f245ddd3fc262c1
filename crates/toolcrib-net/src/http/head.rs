//! The head of a request: target and the headers that every request has.

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{
    HeaderMap, Uri,
    header::{ACCEPT, AUTHORIZATION, HeaderValue, USER_AGENT},
};
use percent_encoding::percent_decode_str;
use url::Url;

/// Returns the target of a request to `url` and the headers that every request has. The client adds `Host` itself, since that
/// depends on the version of HTTP.
///
/// # Errors
/// Text that says which part no request can hold.
pub fn head(url: &Url) -> Result<(Uri, HeaderMap), String> {
    let (mut text, query) = (url.origin().ascii_serialization() + url.path(), url.query());
    text.extend(query.into_iter().flat_map(|query| ["?", query]));
    let to = Uri::try_from(text).map_err(|error| error.to_string())?;
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static(crate::http::USER_AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    if let Some(credentials) = credentials(url) {
        headers.insert(AUTHORIZATION, credentials);
    }
    Ok((to, headers))
}

/// Name and password of an address, as RFC 7617 has them.
fn credentials(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair: Vec<u8> = percent_decode_str(url.username()).collect();
    pair.push(b':');
    pair.extend(percent_decode_str(url.password().unwrap_or_default()));
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_fragments_are_not_in_the_request_target() {
        let url = Url::parse("http://me:p%40ss@models.test:8080/v1/chat?x=1#there").unwrap();
        let (to, headers) = head(&url).unwrap();
        assert_eq!(to, "http://models.test:8080/v1/chat?x=1");
        assert_eq!(headers[AUTHORIZATION], "Basic bWU6cEBzcw==");
        let (to, headers) = head(&Url::parse("https://models.test:443").unwrap()).unwrap();
        assert_eq!(to, "https://models.test/");
        assert!(!headers.contains_key(AUTHORIZATION));
    }
}
