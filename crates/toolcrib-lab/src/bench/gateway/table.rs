//! The rows of `toolcrib-lab bench gateway`, as a table and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::{LEAST_RATE, MOST_ADDED};
use crate::ui::{Ui, micros};

/// The names of our own gateways begin so.
const OWN: &str = "toolcrib";

/// One way to the server.
pub(super) struct Row {
    pub(super) gateway: String,
    pub(super) how: String,
    pub(super) calls: usize,
    /// The median with one caller.
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// The time that is added to the median of the floor.
    pub(super) added: Duration,
    /// Calls a second with all callers.
    pub(super) rate: f64,
    pub(super) p99_together: Duration,
}

/// Fills in what each row adds to the first one, which is the floor.
pub(super) fn compare(rows: &mut [Row]) {
    let floor = rows.first().map_or(Duration::ZERO, |row| row.p50);
    for row in rows.iter_mut().skip(1) {
        row.added = row.p50.saturating_sub(floor);
    }
}

/// Our own row of the same transport and era, or else of the same transport.
fn own<'a>(rows: &'a [Row], peer: &Row) -> Option<&'a Row> {
    let own = || rows.iter().filter(|row| row.gateway.starts_with(OWN));
    let transport = |row: &Row| row.how.split(' ').next().map(ToOwned::to_owned);
    own().find(|row| row.how == peer.how).or_else(|| own().find(|row| transport(row) == transport(peer)))
}

pub(super) fn print(callers: usize, rows: &[Row], failures: &[(String, String)]) {
    Ui::data(format!(
        "added: to the median of a direct call; x: as multiples of toolcrib's row of the same transport\n\
         {:<36} {:<16} {:>8} {:>9} {:>9} {:>9} {:>8} {:>12} {:>9} {:>8}",
        "gateway",
        "transport",
        "calls",
        "p50",
        "added",
        "p99",
        "x added",
        format!("calls/s ({callers})"),
        "p99",
        "x calls/s"
    ));
    for row in rows {
        let own = own(rows, row).filter(|own| !std::ptr::eq(*own, row) && row.added > Duration::ZERO);
        let times = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.1}"));
        let added = own.map(|own| row.added.as_secs_f64() / own.added.as_secs_f64().max(f64::MIN_POSITIVE));
        let rate = own.map(|own| row.rate / own.rate.max(f64::MIN_POSITIVE));
        Ui::data(format!(
            "{:<36} {:<16} {:>8} {:>9} {:>9} {:>9} {:>8} {:>12.0} {:>9} {:>8}",
            row.gateway,
            row.how,
            row.calls,
            micros(row.p50),
            micros(row.added),
            micros(row.p99),
            times(added),
            row.rate,
            micros(row.p99_together),
            rate.map_or(String::new(), |rate| format!("{rate:.2}")),
        ));
    }
    for (gateway, why) in failures {
        Ui::data(format!("{gateway:<36} not measured: {why}"));
    }
}

pub(super) fn document(callers: usize, rows: &[Row], failures: &[(String, String)]) -> Value {
    let us = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({"gateway": row.gateway, "transport": row.how, "calls": row.calls,
                "one_caller_us": {"p50": us(row.p50), "p99": us(row.p99), "added": us(row.added)},
                "all_callers": {"calls_per_second": row.rate.round(), "p99_us": us(row.p99_together)}})
        })
        .collect();
    let failures: Vec<Value> =
        failures.iter().map(|(gateway, why)| json!({"gateway": gateway, "why": why})).collect();
    json!({"schema": 1, "callers": callers, "rows": rows, "not_measured": failures})
}

/// Promises of toolcrib that these rows do not keep, and gateways that were not measured, one line each.
pub(super) fn missed(rows: &[Row], failures: &[(String, String)]) -> Vec<String> {
    // A peer that was not measured is not known to be behind.
    let mut missed: Vec<String> = failures.iter().map(|(gateway, why)| format!("{gateway}: {why}")).collect();
    for row in rows.iter().filter(|row| row.gateway.starts_with(OWN)) {
        if row.added >= MOST_ADDED {
            missed.push(format!("{} ({}) adds {}", row.gateway, row.how, micros(row.added)));
        }
        if row.rate < LEAST_RATE {
            missed.push(format!("{} ({}) answers {:.0} calls a second", row.gateway, row.how, row.rate));
        }
    }
    for peer in rows.iter().skip(1).filter(|row| !row.gateway.starts_with(OWN)) {
        if let Some(own) = own(rows, peer)
            && (own.added >= peer.added || own.rate <= peer.rate)
        {
            missed.push(format!("{} ({}) is not behind", peer.gateway, peer.how));
        }
    }
    missed
}
