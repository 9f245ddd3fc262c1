//! Tavily (<https://docs.tavily.com/documentation/api-reference/endpoint/search>): results for models; needs a key.

use serde_json::{Map, json};

use super::engine::{Ask, Engine, hits};

pub(super) const ENGINE: Engine = Engine {
    name: "tavily",
    url: Some("https://api.tavily.com/"),
    key: Some("TAVILY_API_KEY"),
    max_results: 20,
    pages: false,
    refused: "Tavily refuses the key: check `key`",
    ask: |query, count| {
        let mut body = Map::new();
        body.insert("query".into(), query.q.clone().into());
        body.insert("max_results".into(), json!(count));
        let dated = query.put_dates(&mut body, ["start_date", "end_date"], "%Y-%m-%d");
        Ask::post("search", body)
            .without(query.tbs.is_some() && !dated, "tbs")
            .without(query.gl.is_some(), "gl")
            .without(query.hl.is_some(), "hl")
            .without(query.location.is_some(), "location")
            .without(query.autocorrect.is_some(), "autocorrect")
    },
    hits: |answer| hits(answer, "/results", ["title", "url", "content", "published_date"]),
};
