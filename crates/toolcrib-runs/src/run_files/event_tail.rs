//! Where the `events.jsonl` of an interrupted run ends.

use std::{io, path::Path, time::Duration};

use super::EventLine;
use crate::{bounded::BoundedLines, duration::nanos};

/// Longest line: 64 MiB.
const LONGEST: u64 = 64 << 20;

/// How many bytes of the file are whole lines, and the last of these.
pub(super) fn whole_lines(path: &Path) -> io::Result<(u64, Option<EventLine>)> {
    let mut lines = BoundedLines::open(path, LONGEST)?;
    let (mut whole, mut last) = (0, Vec::new());
    while let Some((_, line)) = lines.next_line()?.filter(|(_, line)| line.ends_with(b"\n")) {
        whole += line.len() as u64;
        last.clear();
        last.extend_from_slice(line);
    }
    Ok((whole, serde_json::from_slice(&last).ok()))
}

/// Nanoseconds from the beginning of the run until now, as lines have them. The time until the last line counts alone if
/// the clock was set back since.
pub(super) fn time_since(last: Option<&EventLine>) -> u64 {
    let Some(last) = last else { return 0 };
    let Ok(at) = last.at.parse::<jiff::Timestamp>() else { return last.ns };
    last.ns + nanos(Duration::try_from(jiff::Timestamp::now().duration_since(at)).unwrap_or_default())
}
