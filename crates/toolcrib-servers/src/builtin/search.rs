//! `search`: searches the web with a configured search engine, over the pooled client. The tool is the `google_search`
//! that models were trained on; the engine behind it is configuration.

use std::time::Duration;

use globset::GlobSet;
use hyper::header::HeaderValue;
use jiff::Timestamp;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use url::Url;

use super::{Outcome, Output, arguments, settings::Settings, tool};
use crate::http::HttpClients;

mod ask;
mod brave;
mod dates;
mod engine;
mod exa;
mod link;
// The engine "wikipedia".
mod mediawiki;
mod searxng;
mod serper;
mod tavily;
#[cfg(test)]
mod tests;

use dates::Dates;
use engine::{Engine, Hit};

/// All search engines. A new one is a module above and an entry here.
const ENGINES: &[&Engine] =
    &[&serper::ENGINE, &searxng::ENGINE, &mediawiki::ENGINE, &brave::ENGINE, &tavily::ENGINE, &exa::ENGINE];

const TOOL: &str = "google_search";
const RESULTS: u16 = 10;
const TIMEOUT: Duration = Duration::from_secs(15);

/// One engine with its account.
pub struct Search {
    engine: &'static Engine,
    /// Its base address, ending in a slash; may contain `{hl}`.
    url: String,
    key: Option<String>,
    /// Results whose address matches are left out.
    exclude: GlobSet,
    /// Limit of time for one attempt.
    timeout: Duration,
    http: HttpClients,
}

#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Query {
    /// Words to search for.
    q: String,
    /// Country of the search, as in `us` or `de`.
    #[serde(default)]
    gl: Option<String>,
    /// Language of the search, as in `en` or `de`.
    #[serde(default)]
    hl: Option<String>,
    /// Place of the search, as in `Berlin, Germany`.
    #[serde(default)]
    location: Option<String>,
    /// Number of results. Default: 10.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100))]
    num: Option<u16>,
    /// Time of the results: `qdr:h`, `qdr:d`, `qdr:w`, `qdr:m` or `qdr:y` for the last hour, day, week, month or year;
    /// `cdr:1,cd_min:1/31/2024,cd_max:2/29/2024` for a span of days.
    #[serde(default)]
    tbs: Option<String>,
    /// Page of results, from 1. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100))]
    page: Option<u16>,
    /// Whether spelling mistakes in `q` are corrected.
    #[serde(default)]
    autocorrect: Option<bool>,
}

impl Query {
    fn dates(&self) -> Option<Dates> {
        Dates::parse(self.tbs.as_deref()?)
    }

    /// Puts the first and the last moment that are asked for into `body` under `names`, in `format`. Whether the dates
    /// could be understood.
    fn put_dates(&self, body: &mut Map<String, Value>, names: [&str; 2], format: &str) -> bool {
        let bounds = self.dates().and_then(|dates| dates.bounds(Timestamp::now()));
        let (from, to) = bounds.unwrap_or_default();
        for (name, moment) in names.into_iter().zip([from, to]) {
            let moment = moment.map(|moment| moment.strftime(format).to_string());
            body.extend(moment.map(|moment| (name.to_owned(), moment.into())));
        }
        bounds.is_some()
    }

    fn check(&self, engine: &Engine) -> Result<(), String> {
        let code = |text: &Option<String>| {
            text.as_ref().is_none_or(|text| {
                (2..=16).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            })
        };
        if self.q.trim().is_empty() {
            return Err("`q` is empty: say what to search for".to_owned());
        }
        if !code(&self.gl) || !code(&self.hl) {
            return Err("`gl` and `hl` are codes of a country and a language, as in `us` and `en`".to_owned());
        }
        if !(1..=100).contains(&self.num.unwrap_or(RESULTS)) || !(1..=100).contains(&self.page.unwrap_or(1)) {
            return Err("`num` and `page` are numbers from 1 to 100".to_owned());
        }
        if self.page.unwrap_or(1) > 1 && !engine.pages {
            return Err(format!("{} has one page of results only: ask for something else", engine.name));
        }
        Ok(())
    }

    /// The arguments as they were given, under their names.
    fn parameters(&self, engine: &Engine) -> Map<String, Value> {
        let all = json!({
            "q": self.q, "engine": engine.name, "gl": self.gl, "hl": self.hl, "location": self.location,
            "num": self.num, "tbs": self.tbs, "page": self.page, "autocorrect": self.autocorrect,
        });
        let Value::Object(all) = all else { return Map::new() };
        all.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }
}

impl Search {
    /// The engine that `args` begin with, and its settings. A key that is not among them is asked of `variable`.
    pub(super) fn open(
        args: &[String],
        http: HttpClients,
        variable: fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let names = ENGINES.iter().map(|engine| engine.name).collect::<Vec<_>>().join(", ");
        let (name, args) = args.split_first().ok_or_else(|| {
            format!("name a search engine, such as `args = [\"wikipedia\"]`; there are {names}")
        })?;
        let engine = ENGINES
            .iter()
            .copied()
            .find(|engine| engine.name == name)
            .ok_or_else(|| format!("there is no search engine `{name}`, there are {names}"))?;
        let settings = Settings::parse(args, &["key", "url", "exclude", "timeout"])?;
        let mut url = settings
            .one("url")?
            .or(engine.url)
            .ok_or_else(|| {
                format!("{name} is not a public service: give the address of your server as url=...")
            })?
            .to_owned();
        if !url.ends_with('/') {
            url.push('/');
        }
        let legal = Url::parse(&url.replace("{hl}", "en"));
        if !legal.is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
            return Err("the setting `url` is not an http:// or https:// address".to_owned());
        }
        let key = settings.one("key")?.map(ToOwned::to_owned).or_else(|| variable(engine.key_variable?));
        if let (Some(variable), None) = (engine.key_variable, &key) {
            return Err(format!("{name} needs a key: give it as key=${{{variable}}}"));
        }
        if key.as_ref().is_some_and(|key| HeaderValue::from_str(key).is_err()) {
            return Err("the setting `key` contains characters that a key cannot have".to_owned());
        }
        Ok(Self {
            engine,
            url,
            key,
            exclude: settings.patterns("exclude")?,
            timeout: settings.duration("timeout")?.unwrap_or(TIMEOUT),
            http,
        })
    }

    pub(super) fn tools(&self) -> Vec<Tool> {
        let mut search = tool::<Query>(TOOL, self.engine.description);
        let hints = search.annotations.unwrap_or_default().open_world(true);
        search.annotations = Some(hints);
        vec![search]
    }

    pub(super) async fn run(&self, name: &str, given: Map<String, Value>) -> Option<Outcome> {
        if name != TOOL {
            return None;
        }
        Some(match arguments(given) {
            Ok(query) => self.search(query).await,
            Err(why) => Err(why),
        })
    }

    async fn search(&self, mut query: Query) -> Outcome {
        query.check(self.engine)?;
        let wanted = usize::from(query.num.unwrap_or(RESULTS)).min(self.engine.max_results);
        let (mut hits, mut not_applied) = self.ask(&query, wanted).await?;
        // Exact words are what finds nothing most often.
        if hits.is_empty() && query.q.replace('"', "").trim() != query.q.trim() {
            query.q = query.q.replace('"', "");
            if !query.q.trim().is_empty() {
                (hits, not_applied) = self.ask(&query, wanted).await?;
            }
        }
        let found = hits.len();
        hits.retain(|hit| !self.is_excluded(&hit.link));
        let excluded = found - hits.len();
        let mut answer = Map::new();
        answer.insert("searchParameters".into(), query.parameters(self.engine).into());
        let organic = hits.into_iter().take(wanted).enumerate().map(|(at, hit)| row(at + 1, hit));
        answer.insert("organic".into(), organic.collect::<Vec<_>>().into());
        if excluded > 0 {
            answer.insert("excluded".into(), excluded.into());
        }
        if !not_applied.is_empty() {
            answer.insert("notApplied".into(), not_applied.into());
        }
        Ok(Output::Data(answer.into()))
    }

    /// Percent codes must not hide an address from the patterns.
    fn is_excluded(&self, link: &str) -> bool {
        self.exclude.is_match(link) || self.exclude.is_match(link::readable(link))
    }
}

fn row(position: usize, hit: Hit) -> Value {
    let mut row = Map::new();
    row.insert("title".into(), hit.title.into());
    row.insert("link".into(), link::readable(&hit.link).into());
    row.insert("snippet".into(), hit.snippet.into());
    row.extend(hit.date.map(|date| ("date".to_owned(), date.into())));
    row.insert("position".into(), position.into());
    row.into()
}
