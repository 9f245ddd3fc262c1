//! Pages of `toolcrib view` under the keys of a person, and on paper.

use serde_json::{Value, json};

use super::view::{View, many, view, whole};
use crate::support::{browser::Tab, program::Bench};

/// Which row is marked; -1 for none.
const HERE: &str = "[...document.querySelectorAll('#table tbody tr, #runs tbody tr')]
    .findIndex(row => row.classList.contains('here'))";

/// The pages of two runs.
fn two_runs() -> (Bench, View) {
    let bench = Bench::new("");
    many(&bench, "aaa", 3);
    many(&bench, "ten", 10);
    let view = view(&bench);
    whole(&view, "ten");
    whole(&view, "aaa");
    (bench, view)
}

fn here(tab: &mut Tab) -> Value {
    tab.value(HERE)
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn keys_lead_from_the_list_to_a_run() {
    let (_bench, view) = two_runs();
    let mut tab = Tab::open(&view.address);
    assert_eq!(here(&mut tab), -1);
    for (key, row) in [("k", 0), ("j", 1), ("j", 1), ("k", 0), ("j", 1)] {
        tab.press(key, 0);
        assert_eq!(here(&mut tab), row, "after {key}");
    }
    let run = tab.value("document.querySelectorAll('#runs tbody tr')[1].querySelector('input').value");
    tab.press("Enter", 0);
    tab.wait(&format!("location.pathname.endsWith('/run/{}/')", run.as_str().unwrap()));
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn keys_lead_through_the_tasks_of_a_run() {
    let (_bench, view) = two_runs();
    let mut tab = Tab::open(&format!("{}run/ten/", view.address));
    tab.wait("document.querySelectorAll('#table tbody tr').length === 10");
    let task = |tab: &mut Tab| tab.value("decodeURIComponent(location.hash.slice(1))");
    let name = |tab: &mut Tab, row: u32| {
        let link = format!("document.querySelectorAll('#table tbody tr')[{row}].querySelector('a')");
        tab.value(&format!("decodeURIComponent({link}.hash.slice(1))"))
    };
    let names: Vec<Value> = (0..3).map(|row| name(&mut tab, row)).collect();

    // With Ctrl it is a key of the browser.
    tab.press("j", 2);
    assert_eq!(here(&mut tab), -1);
    for key in ["j", "j", "k"] {
        tab.press(key, 0);
    }
    assert_eq!((here(&mut tab), task(&mut tab)), (json!(0), json!("")));
    tab.press("Enter", 0);
    tab.wait("document.getElementById('list').hidden && !!document.querySelector('#detail h2')");
    assert_eq!(task(&mut tab), names[0]);

    // From task to task.
    for (key, row) in [("j", 1), ("j", 2), ("k", 1)] {
        tab.press(key, 0);
        let id = names[row].as_str().unwrap().strip_prefix("task/").unwrap();
        tab.wait(&format!("document.getElementById('detail').textContent.includes({})", json!(id)));
        assert_eq!(task(&mut tab), names[row], "after {key}");
    }
    tab.press("Escape", 0);
    tab.wait("!document.getElementById('list').hidden && document.getElementById('detail').hidden");
    assert_eq!((here(&mut tab), task(&mut tab)), (json!(1), json!("")));

    // What is typed into the search is no key.
    tab.value("document.getElementById('text').focus()");
    for key in ["j", "k"] {
        tab.press(key, 0);
    }
    assert_eq!(tab.value("document.getElementById('text').value"), "jk");
    tab.wait("document.querySelectorAll('#table tbody tr').length === 0");
    tab.press("Escape", 0);
    assert_eq!(tab.value("document.activeElement === document.body"), true);
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn printed_pages_are_white_and_fit_the_paper() {
    let (_bench, view) = two_runs();
    for (page, ready, left_out) in [
        ("", "document.querySelectorAll('#runs tbody tr').length === 2", "compare"),
        ("run/ten/", "document.querySelectorAll('#table tbody tr').length === 10", "work"),
        ("run/ten/#task/set%2F00001", "!!document.querySelector('#detail h2')", "list"),
    ] {
        let mut tab = Tab::open(&format!("{}{page}", view.address));
        tab.wait(ready);
        tab.as_printed();
        let wide = "Math.max(0, document.scrollingElement.scrollWidth - innerWidth)";
        assert_eq!(tab.value(wide), 0, "{page}");
        let paper = tab.value("getComputedStyle(document.body).backgroundColor");
        let text = tab.value("getComputedStyle(document.body).color");
        assert_eq!((paper, text), (json!("rgb(255, 255, 255)"), json!("rgb(0, 0, 0)")), "{page}");
        let shown = format!("document.getElementById('{left_out}').getClientRects().length");
        assert_eq!(tab.value(&shown), 0, "{page}: {left_out}");
    }
}
