//! One query to an engine over the wire: few and safe repetitions, and errors that say what to do.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode, Url, header::HeaderValue};
use serde_json::Value;

use super::{
    Query, Search,
    engine::{Ask, Hit},
};
use crate::{
    builtin::web::{self, failure},
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
        let ask = (self.engine.ask)(query, count);
        let mut not_applied = ask.not_applied.clone();
        if self.engine.url.is_some_and(|url| url.contains("{hl}")) && !self.url.contains("{hl}") {
            not_applied.extend(query.hl.is_some().then_some("hl"));
        }
        let language = query.hl.as_deref().and_then(|hl| hl.split('-').next()).unwrap_or("en");
        let mut url = Url::parse(&self.url.replace("{hl}", &language.to_ascii_lowercase()))
            .and_then(|folder| folder.join(ask.path))
            .map_err(|error| format!("the address of {} is wrong: {error}", self.engine.name))?;
        if !ask.parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(&ask.parameters);
        }
        let asked = web::ask(|attempt| {
            self.attempt(self.request(&ask, url.clone()).timeout(self.timeout.min(attempt.left)), &ask.method)
        })
        .await;
        asked.map(|hits| (hits, not_applied)).map_err(|why| self.hide(why))
    }

    fn request(&self, ask: &Ask, url: Url) -> RequestBuilder {
        let client = self.http.search_for(url.as_str()).client();
        let mut request = client.request(ask.method.clone(), url);
        if let Some(body) = &ask.body {
            request = request.json(body);
        }
        let (header, before) = ask.key;
        let key = self.key.as_ref().and_then(|key| HeaderValue::from_str(&format!("{before}{key}")).ok());
        if let Some(mut key) = key {
            key.set_sensitive(true);
            request = request.header(header, key);
        }
        request.header("accept", "application/json")
    }

    async fn attempt(&self, request: RequestBuilder, method: &Method) -> Result<Vec<Hit>, Failure<String>> {
        let name = self.engine.name;
        // What may have been done, and cost something, is not done again.
        let safe = *method == Method::GET;
        let lost = |error: &reqwest::Error| {
            let advice = "try again later, or check `url`";
            let cause = if error.is_timeout() { "no answer in time".to_owned() } else { web::cause(error) };
            failure(format!("cannot ask {name}: {cause}: {advice}"), safe || error.is_connect(), None)
        };
        let response = request.send().await.map_err(|error| lost(&error))?;
        let (status, hint) = (response.status(), web::retry_after(response.headers()));
        let (body, complete) = web::body(response, MAX_ANSWER).await.map_err(|error| lost(&error))?;
        if !status.is_success() {
            let turned_away = matches!(status.as_u16(), 429 | 503);
            let again = turned_away || (safe && (status.is_server_error() || status.as_u16() == 408));
            return Err(failure(self.refusal(status, hint, &body), again, hint));
        }
        let strange =
            || failure(format!("{name} answers in a way that is not its own: check `url`"), false, None);
        if !complete {
            return Err(strange());
        }
        let answer: Value = serde_json::from_slice(&body).map_err(|_| strange())?;
        (self.engine.hits)(&answer).ok_or_else(strange)
    }

    fn refusal(&self, status: StatusCode, wait: Option<Duration>, body: &[u8]) -> String {
        let name = self.engine.name;
        let advice = match status.as_u16() {
            401 | 403 => return format!("{} (status {})", self.engine.refused, status.as_u16()),
            402 => "its account has no credit left: recharge it, or use another engine".to_owned(),
            404 => "check `url`".to_owned(),
            429 => {
                let wait = wait.map_or_else(|| "later".to_owned(), |wait| format!("in {} s", wait.as_secs()));
                format!("it limits how often it is asked: try again {wait}, or set `max_concurrent_calls`")
            }
            code if code >= 500 => "it has a problem of its own: try again later".to_owned(),
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
