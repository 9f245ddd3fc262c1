//! Tests the figures against those of published packages: `tests/reference/figures.py` has made the table.

use serde::Deserialize;
use serde_json::Value;

use super::*;
use crate::{
    score::PassRate,
    task::{Task, TaskReport},
};

#[derive(Deserialize)]
struct Table {
    runs: Vec<Run>,
    intervals: Vec<Interval>,
}

/// The judged samples of each task: number, whether it passed, its answer.
#[derive(Deserialize)]
struct Run {
    k: u32,
    samples: Vec<Vec<(u32, u32, Option<String>)>>,
    expected: Value,
}

#[derive(Deserialize)]
struct Interval {
    passed: usize,
    judged: usize,
    low: f64,
    high: f64,
}

fn table() -> Table {
    serde_json::from_str(include_str!("reference.json")).unwrap()
}

fn report(task: usize, sample: u32, status: Outcome, answer: Option<&str>) -> TaskReport {
    let mut report = TaskReport::begin(&Task::question(task.to_string(), "?"));
    (report.sample, report.status) = (sample, status);
    report.score = Some(if status == Outcome::Passed { 1.0 } else { 0.0 });
    report.answer_group = answer.map(str::to_owned);
    report
}

/// Whether two documents are the same, with numbers compared as numbers.
fn assert_same(found: &Value, expected: &Value, place: &str) {
    match (found, expected) {
        (Value::Object(a), Value::Object(b)) => {
            assert_eq!(a.len(), b.len(), "{place}");
            b.iter().for_each(|(key, b)| assert_same(&a[key], b, &format!("{place}.{key}")));
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{place}");
            a.iter().zip(b).for_each(|(a, b)| assert_same(a, b, place));
        }
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() < 1e-9, "{place}: {a}, expected {b}");
        }
        _ => assert_eq!(found, expected, "{place}"),
    }
}

#[test]
fn figures_are_those_of_published_packages() {
    for run in table().runs {
        let mut counts = SampleCounts::new(NonZeroU32::new(run.k).unwrap());
        // Reports come in any order.
        for (task, samples) in run.samples.iter().enumerate().rev() {
            for (sample, passed, answer) in samples.iter().rev() {
                let status = if *passed == 1 { Outcome::Passed } else { Outcome::Failed };
                counts.add(&report(task, *sample, status, answer.as_deref()));
            }
        }
        let mut found = serde_json::to_value(counts.figures().unwrap()).unwrap();
        let members = found.as_object_mut().unwrap();
        let range = ["lowest", "highest"].map(|name| members.remove(name).unwrap().as_f64());
        if let [Some(lowest), Some(highest)] = range {
            assert!(lowest <= highest && (lowest < highest) == (found["deviation"].as_f64().unwrap() > 0.0));
        } else {
            assert_eq!((range, &found["deviation"]), ([None, None], &Value::Null));
        }
        assert_same(&found, &run.expected, &format!("k = {}", run.k));
    }
}

#[test]
fn the_lowest_and_the_highest_round_are_named() {
    let mut counts = SampleCounts::new(NonZeroU32::new(3).unwrap());
    let rounds =
        [(1, [Outcome::Passed, Outcome::Failed]), (2, [Outcome::Failed; 2]), (3, [Outcome::Passed; 2])];
    for (sample, statuses) in rounds {
        for (task, status) in statuses.into_iter().enumerate() {
            counts.add(&report(task, sample, status, None));
        }
    }
    let figures = counts.figures().unwrap();
    assert_eq!((figures.lowest, figures.highest), (Some(0.0), Some(1.0)));
}

#[test]
fn samples_until_the_first_pass_give_the_passed_tasks() {
    let mut counts = SampleCounts::new(NonZeroU32::new(4).unwrap()).until_pass(true);
    // The first task passes at once, the second one at its third sample, the third one never, the fourth one breaks.
    let runs: [&[Outcome]; 4] = [
        &[Outcome::Passed],
        &[Outcome::Failed, Outcome::Failed, Outcome::Passed],
        &[Outcome::Failed; 4],
        &[Outcome::Failed, Outcome::Errored, Outcome::Errored, Outcome::Errored],
    ];
    for (task, statuses) in runs.into_iter().enumerate() {
        for (status, sample) in statuses.iter().zip(1..) {
            counts.add(&report(task, sample, *status, None));
        }
    }
    let figures = counts.figures().unwrap();
    let rates: Vec<(u32, f64, usize)> =
        figures.pass_at_k.iter().map(|rate| (rate.k, rate.value, rate.tasks)).collect();
    assert_eq!(rates, [(1, 0.25, 4), (2, 1.0 / 3.0, 3), (4, 2.0 / 3.0, 3)]);
    assert_eq!((figures.mean, figures.pass_hat_k.len(), figures.majority), (0.25, 0, None));
}

#[test]
fn intervals_are_those_of_statsmodels() {
    for Interval { passed, judged, low, high } in table().intervals {
        let found = PassRate::new(passed, judged).unwrap();
        assert!((found.low - low).abs() < 1e-9 && (found.high - high).abs() < 1e-9, "{passed} of {judged}");
    }
}

#[test]
fn samples_that_were_not_judged_count_as_nothing() {
    let mut counts = SampleCounts::new(NonZeroU32::new(2).unwrap());
    assert_eq!(counts.figures(), None);
    for status in [Outcome::Errored, Outcome::Cancelled, Outcome::Unscored] {
        counts.add(&report(1, 1, status, Some("a")));
    }
    assert_eq!(counts.figures(), None);
    counts.add(&report(1, 2, Outcome::Passed, Some("a")));
    counts.add(&report(2, 1, Outcome::Failed, Some("b")));
    counts.add(&report(2, 2, Outcome::Passed, Some("a")));
    let figures = counts.figures().unwrap();
    let rates: Vec<(u32, f64, usize)> =
        figures.pass_at_k.iter().map(|rate| (rate.k, rate.value, rate.tasks)).collect();
    assert_eq!(rates, [(1, 0.75, 2), (2, 1.0, 1)]);
    let majority = figures.majority.unwrap();
    assert_eq!((majority.value, majority.ties), (0.75, 1));
}
