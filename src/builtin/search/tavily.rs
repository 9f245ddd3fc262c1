//! Tavily (<https://docs.tavily.com/documentation/api-reference/endpoint/search>): results for models, for a key.

use jiff::Timestamp;
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
        let bounds = query.dates().and_then(|dates| dates.bounds(Timestamp::now()));
        let (from, to) = bounds.unwrap_or_default();
        for (name, moment) in [("start_date", from), ("end_date", to)] {
            let day = moment.map(|moment| moment.strftime("%Y-%m-%d").to_string());
            body.extend(day.map(|day| (name.to_owned(), day.into())));
        }
        Ask::post("search", body)
            .without(query.tbs.is_some() && bounds.is_none(), "tbs")
            .without(query.gl.is_some(), "gl")
            .without(query.hl.is_some(), "hl")
            .without(query.location.is_some(), "location")
            .without(query.autocorrect.is_some(), "autocorrect")
    },
    hits: |answer| hits(answer, "/results", ["title", "url", "content", "published_date"]),
};
