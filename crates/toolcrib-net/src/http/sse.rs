//! Parses server-sent events from chunks of any size.
//!
//! Our own and not a crate's, for what model servers do beside the standard: llama.cpp writes `error: {...}` as a
//! field, some end without the last blank line. The parsers at hand drop both, and wrap the stream in place of being
//! fed.

use std::{mem, time::Duration};

use memchr::memchr2;

/// The longest id of an event that is kept: it is sent back in a header.
const MAX_ID: usize = 4096;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The field that carried the data was `error`.
    pub failed: bool,
    /// Its type, if it has one.
    pub name: Option<String>,
    /// Its lines of data, joined.
    pub data: String,
}

/// Takes bytes, gives events. Holds at most one event that is not complete.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    event: Option<Event>,
    /// The type of the event that is not complete.
    name: Option<String>,
    /// The last byte was a carriage return: a line feed now belongs to it.
    returned: bool,
    /// A line was read: there is no byte order mark any more.
    begun: bool,
    /// The id of the event that is not complete.
    next_id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
}

impl Parser {
    /// Reads on; complete events go to `events`.
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) {
        while !bytes.is_empty() {
            if mem::take(&mut self.returned) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                return self.line.extend_from_slice(bytes);
            };
            self.line.extend_from_slice(&bytes[..end]);
            self.returned = bytes[end] == b'\r';
            events.extend(self.end_of_line());
            bytes = &bytes[end + 1..];
        }
    }

    /// The stream is over: an event that lacks only its blank line is one.
    pub fn end(mut self) -> Option<Event> {
        if !self.line.is_empty() {
            self.end_of_line();
        }
        self.event
    }

    /// Takes the last event like [`Parser::end`], and keeps the id at which the stream goes on: that event does not change it.
    pub fn take_rest(&mut self) -> Option<Event> {
        if !self.line.is_empty() {
            self.end_of_line();
        }
        let name = self.name.take();
        self.event.take().map(|event| Event { name, ..event })
    }

    /// Bytes of the event that is not complete.
    pub fn held(&self) -> usize {
        self.line.len() + self.event.as_ref().map_or(0, |event| event.data.len())
    }

    /// The id of the last event that was complete, to go on after it.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref().filter(|id| !id.is_empty())
    }

    /// How long to wait before the stream is asked for again, as the server says.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn end_of_line(&mut self) -> Option<Event> {
        let line = mem::take(&mut self.line);
        // The line is complete, so no character is cut here.
        let line = String::from_utf8_lossy(&line);
        let line =
            if mem::replace(&mut self.begun, true) { &*line } else { line.trim_start_matches('\u{feff}') };
        if line.is_empty() {
            self.last_id = self.next_id.take().or(self.last_id.take());
            let name = self.name.take();
            return self.event.take().map(|event| Event { name, ..event });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        // No field begins so: some write an error, or every piece, as a line of JSON alone.
        let (field, value) = if line.starts_with('{') { ("data", line) } else { (field, value) };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" | "error" => {
                match &mut self.event {
                    Some(event) => {
                        event.data.push('\n');
                        event.data.push_str(value);
                    }
                    None => self.event = Some(Event { data: value.to_owned(), ..Event::default() }),
                }
                if field == "error" {
                    self.event.get_or_insert_default().failed = true;
                }
            }
            "event" => self.name = Some(value.to_owned()).filter(|name| !name.is_empty()),
            "id" if value.len() <= MAX_ID && !value.contains('\0') => self.next_id = Some(value.to_owned()),
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis).or(self.retry);
            }
            // Comments have an empty field.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for piece in pieces {
            parser.feed(piece, &mut events);
        }
        events.extend(parser.end());
        events
    }

    fn data(text: &str) -> Vec<String> {
        parse([text.as_bytes()]).into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn every_syntax_of_events_is_read() {
        for (text, expected) in [
            ("data: a\n\ndata: b\n\n", &["a", "b"][..]),
            ("data:a\r\n\r\ndata:  b\r\n\r\n", &["a", " b"]),
            ("data: a\r\rdata: b\r\r", &["a", "b"]),
            (": ping\n\n\n\ndata: a\n\n: pong\n", &["a"]),
            ("event: x\nid: 7\nretry: 9\ndata: a\n\n", &["a"]),
            ("event: only\n\n", &[]),
            ("data: a\ndata: b\n\n", &["a\nb"]),
            ("data\n\n", &[""]),
            ("\u{feff}data: ä€\n\n", &["ä€"]),
            ("data: [DONE]", &["[DONE]"]),
            ("data: a\n\n{\"error\": \"b\"}", &["a", "{\"error\": \"b\"}"]),
            ("data: a\n", &["a"]),
            ("", &[]),
        ] {
            assert_eq!(data(text), expected, "{text:?}");
        }
        let failed = parse([b"error: {\"code\":500}\n\n".as_slice()]);
        assert_eq!(failed, [Event { failed: true, name: None, data: "{\"code\":500}".into() }]);
    }

    #[test]
    fn a_stream_says_how_it_goes_on() {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        parser.feed(b"event: endpoint\nid: 1\nretry: 500\ndata: x\n\nid: 2\n", &mut events);
        assert_eq!(events, [Event { failed: false, name: Some("endpoint".into()), data: "x".into() }]);
        assert_eq!((parser.last_id(), parser.retry()), (Some("1"), Some(Duration::from_millis(500))));
        parser.feed(b"data: y\nretry: soon\n", &mut events);
        assert_eq!(parser.held(), 1);
        // An event without data counts, too.
        parser.feed(b"\nid: 3\n\nretry: 7\n\n", &mut events);
        assert_eq!((events[1].name.as_deref(), parser.held()), (None, 0));
        assert_eq!((parser.last_id(), parser.retry()), (Some("3"), Some(Duration::from_millis(7))));
        parser.feed(b"id\n\n", &mut events);
        assert_eq!(parser.last_id(), None);
        parser.feed(b"event: x\nid: 9\ndata: z", &mut events);
        let rest = parser.take_rest().unwrap();
        assert_eq!((rest.name.as_deref(), &*rest.data), (Some("x"), "z"));
        assert_eq!(parser.take_rest(), None);
        assert_eq!(parser.last_id(), None);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            text in "([a-cä€\u{1F600}:]{0,4}|data:|data: |error: |event: e|\n|\r|\r\n|\n\n|\r\n\r\n){0,40}",
            cuts in prop::collection::vec(0_usize..200, 0..12),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
            prop_assert_eq!(parse(pieces), parse([bytes]));
        }
    }
}
