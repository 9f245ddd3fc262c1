//! `fetch`: reads a web page as text for a model. It reads only public addresses unless others are allowed,
//! limits its load on sites, and names in its result each change that was not requested.

use std::{sync::Arc, time::Duration};

use globset::GlobSet;
use hyper::header::HeaderValue;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{task::spawn_blocking, time::timeout};
use url::Url;

use super::{Outcome, Output, arguments, settings::Settings, tool};
use crate::{
    http::HttpClients,
    task::{Extracted, PageExtractor},
};

mod get;
mod page;
mod robots;
mod sites;

use get::{Body, PageAnswer};
use page::{Kind, Page};

const TOOL: &str = "fetch";
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two pages of one site.
const DELAY: Duration = Duration::from_secs(1);
const MAX_SIZE: usize = 5 << 20;
const MAX_REDIRECTS: usize = 5;
/// Characters of a question.
const LONGEST_QUESTION: usize = 4000;
/// A shorter wait is not worth a word.
const NOTABLE: Duration = Duration::from_millis(100);

/// The rules that pages are fetched by.
pub struct Fetch {
    /// Hosts that may have private addresses.
    private: GlobSet,
    /// Bytes of a page, after decompression.
    max_size: usize,
    max_redirects: usize,
    /// Whether robots.txt is obeyed.
    robots: bool,
    delay: Duration,
    /// Limit of time for one attempt.
    timeout: Duration,
    /// Language that is asked for unless a call names another one.
    language: Option<HeaderValue>,
    /// Answers questions about pages.
    extractor: Option<Arc<dyn PageExtractor>>,
    http: HttpClients,
    sites: sites::Sites,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FetchArguments {
    /// Address of the page, with http:// or https://.
    url: String,
    /// `markdown`, `text`, or `source` for the page as it is. Default: markdown.
    #[serde(default)]
    format: Format,
    /// The whole page with its menus, in place of its main text. Default: false.
    #[serde(default)]
    whole: bool,
    /// Language of the page if it has several, as in `de` or `de-AT, en;q=0.8`.
    #[serde(default)]
    language: Option<String>,
    /// Question about the page: the answer of a model that has read it is returned in place of the page.
    #[serde(default)]
    question: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Markdown,
    Text,
    Source,
}

impl Fetch {
    /// Opens the server with the settings in `args`.
    pub(super) fn open(
        args: &[String],
        http: HttpClients,
        extractor: Option<Arc<dyn PageExtractor>>,
    ) -> Result<Self, String> {
        const KNOWN: &[&str] = &[
            "allow_private",
            "max_size",
            "max_redirects",
            "robots",
            "delay",
            "timeout",
            "language",
            "questions",
        ];
        let settings = Settings::parse(args, KNOWN)?;
        let questions = settings.flag("questions")?.unwrap_or(false);
        if questions && extractor.is_none() {
            let why = "`questions=yes` needs a model that reads pages: add the table [extract]; a program with this library \
                       passes `StartOptions::page_extractor` too";
            return Err(why.to_owned());
        }
        Ok(Self {
            private: settings.patterns("allow_private")?,
            max_size: settings.size("max_size")?.unwrap_or(MAX_SIZE),
            max_redirects: settings.number("max_redirects")?.unwrap_or(MAX_REDIRECTS),
            robots: settings.flag("robots")?.unwrap_or(true),
            delay: settings.duration("delay")?.unwrap_or(DELAY),
            timeout: settings.duration("timeout")?.unwrap_or(TIMEOUT),
            language: settings.one("language")?.map(language).transpose()?,
            extractor: extractor.filter(|_| questions),
            http,
            sites: sites::Sites::default(),
        })
    }

    pub(super) fn tools(&self) -> Vec<Tool> {
        let mut fetch = tool::<FetchArguments>(TOOL, "Read a page of the web: its main text as Markdown.");
        fetch.annotations = Some(fetch.annotations.unwrap_or_default().open_world(true));
        if self.extractor.is_none()
            && let Some(Value::Object(arguments)) =
                Arc::make_mut(&mut fetch.input_schema).get_mut("properties")
        {
            arguments.remove("question");
        }
        vec![fetch]
    }

    pub(super) async fn run(&self, name: &str, given: Map<String, Value>) -> Option<Outcome> {
        if name != TOOL {
            return None;
        }
        Some(match arguments::<FetchArguments>(given) {
            Ok(FetchArguments { question: Some(question), .. })
                if question.chars().count() > LONGEST_QUESTION =>
            {
                Err(format!("`question` may have {LONGEST_QUESTION} characters"))
            }
            Ok(mut wanted) => {
                match (wanted.question.take().filter(|text| !text.trim().is_empty()), &self.extractor) {
                    (None, _) => self.fetch(wanted).await,
                    (Some(_), None) => {
                        Err("no model is configured for a `question`: read the page without one".to_owned())
                    }
                    (Some(question), Some(extractor)) => match self.fetch(wanted).await {
                        Ok(Output::Text(page)) => answer(extractor.as_ref(), question, page).await,
                        other => other,
                    },
                }
            }
            Err(why) => Err(why),
        })
    }

    async fn fetch(&self, wanted: FetchArguments) -> Outcome {
        let mut url = Url::parse(wanted.url.trim())
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or("`url` is not a web address: write it in full, as in https://example.org/page")?;
        let own = wanted.language.as_deref().map(language).transpose()?;
        let language = own.as_ref().or(self.language.as_ref());
        let mut waited = Duration::ZERO;
        for redirects in 0..=self.max_redirects {
            match self.visit(&url, language, redirects > 0, &mut waited).await? {
                PageAnswer::Redirect(to) => url = to,
                PageAnswer::Body(body) => {
                    let mut notes = Vec::new();
                    if redirects > 0 {
                        notes.push(format!("redirected from {}", wanted.url.trim()));
                    }
                    if waited >= NOTABLE {
                        let host = url.host_str().unwrap_or_default();
                        notes.push(format!("waited {:.1} s for a turn at {host}", waited.as_secs_f64()));
                    }
                    if !body.complete {
                        notes.push(format!("cut after {} bytes", self.max_size));
                    }
                    // Pages can be made to take for ever.
                    let reading = timeout(self.timeout, read(url, wanted, body, notes)).await;
                    return reading.map_err(|_| "parsing the page takes too long: ask for its `source`")?;
                }
            }
        }
        Err(format!("{} redirects more than {} times: take another source", wanted.url, self.max_redirects))
    }
}

/// The text of the page, after a head of lines that tell what it is.
async fn read(url: Url, wanted: FetchArguments, body: Body, notes: Vec<String>) -> Outcome {
    let kind = Kind::of(&body.content_type, &body.bytes)
        .map_err(|what| format!("{url} is {what}, which cannot be read as text: take another source"))?;
    let mut head = vec![format!("url: {url}")];
    // The session must go on meanwhile.
    let reading = spawn_blocking(move || {
        let text = page::decode(&body, kind);
        match kind == Kind::Html && wanted.format != Format::Source {
            true => page::read(&text, &url, wanted.format, wanted.whole),
            false => Page { text: text.into_owned(), ..Page::default() },
        }
    });
    let page = reading.await.map_err(|_| "the page cannot be parsed: ask for its `source`".to_owned())?;
    let cut = page.cut.then(|| "cut: the rest is too large or takes too long to parse".to_owned());
    head.extend((!page.title.is_empty()).then(|| format!("title: {}", page.title)));
    head.extend(page.byline.map(|byline| format!("by: {byline}")));
    head.extend(page.published.map(|published| format!("published: {published}")));
    head.extend(notes.into_iter().chain(cut).map(|note| format!("note: {note}")));
    Ok(Output::Text(format!("{}\n\n{}", head.join("\n"), page.text)))
}

/// The answer of a model that has read a page, behind the head of the page.
async fn answer(extractor: &dyn PageExtractor, question: String, page: String) -> Outcome {
    let (head, all) = (page.split("\n\n").next().unwrap_or_default().to_owned(), page.chars().count());
    let Extracted { answer, chars, took } = extractor.extract(question, page).await?;
    let part = if chars < all {
        format!("the first {chars} of {all} characters")
    } else {
        format!("{all} characters")
    };
    let text = format!("{head}\nnote: {} has read {part} of the page, and answers:\n\n{answer}", took.model);
    Ok(Output::Both(text, json!({"answer": answer, "extraction": took})))
}

/// The header `Accept-Language`.
fn language(text: &str) -> Result<HeaderValue, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-*,;=. ".contains(c);
    let value = HeaderValue::from_str(text).ok().filter(|_| !text.is_empty() && text.chars().all(legal));
    value.ok_or_else(|| "`language` is not a list of languages such as `de-AT, en;q=0.8`".to_owned())
}
