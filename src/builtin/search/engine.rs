//! What makes one search engine different from another: plain data and two pure functions each.

use hyper::Method;
use serde_json::{Map, Value};

use super::{Query, brave, exa, mediawiki, searxng, serper, tavily};

/// One search engine.
pub(super) struct Engine {
    /// What it is called in the configuration.
    pub name: &'static str,
    /// The folder of its interface; `{hl}` stands for the language of the query. `None`: it must be configured.
    pub url: Option<&'static str>,
    /// The variable that its key is usually kept in. `None`: it needs none.
    pub key: Option<&'static str>,
    /// Results that one request gives at most.
    pub max_results: usize,
    /// Whether there is more than the first page.
    pub pages: bool,
    /// What a refusal (401, 403) usually means, and what to do.
    pub refused: &'static str,
    /// The request for a query.
    pub ask: fn(&Query, usize) -> Ask,
    /// The results in an answer.
    pub hits: fn(&Value) -> Option<Vec<Hit>>,
}

/// All of them.
pub(super) const ENGINES: [&Engine; 6] =
    [&serper::ENGINE, &searxng::ENGINE, &mediawiki::ENGINE, &brave::ENGINE, &tavily::ENGINE, &exa::ENGINE];

/// A request, apart from the address of the engine and its key.
pub(super) struct Ask {
    pub method: Method,
    /// Relative to the engine's folder.
    pub path: &'static str,
    pub parameters: Vec<(&'static str, String)>,
    pub body: Option<Value>,
    /// The header that carries the key, and what stands before it.
    pub key: (&'static str, &'static str),
    /// Arguments of the query that the engine has no counterpart for.
    pub not_applied: Vec<&'static str>,
}

impl Ask {
    /// By address alone.
    pub(super) fn get(path: &'static str, parameters: Vec<(&'static str, String)>) -> Self {
        let (method, key) = (Method::GET, ("authorization", "Bearer "));
        Self { method, path, parameters, body: None, key, not_applied: Vec::new() }
    }

    /// With a JSON body.
    pub(super) fn post(path: &'static str, body: Map<String, Value>) -> Self {
        Self { method: Method::POST, body: Some(Value::Object(body)), ..Self::get(path, Vec::new()) }
    }

    /// With the key in the header `name`.
    pub(super) fn key(mut self, name: &'static str, before: &'static str) -> Self {
        self.key = (name, before);
        self
    }

    /// Notes an argument that was given and does nothing here.
    pub(super) fn without(mut self, given: bool, argument: &'static str) -> Self {
        if given {
            self.not_applied.push(argument);
        }
        self
    }
}

/// One result.
#[derive(Debug, PartialEq)]
pub(super) struct Hit {
    pub title: String,
    pub link: String,
    pub snippet: String,
    pub date: Option<String>,
}

/// Reads the list of results at `pointer`, whose fields have these names. Results without an address are none.
pub(super) fn hits(answer: &Value, pointer: &str, names: [&str; 4]) -> Option<Vec<Hit>> {
    let list = answer.pointer(pointer)?.as_array()?;
    let hit = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
        let [title, link, snippet, date] = names.map(text);
        Some(Hit {
            link: link?,
            title: title.unwrap_or_default(),
            snippet: snippet.unwrap_or_default(),
            date,
        })
    };
    Some(list.iter().filter_map(hit).collect())
}

/// Text without tags and with the few entities that engines use.
pub(super) fn plain(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut inside = false;
    for c in html.chars() {
        match c {
            '<' => inside = true,
            '>' if inside => inside = false,
            _ if !inside => text.push(c),
            _ => {}
        }
    }
    let entities = [("&quot;", "\""), ("&#039;", "'"), ("&#39;", "'"), ("&#x27;", "'"), ("&nbsp;", " ")];
    let entities = entities.into_iter().chain([("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")]);
    entities.fold(text, |text, (entity, meant)| text.replace(entity, meant))
}
