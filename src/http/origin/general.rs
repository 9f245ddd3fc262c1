//! Requests by a general client: for the versions of HTTP other than 1.1, which share one connection among many
//! requests.

use http_body_util::Full;
use hyper::{Request, body::Bytes, header::HOST};
use reqwest::Body;

use super::{Answer, Rest, Unanswered};
use crate::http::HttpClient;

/// Sends a request with the server's whole address. It has the headers that it came with, and no others.
pub(super) async fn send(
    client: &HttpClient,
    mut request: Request<Full<Bytes>>,
) -> Result<Answer, Unanswered> {
    // The client sets it, by the version of HTTP that it comes to speak.
    request.headers_mut().remove(HOST);
    let request = request.map(Body::wrap);
    let request =
        reqwest::Request::try_from(request).map_err(|error| Unanswered::Unconnected(error.into()))?;
    let mut response = client.client().execute(request).await.map_err(unanswered)?;
    let headers = std::mem::take(response.headers_mut());
    Ok(Answer { status: response.status(), headers, rest: Rest::General(response) })
}

fn unanswered(error: reqwest::Error) -> Unanswered {
    match (error.is_connect(), error.is_timeout()) {
        (true, true) => Unanswered::Late,
        (true, false) => Unanswered::Unconnected(error.into()),
        _ => Unanswered::Broken(error.into()),
    }
}
