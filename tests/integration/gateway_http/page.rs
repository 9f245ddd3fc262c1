//! The page of the gateway in a browser.

use super::{
    live::{live, session_of, talks},
    *,
};
use crate::support::browser::Tab;

/// Expressions for the pixels by which the page is too wide, and for the colour of the paper.
const WIDE: &str = "Math.max(0, document.scrollingElement.scrollWidth - innerWidth)";
const PAPER: &str = "getComputedStyle(document.body).backgroundColor";
/// Words that would do something if they became part of a page, and others that are wide, tall or run backwards.
const HOSTILE: &str =
    "<img src=x onerror=\"document.title='taken'\"></td></table><script>document.title='taken'</script>";

fn page(gate: &Gate) -> String {
    let page = gate.serving["page"].as_str().unwrap().to_owned();
    assert_eq!(page, format!("http://{}/", gate.address));
    page
}

/// The page, once it shows the state.
fn opened(gate: &Gate) -> Tab {
    let mut tab = Tab::open(&page(gate));
    tab.wait("document.getElementById('state').textContent === 'live'");
    tab
}

/// The text of an element.
fn text(tab: &mut Tab, selector: &str) -> String {
    let text = tab.value(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)));
    text.as_str().unwrap().to_owned()
}

/// Looks at the page in windows of several sizes, light and dark.
fn fits(tab: &mut Tab) {
    for width in [500, 1400] {
        for (dark, paper) in [(false, "rgb(255, 255, 255)"), (true, "rgb(22, 24, 29)")] {
            tab.seen_by(width, dark);
            tab.wait(&format!("innerWidth === {width}"));
            assert_eq!((tab.value(WIDE), tab.value(PAPER)), (json!(0), json!(paper)), "{width}");
            // No cell of a table is cut off or lies over another one.
            let over = "[...document.querySelectorAll('#main td, #main .said')].filter(cell => cell.getClientRects().length
                && cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).display !== 'inline')
                .map(cell => cell.className + ': ' + cell.textContent.slice(0, 80))";
            assert_eq!(tab.value(over), json!([]), "{width}");
        }
    }
}

fn busy(servers: usize) -> Gate {
    let one = |number: usize| format!("[servers.tools-{number}]\ncommand = FIXTURE\n");
    let gate = Gate::new(&(1..=servers).map(one).collect::<String>());
    let session = session_of(&gate, "planner", None);
    for tool in ["tools-1__pid", "tools-1__echo", "tools-1__die"] {
        gate.legacy(&session, &call(1, tool, &json!({})));
    }
    gate
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn one_server_is_shown_light_and_dark_wide_and_narrow() {
    let gate = busy(1);
    let mut tab = opened(&gate);
    fits(&mut tab);
    let shown = text(&mut tab, "#main");
    for part in [
        "1 of 1",
        "tools-1",
        "fixture 1, 12 tools",
        "stdio",
        "planner 1.5",
        "lost last:",
        "restart 1: ready after",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let ended = text(&mut tab, "#ended");
    for part in ["pid", "ok", "echo", "arguments invalid", "die", "next step:"] {
        assert!(ended.contains(part), "{part}: {ended}");
    }
    tab.value("document.getElementById('only-failed').click()");
    let rows = "document.querySelectorAll('#ended tbody tr').length";
    assert_eq!(tab.value(rows), 2);
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn fifty_servers_are_shown_light_and_dark_wide_and_narrow() {
    let gate = busy(50);
    let mut tab = opened(&gate);
    tab.wait("document.querySelectorAll('#servers tbody').length === 50");
    fits(&mut tab);
    assert!(text(&mut tab, "#sums").contains("50 of 50"));
    // The log of one of them.
    tab.value("document.getElementById('of').value = 'tools-7'");
    tab.value("document.getElementById('of').dispatchEvent(new Event('change'))");
    let of = "[...new Set([...document.querySelectorAll('#log p')].map(line => line.children[1].textContent))].join()";
    assert_eq!(tab.value(of), "tools-7");
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn words_of_servers_and_clients_stay_words() {
    let long = "x".repeat(3000);
    let tall = "a\u{301}\u{302}\u{303}\u{304}\u{305}\u{306}\u{307}\u{308}".repeat(30);
    let crib_file = |name: &str, text: &str| format!("cat > {name} <<'EOF'\n{text}\nEOF\n");
    let said = format!("{HOSTILE}\n\u{202e}backwards \u{1b}[2J\n{long}\n{tall}");
    let tools = format!("{}\n{}", HOSTILE.replace(' ', "\u{a0}"), "y".repeat(400));
    let script = format!(
        "{}{}cat said >&2; exec {} extra=tools",
        crib_file("said", &said),
        crib_file("tools", &tools),
        crate::support::FIXTURE
    );
    let name = "s".repeat(64);
    let gate =
        Gate::new(&format!("[servers.{name}]\ncommand = \"/bin/sh\"\nargs = [\"-c\", {}]\n", json!(script)));
    let hostile = format!("\u{202e}{HOSTILE}{long}");
    let session = session_of(&gate, &hostile, None);
    let listed = gate.legacy(&session, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).json();
    let tools: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    for tool in &tools[tools.len() - 2..] {
        gate.legacy(&session, &call(2, tool, &json!({})));
    }
    // Another one asks for what no server has.
    let path = format!("/mcp/{name}");
    let other = gate.session(&path, "2025-11-25");
    let odd = json!({"jsonrpc": "2.0", "id": 3, "method": format!("{HOSTILE}{long}")});
    gate.ask(
        &format!("POST {path}"),
        &[&JSON[..], &[("Mcp-Session-Id", &*other)]].concat(),
        &odd.to_string(),
    );
    let mut tab = opened(&gate);
    fits(&mut tab);
    assert_eq!(tab.value("document.title"), "toolcrib gateway");
    let foreign = "document.querySelectorAll('img').length + document.scripts.length - 1";
    assert_eq!(tab.value(foreign), 0);
    for place in ["#clients", "#ended", "#log"] {
        let shown = text(&mut tab, place);
        assert!(shown.contains("<img") && !shown.contains(['\u{202e}', '\u{1b}']), "{place}: {shown}");
    }
    let longest = live(&gate, None, "").to_string().split('"').map(str::len).max().unwrap();
    assert!(longest < 1100, "a text of {longest} bytes");
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn an_open_page_shows_a_server_die_and_come_back() {
    let gate = Gate::new(&talks());
    let session = session_of(&gate, "caller", None);
    let mut tab = opened(&gate);
    assert!(text(&mut tab, "#sums").contains("1 of 1"));
    let first = tab.value("document.querySelector('#servers tbody td:nth-child(10)').innerText");
    std::fs::write(gate.crib.folder().join("gone"), "").unwrap();
    gate.legacy(&session, &call(1, "talks__die", &json!({})));
    tab.wait("document.querySelector('#sums').innerText.includes('0 of 1')");
    tab.wait("document.querySelector('#servers .why.down')?.innerText.includes('the database is gone')");
    std::fs::remove_file(gate.crib.folder().join("gone")).unwrap();
    tab.wait("document.querySelector('#sums').innerText.includes('1 of 1')");
    tab.wait("document.querySelector('#servers .why').innerText.includes('lost last:')");
    let second = tab.value("document.querySelector('#servers tbody td:nth-child(10)').innerText");
    assert_ne!(first, second, "another process");
    assert!(text(&mut tab, "#ended").contains("die") && text(&mut tab, "#log").contains("restart 1: ready"));
    fits(&mut tab);
    // Hidden it asks for nothing, and goes on when it is seen again.
    let hide = |hidden: bool| {
        format!(
            "Object.defineProperty(document, 'hidden', {{ get: () => {hidden}, configurable: true }});
            document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    let asked = "performance.getEntriesByType('resource').length";
    tab.value(&hide(true));
    tab.value("window.before = null; setTimeout(() => { window.before = performance.getEntriesByType('resource').length; }, 1500)");
    tab.wait("window.before !== null");
    tab.value("window.later = null; setTimeout(() => { window.later = performance.getEntriesByType('resource').length; }, 2500)");
    tab.wait("window.later !== null");
    assert_eq!(tab.value("window.later - window.before"), 0);
    tab.value(&hide(false));
    tab.wait(&format!("{asked} > window.later"));
    // And its own end.
    drop(gate);
    tab.wait("document.getElementById('state').textContent === 'not reached'");
    assert!(text(&mut tab, "#note").contains("does not answer"));
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn a_page_asks_for_the_token_once() {
    let gate = Gate::with(FIXTURE, &["--token-env", "GATE_TOKEN"]);
    let mut tab = Tab::open(&page(&gate));
    let asks = "!document.getElementById('login').hidden && document.getElementById('main').hidden";
    let give = |tab: &mut Tab, token: &str| {
        tab.value(&format!("document.getElementById('token').value = {}", json!(token)));
        tab.value("document.getElementById('login').requestSubmit()");
    };
    tab.wait(asks);
    assert!(!text(&mut tab, "body").contains("fix"), "nothing is shown");
    for wrong in ["gate-token-012345678X", "grüße \u{1f600}"] {
        give(&mut tab, wrong);
        tab.wait("document.getElementById('note').innerText.includes('does not know this token')");
        tab.wait(asks);
    }
    give(&mut tab, "gate-token-0123456789");
    tab.wait("document.getElementById('state').textContent === 'live'");
    assert!(text(&mut tab, "#servers").contains("fix"));
    // Again in this tab, and not at an address or in a cookie.
    tab.value("location.reload()");
    tab.wait(
        "document.readyState === 'complete' && document.getElementById('state')?.textContent === 'live'",
    );
    assert_eq!(tab.value("document.cookie + location.href"), page(&gate));
    fits(&mut tab);
}
