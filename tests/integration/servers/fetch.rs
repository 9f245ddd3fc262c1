//! The built-in `fetch`: conversion of pages, refused addresses, and politeness towards sites.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolcrib::{Manager, ToolResult};

use crate::{
    support::web_sites::{Asked, Site, builtin, documented},
    support::{Lab, manager, object},
};

const HTML: &str = "text/html; charset=utf-8";

fn page(content_type: &'static str, body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body.into()).into_response()
}

fn status(code: u16) -> Response {
    StatusCode::from_u16(code).unwrap().into_response()
}

/// A site that has no robots.txt and else answers with `answer`.
async fn site(answer: impl Fn(Asked) -> Response + Clone + Send + Sync + 'static) -> Site {
    Site::serve(move |asked| {
        let response = if asked.target == "/robots.txt" { status(404) } else { answer(asked) };
        async move { response }
    })
    .await
}

/// A server that may go to 127.0.0.1 by that name, and does not dawdle.
async fn fetching(args: &[&str]) -> Manager {
    let args = [&["allow_private=127.0.0.1", "delay=0s"], args].concat();
    manager([builtin("fetch", &args)]).await
}

async fn fetch(manager: &Manager, arguments: Value) -> ToolResult {
    manager.toolbox().call("fetch", "fetch", object(arguments)).await.unwrap()
}

async fn text(manager: &Manager, arguments: Value) -> String {
    let result = fetch(manager, arguments).await;
    assert!(!result.is_error, "{}", result.text());
    result.text()
}

async fn refusal(manager: &Manager, url: &str) -> String {
    let result = fetch(manager, json!({"url": url})).await;
    assert!(result.is_error, "{}", result.text());
    result.text()
}

#[tokio::test]
async fn a_page_becomes_text_with_a_header() {
    let site = site(|asked| match asked.target.as_str() {
        "/old" => Redirect::permanent("/new?x=1").into_response(),
        "/new?x=1" => page(HTML, "<title>T</title><h1>Hi</h1><p>to <a href='there'>there</a> <b>now</b></p>"),
        "/data" => page("application/json", r#"{"a": "<b>"}"#),
        _ => status(404),
    })
    .await;
    let manager = fetching(&["language=fr"]).await;
    let url = &site.url;
    let old = format!("{url}/old");
    let markdown = text(&manager, json!({"url": old, "language": "de-AT, en;q=0.8"})).await;
    assert_eq!(
        markdown,
        format!(
            "url: {url}/new?x=1\ntitle: T\nnote: redirected from {old}\n\n# Hi\n\nto [there]({url}/there) **now**"
        )
    );
    let plain = text(&manager, json!({"url": format!("{url}/new?x=1"), "format": "text"})).await;
    assert!(plain.ends_with("\n\nHi\n\nto there now"), "{plain}");
    let source = text(&manager, json!({"url": format!("{url}/new?x=1#top"), "format": "source"})).await;
    assert!(source.contains("\n\n<title>T</title><h1>"), "{source}");
    let data = text(&manager, json!({"url": format!("{url}/data")})).await;
    assert_eq!(data, format!("url: {url}/data\n\n{{\"a\": \"<b>\"}}"));
    let asked = site.asked();
    assert_eq!(site.targets(), ["/robots.txt", "/old", "/new?x=1", "/new?x=1", "/new?x=1", "/data"]);
    assert_eq!(asked[1].header("accept-language"), "de-AT, en;q=0.8");
    assert_eq!(asked[3].header("accept-language"), "fr");
    assert!(asked[1].header("accept").starts_with("text/markdown, text/html"));
    assert_eq!(site.accepted(), 1, "one connection for all of them");
}

#[tokio::test]
async fn unreadable_pages_are_reported() {
    let site = site(|asked| match asked.target.as_str() {
        "/pdf" => page("application/pdf", "%PDF"),
        "/secret" => status(403),
        "/round" => Redirect::temporary("/round").into_response(),
        "/file" => Redirect::temporary("file:///etc/passwd").into_response(),
        _ => status(404),
    })
    .await;
    let manager = fetching(&["max_redirects=3"]).await;
    for (path, message) in [
        ("/pdf", "is application/pdf, which cannot be read as text: take another source"),
        ("/secret", "does not give this page to programs (status 403): take another source"),
        ("/gone", "has no such page (status 404): check the address, or search for another"),
        ("/round", "redirects more than 3 times: take another source"),
        ("/file", "redirects to something that is not a web address: take another source"),
    ] {
        let why = refusal(&manager, &format!("{}{path}", site.url)).await;
        assert!(why.ends_with(message), "{why}");
    }
    assert_eq!(site.targets().iter().filter(|target| *target == "/round").count(), 4);
    for url in ["example.org/page", "file:///etc/passwd", "http://", "javascript:alert(1)"] {
        assert!(refusal(&manager, url).await.starts_with("`url` is not a web address"), "{url}");
    }
    let site_url = site.url.clone();
    drop(site);
    let why = refusal(&manager, &format!("{site_url}/x")).await;
    assert!(why.starts_with("cannot reach 127.0.0.1") && why.contains("Connection refused"), "{why}");
}

#[tokio::test]
async fn only_public_addresses_are_visited() {
    let site = site(|asked| match asked.target.split_once("?to=") {
        Some((_, to)) => Redirect::temporary(to).into_response(),
        None => page(HTML, "secret"),
    })
    .await;
    let port = site.url.rsplit(':').next().unwrap().to_owned();
    let guarded = manager([builtin("fetch", &["delay=0s"])]).await;
    // By name, too: `localhost` is looked up and found to be here.
    for host in ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let why = refusal(&guarded, &format!("http://{host}:{port}/")).await;
        assert!(why.contains("is not an address of the public internet"), "{host}: {why}");
    }
    assert_eq!(site.accepted(), 0);
    // A page that is allowed leads to what is not.
    let allowed = fetching(&[]).await;
    for to in ["localhost", "127.0.0.2", "[::1]"] {
        let why = refusal(&allowed, &format!("{}/x?to=http://{to}:{port}/inside", site.url)).await;
        assert!(why.starts_with(&format!("{to}:{port} is off limits")), "{why}");
    }
    assert!(!site.targets().iter().any(|target| target == "/inside"));
    let by_number = manager([builtin("fetch", &["delay=0s", "allow_private=::1"])]).await;
    let why = refusal(&by_number, "http://[::1]:9/").await;
    assert!(why.starts_with("cannot reach [::1]:9"), "{why}");
    let by_name = fetching(&[&format!("allow_private=local*:{port}")]).await;
    let body = text(&by_name, json!({"url": format!("http://localhost:{port}/")})).await;
    assert!(body.ends_with("\n\nsecret"), "{body}");
}

#[tokio::test]
async fn robots_txt_is_obeyed_and_read_once() {
    let robots = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&robots);
    let rules = Site::serve(move |asked| {
        let count = Arc::clone(&count);
        async move {
            match asked.target.as_str() {
                "/robots.txt" => Redirect::permanent("/rules").into_response(),
                "/rules" => {
                    count.fetch_add(1, SeqCst);
                    page("text/plain", "User-agent: *\nDisallow: /private\n")
                }
                "/public" => page(HTML, "open"),
                "/detour" => Redirect::temporary("/private/x").into_response(),
                other => panic!("{other} was asked for"),
            }
        }
    })
    .await;
    let manager = fetching(&[]).await;
    for path in ["/private", "/private/x", "/detour"] {
        let why = refusal(&manager, &format!("{}{path}", rules.url)).await;
        assert!(
            why.contains("asks programs to leave /private") && why.ends_with("take another source"),
            "{why}"
        );
    }
    assert!(text(&manager, json!({"url": format!("{}/public", rules.url)})).await.ends_with("\n\nopen"));
    assert_eq!(robots.load(SeqCst), 1);

    let broken = Site::serve(|asked| async move {
        if asked.target == "/robots.txt" { status(500) } else { page(HTML, "open") }
    })
    .await;
    let why = refusal(&manager, &broken.url).await;
    assert!(why.contains("its pages are left alone: try again later"), "{why}");
    let rude = fetching(&["robots=no"]).await;
    assert!(text(&rude, json!({"url": broken.url})).await.ends_with("\n\nopen"));
}

#[tokio::test]
async fn a_site_is_asked_for_one_page_at_a_time_with_pauses() {
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = Arc::clone(&peak);
    let site = Site::serve(move |asked| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&highest));
        async move {
            peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            now.fetch_sub(1, SeqCst);
            if asked.target == "/robots.txt" { status(404) } else { page(HTML, "x") }
        }
    })
    .await;
    let manager = Arc::new(fetching(&[]).await);
    let mut fetches = JoinSet::new();
    for number in 0..8 {
        let (manager, url) = (Arc::clone(&manager), format!("{}/{number}", site.url));
        fetches.spawn(async move { text(&manager, json!({"url": url})).await });
    }
    let pages = fetches.join_all().await;
    assert_eq!((peak.load(SeqCst), site.targets().len()), (1, 9));
    assert!(pages.iter().any(|page| page.contains("note: waited")), "{pages:?}");

    let slow = manager_with_pause("2s").await;
    let url = format!("{}/slow", site.url);
    let first = text(&slow, json!({"url": url})).await;
    assert!(!first.contains("waited"), "{first}");
    let second = text(&slow, json!({"url": url})).await;
    assert!(second.contains("note: waited ") && second.contains(" s for a turn at 127.0.0.1"), "{second}");
}

async fn manager_with_pause(pause: &str) -> Manager {
    manager([builtin("fetch", &["allow_private=127.0.0.1", &format!("delay={pause}")])]).await
}

#[tokio::test]
async fn size_limits_count_after_decompression() {
    let site = site(|asked| {
        assert!(asked.header("accept-encoding").contains("gzip"));
        let mut packed = Vec::new();
        let mut encoder = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::best());
        let text = if asked.target == "/bomb" { "0".repeat(64 << 20) } else { "packed ü".to_owned() };
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap();
        let headers = [(header::CONTENT_TYPE, "text/plain"), (header::CONTENT_ENCODING, "gzip")];
        (headers, packed).into_response()
    })
    .await;
    let manager = fetching(&["max_size=10KB"]).await;
    assert!(text(&manager, json!({"url": site.url})).await.ends_with("\n\npacked ü"));
    let bomb = text(&manager, json!({"url": format!("{}/bomb", site.url)})).await;
    assert!(bomb.contains("note: cut after 10000 bytes"), "{}", &bomb[..200]);
    assert_eq!(bomb.split_once("\n\n").unwrap().1, "0".repeat(10_000));
}

#[tokio::test]
async fn a_truncated_compressed_page_is_an_error() {
    let site = site(|asked| {
        let mut packed = Vec::new();
        for text in ["first ", "second"] {
            let mut encoder = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap();
        }
        match asked.target.as_str() {
            "/half" => packed.truncate(packed.len() - 10),
            "/none" => packed.clear(),
            _ => {}
        }
        let headers = [(header::CONTENT_TYPE, "text/plain"), (header::CONTENT_ENCODING, "gzip")];
        (headers, packed).into_response()
    })
    .await;
    let manager = fetching(&[]).await;
    assert!(text(&manager, json!({"url": site.url})).await.ends_with("\n\nfirst second"), "parts are one");
    assert!(text(&manager, json!({"url": format!("{}/none", site.url)})).await.ends_with("\n\n"));
    let why = refusal(&manager, &format!("{}/half", site.url)).await;
    assert!(why.starts_with("cannot reach"), "{why}");
}

#[tokio::test]
async fn pages_of_every_charset_are_decoded() {
    let site = site(|asked| match asked.target.as_str() {
        "/header" => page("text/html; charset=windows-1251", b"<p>\xcf\xf0\xe8\xe2\xe5\xf2".to_vec()),
        "/meta" => page("text/html", b"<meta charset=euc-jp><p>\xc6\xfc\xcb\xdc".to_vec()),
        _ => page("text/plain", b"caf\xe9".to_vec()),
    })
    .await;
    let manager = fetching(&[]).await;
    for (path, words) in [("/header", "Привет"), ("/meta", "日本"), ("/none", "café")] {
        let page = text(&manager, json!({"url": format!("{}{path}", site.url)})).await;
        assert!(page.ends_with(&format!("\n\n{words}")), "{page}");
    }
}

#[tokio::test]
async fn a_failing_site_is_retried() {
    let next = Arc::new(AtomicUsize::new(0));
    let site = site(move |_| match next.fetch_add(1, SeqCst) {
        0 => status(503),
        1 => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "0")]).into_response(),
        2 => page(HTML, "there"),
        _ => status(500),
    })
    .await;
    let manager = fetching(&[]).await;
    assert!(text(&manager, json!({"url": site.url})).await.ends_with("\n\nthere"));
    let why = refusal(&manager, &site.url).await;
    assert!(
        why.ends_with("has a problem (status 500): try again later, or take another source (3 attempts)"),
        "{why}"
    );
    assert_eq!(site.targets().len(), 7);
}

#[tokio::test]
async fn a_silent_site_times_out_and_frees_its_turn() {
    let site = Site::serve(|asked| async move {
        if asked.target == "/silent" {
            std::future::pending::<()>().await;
        }
        if asked.target == "/robots.txt" { status(404) } else { page(HTML, "x") }
    })
    .await;
    let manager = fetching(&["timeout=100ms"]).await;
    let why = refusal(&manager, &format!("{}/silent", site.url)).await;
    assert!(why.contains("does not answer in time: try again later"), "{why}");
    assert!(text(&manager, json!({"url": site.url})).await.ends_with("\n\nx"));
}

#[tokio::test]
async fn fetch_runs_as_a_process_and_as_documented() {
    let site = site(|_| page(HTML, "<p>served</p>")).await;
    let lab = Lab::new();
    let args = ["builtin", "fetch", "allow_private=127.0.0.1"];
    let process = lab.command("fetch", env!("CARGO_BIN_EXE_toolcrib"), &args);
    let manager = manager([process, documented("pages")]).await;
    assert!(text(&manager, json!({"url": site.url})).await.ends_with("\n\nserved"));
    assert!(manager.catalog().find("pages", "fetch").is_ok());
}
