//! `time`: the current time, conversion between zones, difference between zones. The zone database is in the binary.

use jiff::{Timestamp, Zoned, civil, tz::TimeZone};
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Outcome, Output, arguments, tool};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Now {
    /// IANA time zone, for instance `Europe/Berlin`. Default: UTC.
    #[serde(default)]
    time_zone: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Convert {
    /// Date and time such as `2026-11-20T14:30`, or a time of today such as `14:30`.
    time: String,
    /// IANA time zone of that time.
    from_zone: String,
    /// IANA time zone wanted.
    to_zone: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// First IANA time zone.
    from_zone: String,
    /// Second IANA time zone.
    to_zone: String,
    /// The moment asked about, in UTC, such as `2026-07-01T00:00`. Default: now.
    #[serde(default)]
    at: Option<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool::<Now>("now", "The current date and time in a time zone."),
        tool::<Convert>("convert", "Convert a time from one time zone to another."),
        tool::<Difference>(
            "difference",
            "How many hours the clocks of a second time zone are ahead of those of a first one.",
        ),
    ]
}

pub(super) fn run(name: &str, given: Map<String, Value>) -> Option<Outcome> {
    match name {
        "now" => Some(arguments(given).and_then(|given| now(&given))),
        "convert" => Some(arguments(given).and_then(|given| convert(&given))),
        "difference" => Some(arguments(given).and_then(|given| difference(&given))),
        _ => None,
    }
}

fn now(given: &Now) -> Outcome {
    let zone = zone(given.time_zone.as_deref().unwrap_or("UTC"))?;
    Ok(Output::Data(describe(&Timestamp::now().to_zoned(zone))))
}

fn convert(given: &Convert) -> Outcome {
    let (from, to) = (zone(&given.from_zone)?, zone(&given.to_zone)?);
    let civil = date_time(&given.time, &from)?;
    let ambiguous = from.to_ambiguous_zoned(civil);
    let note = match ambiguous.offset() {
        jiff::tz::AmbiguousOffset::Unambiguous { .. } => None,
        jiff::tz::AmbiguousOffset::Gap { .. } => {
            Some("this time does not exist there: the clocks were put forward; taken as the time after")
        }
        jiff::tz::AmbiguousOffset::Fold { .. } => {
            Some("this time happens twice there: the clocks were put back; taken as the first one")
        }
    };
    let source = ambiguous.compatible().map_err(|error| error.to_string())?;
    let target = source.with_time_zone(to);
    let mut answer = json!({"from": describe(&source), "to": describe(&target)});
    if let Some(note) = note {
        answer["note"] = note.into();
    }
    Ok(Output::Data(answer))
}

fn difference(given: &Difference) -> Outcome {
    let (from, to) = (zone(&given.from_zone)?, zone(&given.to_zone)?);
    let at = match &given.at {
        None => Timestamp::now(),
        Some(at) => date_time(at, &TimeZone::UTC)?
            .to_zoned(TimeZone::UTC)
            .map_err(|error| error.to_string())?
            .timestamp(),
    };
    let seconds = to.to_offset(at).seconds() - from.to_offset(at).seconds();
    let (hours, minutes) = (seconds.abs() / 3600, seconds.abs() % 3600 / 60);
    let sign = if seconds < 0 { '-' } else { '+' };
    Ok(Output::Data(json!({
        "at": at.to_string(), "from_zone": given.from_zone, "to_zone": given.to_zone,
        "difference": format!("{sign}{hours:02}:{minutes:02}"), "hours": f64::from(seconds) / 3600.0,
    })))
}

fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| {
        format!("there is no time zone `{name}`: use an IANA name such as `Europe/Berlin` or `UTC`")
    })
}

fn date_time(text: &str, zone: &TimeZone) -> Result<civil::DateTime, String> {
    let text = text.trim();
    if let Ok(time) = text.parse::<civil::DateTime>() {
        return Ok(time);
    }
    let today = || Timestamp::now().to_zoned(zone.clone()).date();
    text.parse::<civil::Time>()
        .map(|time| today().to_datetime(time))
        .map_err(|_| format!("`{text}` is not a time: write `2026-11-20T14:30` or `14:30`"))
}

fn describe(time: &Zoned) -> Value {
    json!({
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        "time_zone": time.time_zone().iana_name().unwrap_or("UTC"),
        "weekday": time.strftime("%A").to_string(),
        "unix_seconds": time.timestamp().as_second(),
        "is_dst": time.time_zone().to_offset_info(time.timestamp()).dst().is_dst(),
    })
}
