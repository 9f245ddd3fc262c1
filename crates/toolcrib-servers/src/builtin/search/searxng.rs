//! SearXNG (<https://docs.searxng.org/dev/search_api.html>): a self-hosted search engine that queries others. It needs
//! no key, and `json` among the `search.formats` of its settings.

use super::{
    dates::{Dates, Unit},
    engine::{Engine, EngineRequest, WEB_SEARCH, hits},
};

pub(super) const ENGINE: Engine = Engine {
    name: "searxng",
    description: WEB_SEARCH,
    url: None,
    key_variable: None,
    max_results: 100,
    pages: true,
    refused_help: "the instance gives no JSON to us: add `json` to `search.formats` in its settings.yml, or use another one",
    request: |query, _| {
        let mut parameters = vec![("q", query.q.clone()), ("format", "json".to_owned())];
        let language = match (&query.hl, &query.gl) {
            (Some(hl), Some(gl)) if !hl.contains('-') => Some(format!("{hl}-{}", gl.to_ascii_uppercase())),
            (hl, _) => hl.clone(),
        };
        parameters.extend(language.map(|language| ("language", language)));
        let span = query.dates().and_then(|dates| match dates {
            // It knows no hours.
            Dates::Last(Unit::Hour | Unit::Day, 1) => Some("day"),
            Dates::Last(Unit::Week, 1) => Some("week"),
            Dates::Last(Unit::Month, 1) => Some("month"),
            Dates::Last(Unit::Year, 1) => Some("year"),
            _ => None,
        });
        parameters.extend(span.map(|span| ("time_range", span.to_owned())));
        parameters.extend(query.page.map(|page| ("pageno", page.to_string())));
        EngineRequest::get("search", parameters)
            .not_applied_if(query.tbs.is_some() && span.is_none(), "tbs")
            .not_applied_if(query.gl.is_some() && query.hl.is_none(), "gl")
            .not_applied_if(query.location.is_some(), "location")
            .not_applied_if(query.autocorrect.is_some(), "autocorrect")
    },
    hits: |answer| hits(answer, "/results", ["title", "url", "content", "publishedDate"]),
};
