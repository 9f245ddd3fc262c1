//! Requests one page: checks its address, retries, and returns errors with advice.

use std::time::Duration;

use hyper::{
    Method, StatusCode,
    header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderValue, LOCATION},
};
use tokio::time::{Instant, timeout};
use url::Url;

use super::{
    Fetch,
    robots::{MAX_SIZE, Rules},
};
use crate::{
    builtin::web::{self, failure},
    http::{self, HttpClient, NotPublic, RequestError},
};

/// Media types that can be read, the best first: some sites have Markdown for those who ask.
const READABLE: &str = "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/*;q=0.8, */*;q=0.1";
/// Hosts that robots.txt may be redirected over (RFC 9309, 2.3.1.2).
const ROBOTS_REDIRECTS: usize = 5;

/// The answer of a site.
pub(super) enum PageAnswer {
    /// The page is at another address.
    Redirect(Url),
    Body(Body),
}

/// A page as it came.
pub(super) struct Body {
    pub content_type: String,
    pub bytes: Vec<u8>,
    /// Whether it is all of it.
    pub complete: bool,
}

impl Fetch {
    /// Asks for one page, when it is our turn. Waits for it go to `waited`.
    pub(super) async fn visit(
        &self,
        url: &Url,
        language: Option<&HeaderValue>,
        redirected: bool,
        waited: &mut Duration,
    ) -> Result<PageAnswer, String> {
        self.client(url)?;
        let arrived = Instant::now();
        let mut turn = self.sites.turn(url).await;
        *waited += arrived.elapsed();
        if self.robots {
            let rules = match turn.rules() {
                Some(rules) => rules,
                None => turn.set_rules(self.rules(url).await?),
            };
            if !rules.allow(url) {
                return Err(format!(
                    "robots.txt of {} asks programs to leave {} alone: take another source",
                    host(url),
                    url.path()
                ));
            }
        }
        if !redirected {
            let ready = Instant::now();
            turn.pause(self.delay).await;
            *waited += ready.elapsed();
        }
        turn.asked();
        let answer = self.get(url, language).await;
        turn.asked();
        answer
    }

    async fn get(&self, url: &Url, language: Option<&HeaderValue>) -> Result<PageAnswer, String> {
        let late = || failure(format!("{} does not answer in time: try again later", host(url)), true, None);
        let lost = |error: &RequestError| match NotPublic::cause_of(error) {
            Some(refusal) => failure(off_limits(url, refusal), false, None),
            None if error.is_late() => late(),
            None => {
                let cause = web::cause(error);
                failure(format!("cannot reach {}: {cause}: check the address", host(url)), true, None)
            }
        };
        web::with_retries(async |attempt| {
            let client = self.client(url).map_err(|why| failure(why, false, None))?;
            let asking = async {
                let answer = ask(client, url, language).await.map_err(|error| lost(&error))?;
                if let Some(to) = redirection(&answer, url) {
                    return Ok(PageAnswer::Redirect(to.map_err(|why| failure(why, false, None))?));
                }
                let status = answer.status;
                if !status.is_success() {
                    let wait = web::retry_after(&answer.headers);
                    let again = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
                    return Err(failure(refusal(url, status, wait), again, wait));
                }
                let content_type = answer.headers.get(CONTENT_TYPE);
                let content_type =
                    content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
                let (bytes, complete) =
                    web::body(answer, self.max_size).await.map_err(|error| lost(&error))?;
                Ok(PageAnswer::Body(Body { content_type, bytes, complete }))
            };
            timeout(self.timeout.min(attempt.left), asking).await.unwrap_or_else(|_| Err(late()))
        })
        .await
    }

    /// The rules of the site of `url` for programs. Empty if it has no such file.
    async fn rules(&self, url: &Url) -> Result<Rules, String> {
        let mut at = url.join("/robots.txt").map_err(|error| error.to_string())?;
        at.set_query(None);
        for _ in 0..=ROBOTS_REDIRECTS {
            let client = self.client(&at)?;
            let asked = timeout(self.timeout, rules_at(client, &at)).await;
            match asked.map_err(|_| robots_timeout_error(&at))?? {
                RobotsAnswer::Elsewhere(to) => at = to,
                RobotsAnswer::Rules(rules) => return Ok(rules),
                // Until it can be read everything is forbidden (RFC 9309, 2.3.1.4).
                RobotsAnswer::Unreadable(status) => {
                    return Err(format!(
                        "robots.txt of {} cannot be read (status {}), so its pages are left alone: try again later",
                        host(url),
                        status.as_u16()
                    ));
                }
            }
        }
        // As good as none, by the same rule book.
        Ok(Rules::default())
    }

    /// The client that may go there.
    fn client(&self, url: &Url) -> Result<&HttpClient, String> {
        // In a pattern brackets are a choice of characters.
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let at_port = url.port().map(|port| format!("{host}:{port}"));
        if self.private.is_match(host) || at_port.is_some_and(|host| self.private.is_match(host)) {
            return Ok(self.http.pages_private());
        }
        NotPublic::check(url).map_err(|refusal| off_limits(url, refusal))?;
        Ok(self.http.pages())
    }
}

/// The answer of a site to a request for its rules.
enum RobotsAnswer {
    Rules(Rules),
    Elsewhere(Url),
    Unreadable(StatusCode),
}

async fn rules_at(client: &HttpClient, at: &Url) -> Result<RobotsAnswer, String> {
    let answer = ask(client, at, None).await.map_err(|error| match NotPublic::cause_of(&error) {
        Some(refusal) => off_limits(at, refusal),
        None if error.is_late() => robots_timeout_error(at),
        None => format!("cannot reach {}: {}: check the address", host(at), web::cause(&error)),
    })?;
    if let Some(to) = redirection(&answer, at) {
        return to.map(RobotsAnswer::Elsewhere);
    }
    let status = answer.status;
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Ok(RobotsAnswer::Unreadable(status));
    }
    if !status.is_success() {
        return Ok(RobotsAnswer::Rules(Rules::default()));
    }
    let read = web::body(answer, MAX_SIZE).await;
    let (body, _) = read.map_err(|error| format!("robots.txt of {}: {}", host(at), web::cause(&error)))?;
    Ok(RobotsAnswer::Rules(Rules::parse(&String::from_utf8_lossy(&body))))
}

fn robots_timeout_error(at: &Url) -> String {
    format!("robots.txt of {} does not come in time: try again later", host(at))
}

/// Asks for what is at `url`.
async fn ask(
    client: &HttpClient,
    url: &Url,
    language: Option<&HeaderValue>,
) -> Result<http::HttpAnswer, RequestError> {
    let mut request = http::request(Method::GET, url)?;
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static(READABLE));
    headers.extend(language.map(|language| (ACCEPT_LANGUAGE, language.clone())));
    web::accept_compressed(headers);
    client.send(request).await
}

fn off_limits(url: &Url, refusal: NotPublic) -> String {
    let allow = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let host = host(url);
    format!("{host} is off limits: {refusal}. Take a public page, or allow the host by allow_private={allow}")
}

/// Where the answer to a request to `from` sends us, if it does.
fn redirection(answer: &http::HttpAnswer, from: &Url) -> Option<Result<Url, String>> {
    if !answer.status.is_redirection() {
        return None;
    }
    let to = answer.headers.get(LOCATION)?.to_str().ok()?;
    Some(match from.join(to) {
        Ok(to) if matches!(to.scheme(), "http" | "https") => Ok(to),
        _ => Err(format!(
            "{} redirects to something that is not a web address: take another source",
            host(from)
        )),
    })
}

fn refusal(url: &Url, status: StatusCode, wait: Option<Duration>) -> String {
    let (host, code) = (host(url), status.as_u16());
    match code {
        404 | 410 => {
            format!("{host} has no such page (status {code}): check the address, or search for another")
        }
        401..=403 | 451 => {
            format!("{host} does not give this page to programs (status {code}): take another source")
        }
        429 => {
            let wait = wait.map_or_else(|| "later".to_owned(), |wait| format!("in {} s", wait.as_secs()));
            format!("{host} limits how often it is asked (status {code}): try again {wait}")
        }
        500.. => format!("{host} has a problem (status {code}): try again later, or take another source"),
        _ => format!("{host} does not answer with a page (status {code}): take another source"),
    }
}

/// The host of an address, with its port unless that is the usual one.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
