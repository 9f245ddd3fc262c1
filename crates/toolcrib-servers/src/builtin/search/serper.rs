//! Serper (<https://serper.dev>): Google's results; needs a key. The tool has the same arguments.

use serde_json::{Map, json};

use super::engine::{Engine, EngineRequest, WEB_SEARCH, hits};

pub(super) const ENGINE: Engine = Engine {
    name: "serper",
    description: WEB_SEARCH,
    url: Some("https://google.serper.dev/"),
    key_variable: Some("SERPER_API_KEY"),
    max_results: 100,
    pages: true,
    refused_help: "Serper refuses the key: check `key`, and whether it has credits left",
    request: |query, count| {
        let mut body = Map::new();
        body.insert("q".into(), query.q.clone().into());
        body.insert("gl".into(), query.gl.as_deref().unwrap_or("us").into());
        body.insert("hl".into(), query.hl.as_deref().unwrap_or("en").into());
        body.insert("num".into(), json!(count));
        for (name, value) in [("location", &query.location), ("tbs", &query.tbs)] {
            body.extend(value.clone().map(|value| (name.to_owned(), value.into())));
        }
        body.extend(query.page.map(|page| ("page".to_owned(), page.into())));
        body.extend(query.autocorrect.map(|correct| ("autocorrect".to_owned(), correct.into())));
        EngineRequest::post("search", body).key_header("x-api-key", "")
    },
    hits: |answer| hits(answer, "/organic", ["title", "link", "snippet", "date"]),
};
