//! Converts the bytes of a page to text for a model.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use dom_query::{Document, NodeId, NodeRef};
use dom_smoothie::{Config, Readability, TextMode};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use html5ever::{
    TokenizerResult,
    buffer_queue::BufferQueue,
    interface::TreeSink,
    tokenizer::{Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts},
    tree_builder::{TreeBuilder, TreeBuilderOpts},
};
use url::Url;

use super::{Format, get::Body};
use crate::text::one_line;

/// Elements that the search for the main text looks at; a longer page is given as a whole.
const MAX_ELEMENTS: usize = 20_000;
/// How deep elements may be inside each other: what a page has below is taken out, since its reader would follow
/// it on the stack. Browsers stop at 512.
const MAX_DEPTH: usize = 400;
/// How long a page is parsed. Each element inside of thousands of others costs a look at all of these, so that a small
/// page could be made to take hours; one that was not takes a fraction of a second.
const MAX_PARSING: Duration = Duration::from_secs(3);
/// Nodes that a page may come to: some 200 bytes each. A page of 5 MB has some 100 000, but a small one may come to any
/// number, since a formatting element that was not closed is opened again in each paragraph.
const MAX_NODES: usize = 250_000;
/// Formatting elements, and which attributes they keep if they have more: they are copied with them.
const FORMATTING: [&str; 14] =
    ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"];
const KEPT: [&str; 5] = ["href", "id", "class", "rel", "itemprop"];
/// Bytes of the page that are parsed without a look at the clock and at what it came to.
const PIECE: usize = 4096;
/// Elements that have no text to read.
const SILENT: &str = "script, style, noscript, template, iframe, object, svg, canvas, img, picture, video, audio, \
    input, select, button";

/// A page to read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    pub title: String,
    /// Who wrote it, and when it was published, as far as it says.
    pub byline: Option<String>,
    pub published: Option<String>,
    pub text: String,
    /// Whether the end is missing, since it took too long or came to too much.
    pub cut: bool,
}

/// The kind of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Html,
    Text,
}

impl Kind {
    /// Finds the kind by the type that the server names; without one, by the first bytes. An error names what cannot be read.
    pub(super) fn of(content_type: &str, body: &[u8]) -> Result<Self, String> {
        let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let text = [
            "+json",
            "+xml",
            "/json",
            "/xml",
            "/javascript",
            "/yaml",
            "/x-yaml",
            "/toml",
            "/x-ndjson",
            "/sql",
        ];
        match name.as_str() {
            "text/html" | "application/xhtml+xml" => Ok(Self::Html),
            "" if body.contains(&0) => Err("data that is not text".to_owned()),
            "" if body.trim_ascii_start().starts_with(b"<") => Ok(Self::Html),
            "" => Ok(Self::Text),
            _ if name.starts_with("text/") || text.iter().any(|end| name.ends_with(end)) => Ok(Self::Text),
            _ => Err(name),
        }
    }
}

/// The text of `body`: by its byte order mark, the charset of its type, that of its head, or by trial.
pub(super) fn decode(body: &Body, kind: Kind) -> Cow<'_, str> {
    let declared = || charset(body.content_type.as_bytes());
    let inside = || match kind {
        Kind::Html => charset(&body.bytes[..body.bytes.len().min(1024)]),
        Kind::Text => None,
    };
    let legible = || match std::str::from_utf8(&body.bytes) {
        Ok(_) => UTF_8,
        // It was cut within a character.
        Err(error) if !body.complete && error.error_len().is_none() => UTF_8,
        Err(_) => WINDOWS_1252,
    };
    let encoding = declared().or_else(inside).unwrap_or_else(legible);
    encoding.decode(&body.bytes).0
}

/// The label after `charset=`.
fn charset(text: &[u8]) -> Option<&'static Encoding> {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let label = text.split("charset").skip(1).find_map(|after| after.trim_start().strip_prefix('='))?;
    let label = label.trim_start().trim_start_matches(['"', '\'']);
    let end = label.find(['"', '\'', ';', ' ', '>', '/']).unwrap_or(label.len());
    Encoding::for_label(&label.as_bytes()[..end])
}

/// Reads the HTML of `url`: its main text, or the whole of it if there is none or it is wanted.
pub(super) fn read(html: &str, url: &Url, format: Format, whole: bool) -> Page {
    let (document, complete) = parse(html);
    flatten(&document);
    document.select(SILENT).remove();
    // The search works on a copy. It would not begin with as many elements as there are in so many nodes.
    let short = document.tree.len() <= 5 * MAX_ELEMENTS;
    if !whole
        && short
        && let Some(page) = main_text(document.clone(), url, format)
    {
        return Page { cut: !complete, ..page };
    }
    absolute(&document, url);
    let body = document.select("body");
    let text = match format {
        Format::Text => body.formatted_text(),
        _ => body.nodes().first().map(|body| body.md(None)).unwrap_or_default(),
    };
    let title = document.select("head > title").text();
    Page { title: one_line(&title), text: text.trim().to_owned(), cut: !complete, ..Page::default() }
}

/// The document, and whether it is all of it.
fn parse(html: &str) -> (Document, bool) {
    let options = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let builder = Slim(TreeBuilder::new(Document::default(), options));
    let tokenizer = Tokenizer::new(builder, TokenizerOpts::default());
    let document = &tokenizer.sink.0.sink;
    let input = BufferQueue::default();
    let feed = || while !matches!(tokenizer.feed(&input), TokenizerResult::Done) {};
    let begun = Instant::now();
    let mut rest = html;
    while !rest.is_empty() && begun.elapsed() < MAX_PARSING && document.tree.len() < MAX_NODES {
        // One tag at most, since each may open again all that is open.
        let end = rest.bytes().take(PIECE).position(|byte| byte == b'>').map_or(PIECE, |at| at + 1);
        let (piece, after) = rest.split_at(boundary(rest, end));
        input.push_back(piece.into());
        feed();
        document.errors.borrow_mut().clear();
        rest = after;
    }
    feed();
    tokenizer.end();
    (tokenizer.sink.0.sink.finish(), rest.is_empty())
}

/// Builds the tree from tags without most of the attributes that would be copied with their element.
struct Slim(TreeBuilder<NodeId, Document>);

impl TokenSink for Slim {
    type Handle = NodeId;

    fn process_token(&self, mut token: Token, line: u64) -> TokenSinkResult<NodeId> {
        if let Token::TagToken(tag) = &mut token
            && tag.attrs.len() > KEPT.len()
            && FORMATTING.contains(&&*tag.name)
        {
            tag.attrs.retain(|attribute| KEPT.contains(&&*attribute.name.local));
        }
        self.0.process_token(token, line)
    }

    fn end(&self) {
        self.0.end();
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        self.0.adjusted_current_node_present_but_not_in_html_namespace()
    }
}

/// The first place at `at` or after it where a character begins.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

fn main_text(document: Document, url: &Url, format: Format) -> Option<Page> {
    let text_mode = if format == Format::Text { TextMode::Formatted } else { TextMode::Markdown };
    let config = Config { text_mode, max_elements_to_parse: MAX_ELEMENTS, ..Config::default() };
    let mut reader = Readability::with_document(document, Some(url.as_str()), Some(config)).ok()?;
    if !reader.is_probably_readable() {
        return None;
    }
    let article = reader.parse().ok()?;
    let text = article.text_content.trim();
    let line = |text: Option<String>| text.map(|text| one_line(&text)).filter(|text| !text.is_empty());
    (!text.is_empty()).then(|| Page {
        title: one_line(&article.title),
        byline: line(article.byline),
        published: line(article.published_time),
        text: text.to_owned(),
        cut: false,
    })
}

/// Removes what is too deep.
fn flatten(document: &Document) {
    let mut level = vec![document.root()];
    for _ in 0..MAX_DEPTH {
        level = level.iter().flat_map(NodeRef::children).collect();
        if level.is_empty() {
            return;
        }
    }
    for node in level {
        node.remove_from_parent();
    }
}

/// Links lead from the page to where they did.
fn absolute(document: &Document, url: &Url) {
    let base = document.select("base[href]").attr("href").and_then(|base| url.join(&base).ok());
    let base = base.as_ref().unwrap_or(url);
    for link in document.select("a[href]").nodes() {
        if let Some(to) = link.attr("href").and_then(|to| base.join(&to).ok()) {
            link.set_attr("href", to.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> Url {
        Url::parse("https://a.example/folder/page").unwrap()
    }

    #[test]
    fn an_article_is_reduced_to_its_main_text() {
        let filler =
            "This sentence, which says little, makes the paragraph as long as an article's. ".repeat(12);
        let html = format!(
            "<html lang=en><head><title>A &amp; B</title><meta name=author content='N. N.'></head><body>\
             <nav><a href='/home'>Home</a></nav><article><h2>Part</h2><p>{filler}<a href='../next'>next</a></p>\
             <p>{filler}</p><ul><li>one</li><li>two</li></ul><pre>let x = 1;</pre><script>evil()</script></article>\
             <footer>Imprint</footer></body></html>"
        );
        let page = read(&html, &url(), Format::Markdown, false);
        assert_eq!((page.title.as_str(), page.byline.as_deref()), ("A & B", Some("N. N.")));
        for part in ["## Part", "[next](https://a.example/next)", "- one", "let x = 1;"] {
            assert!(page.text.contains(part), "{part}: {}", page.text);
        }
        for part in ["Home", "Imprint", "evil"] {
            assert!(!page.text.contains(part), "{part}: {}", page.text);
        }
        let text = read(&html, &url(), Format::Text, false).text;
        assert!(text.contains("makes the paragraph") && !text.contains("https://"), "{text}");
        let whole = read(&html, &url(), Format::Markdown, true).text;
        assert!(whole.contains("[Home](https://a.example/home)") && whole.contains("Imprint"), "{whole}");
        assert!(!whole.contains("evil"), "{whole}");
    }

    #[test]
    fn a_page_without_an_article_is_given_whole() {
        let html = "<base href='/b/'><title> T\n t </title><body><table><tr><th>K<th>V<tr><td>a<td><a href=x>1</a></table>";
        let page = read(html, &url(), Format::Markdown, false);
        assert_eq!(page.title, "T t");
        assert!(
            page.text.contains("| K | V |") && page.text.contains("[1](https://a.example/b/x)"),
            "{}",
            page.text
        );
    }

    #[test]
    fn deep_and_malformed_pages_are_handled() {
        let strange = [
            "<div>",
            "<ul><li>",
            "<table><tr><td>",
            "<span><a href=x>",
            "<!--",
            "<p>x</p>",
            "<div><p>x</div>",
        ];
        for open in strange {
            let html = format!("<title>T</title><p>seen {}text", open.repeat(30_000));
            let page = std::thread::Builder::new()
                .stack_size(2 << 20)
                .spawn(move || read(&html, &url(), Format::Markdown, false))
                .unwrap()
                .join()
                .unwrap();
            assert!(page.text.contains("seen"), "{open}");
        }
    }

    #[test]
    fn the_number_of_nodes_of_a_page_is_limited() {
        let many = |open: fn(usize) -> String, count| (0..count).map(open).collect::<String>();
        let attributes = many(|n| format!(" a{n}=1"), 2_000);
        for html in [
            "<b><i><p>".repeat(300_000),
            // All of them are opened again by the `x` of each paragraph.
            format!("<p>{}{}", many(|n| format!("<b a={n}>"), 2_000), "<p>x".repeat(100_000)),
            format!("<p><b{attributes}>{}", "<p>x".repeat(200_000)),
        ] {
            let (document, complete) = parse(&html);
            let nodes = document.tree.len();
            let attributes = document.select("b").nodes().iter().map(|node| node.attrs().len()).max();
            assert!(!complete && nodes < 2 * MAX_NODES, "{nodes}");
            assert!(attributes.is_some_and(|most| most <= KEPT.len()), "{attributes:?}");
        }
        // As much as a long page has.
        let (document, complete) = parse(
            &"<p><a c=1 d=2 e=3 f=4 g=5 href=x>some text of a link</a> > and <b>more</b>\n".repeat(2_000),
        );
        assert!(complete && document.select("p").length() == 2_000);
        assert!(document.select("a[href=x]").length() == 2_000);
        assert_eq!(&*document.select("p").nodes()[1_999].text(), "some text of a link > and more\n");
    }

    #[test]
    fn charsets_are_found_in_headers_and_pages() {
        let cases: [(&[u8], &str, Kind, &str); 8] = [
            ("ü".as_bytes(), "text/plain", Kind::Text, "ü"),
            (b"\xfc", "text/plain", Kind::Text, "ü"),
            (b"\xfc", "text/plain; charset=iso-8859-1", Kind::Text, "ü"),
            (b"\x93\xfa\x96\x7b", "text/html; charset=\"Shift_JIS\"", Kind::Html, "日本"),
            (b"<meta charset=gbk>\xd6\xd0", "text/html", Kind::Html, "<meta charset=gbk>中"),
            (
                b"<meta content='text/html; charset=koi8-r'>\xc1",
                "",
                Kind::Html,
                "<meta content='text/html; charset=koi8-r'>а",
            ),
            (b"\xff\xfea\0", "text/plain; charset=utf-8", Kind::Text, "a"),
            (b"cut \xe4\xb8", "text/plain", Kind::Text, "cut \u{fffd}"),
        ];
        for (body, content_type, kind, text) in cases {
            let complete = !text.starts_with("cut");
            let body = Body { content_type: content_type.to_owned(), bytes: body.to_vec(), complete };
            assert_eq!(decode(&body, kind), text);
        }
    }

    #[test]
    fn content_types_are_distinguished() {
        for (name, body, kind) in [
            ("text/html; charset=utf-8", &b""[..], Ok(Kind::Html)),
            ("APPLICATION/XHTML+XML", b"", Ok(Kind::Html)),
            ("text/markdown", b"", Ok(Kind::Text)),
            ("application/ld+json", b"", Ok(Kind::Text)),
            ("", b"  <p>", Ok(Kind::Html)),
            ("", b"words", Ok(Kind::Text)),
            ("", b"a\0b", Err("data that is not text".to_owned())),
            ("application/pdf", b"%PDF", Err("application/pdf".to_owned())),
            ("image/png", b"", Err("image/png".to_owned())),
        ] {
            assert_eq!(Kind::of(name, body), kind, "{name}");
        }
    }
}
