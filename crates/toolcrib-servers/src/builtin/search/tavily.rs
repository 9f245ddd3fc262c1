//! Tavily (<https://docs.tavily.com/documentation/api-reference/endpoint/search>): results for models; needs a key.

use serde_json::{Map, json};

use super::engine::{Engine, EngineRequest, WEB_SEARCH, hits};

pub(super) const ENGINE: Engine = Engine {
    name: "tavily",
    description: WEB_SEARCH,
    url: Some("https://api.tavily.com/"),
    key_variable: Some("TAVILY_API_KEY"),
    max_results: 20,
    pages: false,
    refused_help: "Tavily refuses the key: check `key`",
    request: |query, count| {
        let mut body = Map::new();
        body.insert("query".into(), query.q.clone().into());
        body.insert("max_results".into(), json!(count));
        let dated = query.put_dates(&mut body, ["start_date", "end_date"], "%Y-%m-%d");
        EngineRequest::post("search", body)
            .not_applied_if(query.tbs.is_some() && !dated, "tbs")
            .not_applied_if(query.gl.is_some(), "gl")
            .not_applied_if(query.hl.is_some(), "hl")
            .not_applied_if(query.location.is_some(), "location")
            .not_applied_if(query.autocorrect.is_some(), "autocorrect")
    },
    hits: |answer| hits(answer, "/results", ["title", "url", "content", "published_date"]),
};
