//! Sends one query to an engine, with few and safe retries, and errors that say what to do.

use std::{
    io::{self, ErrorKind::TimedOut},
    time::Duration,
};

use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue},
};
use serde_json::Value;
use tokio::time::timeout;
use url::Url;

use super::{
    Query, Search,
    engine::{EngineRequest, Hit},
};
use crate::{
    builtin::web::{self, failure},
    http::{self, HttpAnswer, REDIRECTS, RequestError},
    retry::Failure,
};

/// Far more than any page of results.
const MAX_ANSWER: usize = 8 << 20;

impl Search {
    /// The results, and the arguments that the engine has no counterpart for.
    pub(super) async fn ask(
        &self,
        query: &Query,
        count: usize,
    ) -> Result<(Vec<Hit>, Vec<&'static str>), String> {
        let engine_request = (self.engine.request)(query, count);
        let mut not_applied = engine_request.not_applied.clone();
        if self.engine.url.is_some_and(|url| url.contains("{hl}")) && !self.url.contains("{hl}") {
            not_applied.extend(query.hl.is_some().then_some("hl"));
        }
        let language = query.hl.as_deref().and_then(|hl| hl.split('-').next()).unwrap_or("en");
        let mut url = Url::parse(&self.url.replace("{hl}", &language.to_ascii_lowercase()))
            .and_then(|folder| folder.join(engine_request.path))
            .map_err(|error| format!("the address of {} is wrong: {error}", self.engine.name))?;
        if !engine_request.parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(&engine_request.parameters);
        }
        let asked = web::with_retries(async |attempt| {
            let limit = self.timeout.min(attempt.left);
            // It may have got as far as the engine.
            let late = |_| {
                Err(self
                    .lost(&RequestError::Broken(io::Error::from(TimedOut).into()), &engine_request.method))
            };
            timeout(limit, self.attempt(&engine_request, &url)).await.unwrap_or_else(late)
        })
        .await;
        asked.map(|hits| (hits, not_applied)).map_err(|why| self.hide(why))
    }

    fn request(&self, engine_request: &EngineRequest, url: &Url) -> Result<Request<Bytes>, RequestError> {
        let mut request = http::request(engine_request.method.clone(), url)?;
        let json = HeaderValue::from_static("application/json");
        if let Some(body) = &engine_request.body {
            *request.body_mut() = body.to_string().into();
            request.headers_mut().insert(CONTENT_TYPE, json.clone());
        }
        let (header, prefix) = engine_request.key_header;
        let key = self.key.as_ref().and_then(|key| HeaderValue::from_str(&format!("{prefix}{key}")).ok());
        if let Some(mut key) = key {
            key.set_sensitive(true);
            request.headers_mut().insert(HeaderName::from_static(header), key);
        }
        request.headers_mut().insert(ACCEPT, json);
        web::accept_compressed(request.headers_mut());
        Ok(request)
    }

    /// Asks, and follows a few redirects within the origin: headers with keys must not travel to another one.
    async fn answer(&self, engine_request: &EngineRequest, url: &Url) -> Result<HttpAnswer, RequestError> {
        let (client, mut url) = (self.http.search_for(url.as_str()), url.clone());
        let mut request = self.request(engine_request, &url)?;
        for _ in 0..REDIRECTS {
            let answer = client.send(request.clone()).await?;
            let Some(to) = http::moved(&answer, &url) else { return Ok(answer) };
            // The usual behaviour of clients.
            if !matches!(answer.status.as_u16(), 307 | 308) {
                (*request.method_mut(), *request.body_mut()) = (Method::GET, Bytes::new());
                request.headers_mut().remove(CONTENT_TYPE);
            }
            let (uri, _) = http::head(&to).map_err(|why| RequestError::Broken(why.into()))?;
            (*request.uri_mut(), url) = (uri, to);
        }
        client.send(request).await
    }

    fn lost(&self, error: &RequestError, method: &Method) -> Failure<String> {
        let cause = if error.is_late() { "no answer in time".to_owned() } else { web::cause(error) };
        // What may have been done, and cost something, is not done again.
        let again = *method == Method::GET || !matches!(error, RequestError::Broken(_));
        let advice = "try again later, or check `url`";
        failure(format!("cannot ask {}: {cause}: {advice}", self.engine.name), again, None)
    }

    async fn attempt(&self, engine_request: &EngineRequest, url: &Url) -> Result<Vec<Hit>, Failure<String>> {
        let name = self.engine.name;
        let safe = engine_request.method == Method::GET;
        let answer = self
            .answer(engine_request, url)
            .await
            .map_err(|error| self.lost(&error, &engine_request.method))?;
        let (status, hint) = (answer.status, web::retry_after(&answer.headers));
        let (body, complete) =
            web::body(answer, MAX_ANSWER).await.map_err(|error| self.lost(&error, &engine_request.method))?;
        if !status.is_success() {
            let turned_away = matches!(status.as_u16(), 429 | 503);
            let again = turned_away || (safe && (status.is_server_error() || status.as_u16() == 408));
            return Err(failure(self.refusal(status, hint, &body), again, hint));
        }
        let strange =
            || failure(format!("the answer of {name} is not in its format: check `url`"), false, None);
        if !complete {
            return Err(strange());
        }
        let answer: Value = serde_json::from_slice(&body).map_err(|_| strange())?;
        (self.engine.hits)(&answer).ok_or_else(strange)
    }

    fn refusal(&self, status: StatusCode, wait: Option<Duration>, body: &[u8]) -> String {
        let name = self.engine.name;
        let advice = match status.as_u16() {
            401 | 403 => return format!("{} (status {})", self.engine.refused_help, status.as_u16()),
            402 => "its account has no credit left: recharge it, or use another engine".to_owned(),
            404 => "check `url`".to_owned(),
            429 => {
                let wait = wait.map_or_else(|| "later".to_owned(), |wait| format!("in {} s", wait.as_secs()));
                format!("it limits how often it is asked: try again {wait}, or set `max_concurrent_calls`")
            }
            code if code >= 500 => "it has an internal problem: try again later".to_owned(),
            _ => format!("it says: {}", said(body)),
        };
        format!("{name} answers with status {}: {advice}", status.as_u16())
    }

    /// Engines repeat keys in their errors.
    fn hide(&self, text: String) -> String {
        match &self.key {
            Some(key) => text.replace(key, "****"),
            None => text,
        }
    }
}

/// The beginning of an answer, in one line.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}
