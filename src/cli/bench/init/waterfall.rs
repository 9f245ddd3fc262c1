//! Draws one start as text: a row for each server in configuration order, its phases as letters to scale.

use std::time::Duration;

use toolcrib::{
    cli_support::{
        cut,
        page::start_chart::{Bar, End, Picture, label},
    },
    session::Phases,
};

use super::table::time;

/// Columns of a line, labels included.
const WIDTH: usize = 100;
const LONGEST_NAME: usize = 20;
/// Columns after a bar.
const LABEL: usize = 22;

/// The meaning of the letters; that of templates only where a server has waited for one.
fn legend(with_templates: bool) -> String {
    let template = if with_templates { "  t template" } else { "" };
    format!(
        "a row per server: . queue{template}  s spawn  b until its first byte  h handshake  l tool list  x failed"
    )
}

pub(super) fn lines(picture: &Picture) -> Vec<String> {
    let names = picture.servers.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
    let names = names.min(LONGEST_NAME);
    let scale = Scale { columns: WIDTH - names - 2 - LABEL, wall: picture.wall_ms.max(0.001) };
    let mut lines = vec![legend(picture.has_templates())];
    for bar in &picture.servers {
        let name = cut(&bar.name, names);
        let letters = scale.letters(bar);
        let line = format!("{name:<names$} {letters} ");
        let room = WIDTH - line.chars().count();
        lines.push(format!("{line}{}", cut(&label(bar), room)));
    }
    let last = picture.last.as_ref().map_or_else(String::new, |name| format!(", set by {name}"));
    lines.push(format!("{:names$} all ready at {}{last}", "", time(Some(picture.wall_ms))));
    lines
}

struct Scale {
    columns: usize,
    wall: f64,
}

impl Scale {
    /// The column in which a point in time lies.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of the columns, and they are few"
    )]
    fn column(&self, millis: f64) -> usize {
        ((millis / self.wall * self.columns as f64).round().max(0.0) as usize).min(self.columns)
    }

    /// Up to the end of the bar, which has at least one letter of its own.
    fn letters(&self, bar: &Bar) -> String {
        let mut text = String::new();
        let mut until = |letter: char, millis: f64| {
            let width = self.column(millis).saturating_sub(text.len());
            text.extend(std::iter::repeat_n(letter, width));
        };
        until('.', bar.queue_ms);
        match &bar.end {
            End::Parked { .. } => return text,
            End::Failed { .. } => until('x', bar.ended_ms),
            End::Ready { phases_ms, .. } => {
                for (letter, end) in ends(phases_ms) {
                    until(letter, end);
                }
            }
        }
        if text.chars().all(|letter| letter == '.') {
            text.push(match &bar.end {
                End::Ready { phases_ms, .. } => longest(phases_ms),
                _ => 'x',
            });
        }
        text
    }
}

/// When each phase of its own ended, from the beginning of the whole start.
fn ends(phases: &Phases) -> impl Iterator<Item = (char, f64)> {
    let mut at = phases.queue;
    own(phases).into_iter().map(move |(letter, took)| {
        at += took;
        (letter, crate::cli::terminal::ui::millis(at))
    })
}

fn own(phases: &Phases) -> [(char, Duration); 5] {
    let template = ('t', phases.template);
    [template, ('s', phases.spawn), ('b', phases.first_byte), ('h', phases.handshake), ('l', phases.list)]
}

fn longest(phases: &Phases) -> char {
    own(phases).into_iter().max_by_key(|(_, took)| *took).map_or('s', |(letter, _)| letter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn picture(servers: &serde_json::Value) -> Picture {
        serde_json::from_value(json!({"wall_ms": 1000.0, "last": "slow", "servers": servers})).unwrap()
    }

    fn ready(name: &str, queue: f64, spawn: f64, first_byte: f64, list: f64) -> serde_json::Value {
        let ended = queue + spawn + first_byte + list;
        json!({"name": name, "ended_ms": ended, "queue_ms": queue, "end": {"ready": {"tools": 2, "phases_ms":
            {"queue": queue, "spawn": spawn, "first_byte": first_byte, "handshake": 0.0, "list": list}}}})
    }

    #[test]
    fn bars_are_to_scale_and_labelled() {
        let failed = json!({"name": "gone", "ended_ms": 500.0, "queue_ms": 250.0,
            "end": {"failed": {"cause": "no such program\nsecond line"}}});
        let parked =
            json!({"name": "later", "ended_ms": 0.1, "queue_ms": 0.0, "end": {"parked": {"tools": 7}}});
        let servers = json!([
            ready("slow", 0.0, 500.0, 250.0, 250.0),
            ready("brief", 1.0, 0.5, 0.2, 0.1),
            failed,
            parked
        ]);
        let lines = lines(&picture(&servers));
        // 100 columns less a name of 5, two blanks and the label.
        let part = |letter: &str, times: usize| letter.repeat(times);
        assert_eq!(
            lines[1],
            format!("slow  {}{}{} 1.00s, 2 tools", part("s", 36), part("b", 17), part("l", 18))
        );
        assert_eq!(lines[2], "brief s 0.00s, 2 tools");
        assert_eq!(
            lines[3],
            format!("gone  {}{} 0.50s failed: no such program", part(".", 18), part("x", 18))
        );
        assert_eq!(lines[4], "later  not started, 7 tools");
        assert_eq!(lines[5], "      all ready at 1.00s, set by slow");
    }

    #[test]
    fn a_wait_for_a_template_has_a_letter_of_its_own() {
        let mut server = ready("slow", 0.0, 250.0, 250.0, 0.0);
        server["end"]["ready"]["phases_ms"]["template"] = 500.0.into();
        server["ended_ms"] = 1000.0.into();
        let told = lines(&picture(&json!([server])));
        assert!(told[0].contains(". queue  t template  s spawn"), "{}", told[0]);
        let bar = format!("slow {}{}{} 1.00s", "t".repeat(36), "s".repeat(18), "b".repeat(18));
        assert!(told[1].starts_with(&bar), "{}", told[1]);
        assert!(!lines(&picture(&json!([ready("slow", 0.0, 1.0, 1.0, 1.0)])))[0].contains("template"));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let long = "x".repeat(60);
        let failed =
            json!({"name": long, "ended_ms": 1000.0, "queue_ms": 0.0, "end": {"failed": {"cause": long}}});
        let servers = json!([ready(&long, 0.0, 999.0, 0.5, 0.5), failed]);
        for line in lines(&picture(&servers)) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
