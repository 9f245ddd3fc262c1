//! Truncates a tool result that is over its limit, before it is decoded. The whole result goes to a file.
//!
//! A result may be as long as the longest line. Decoding all of it would cost many times its size in memory, so only
//! what stays is decoded; the rest is written to the file from the line itself. A note is part of what was cut, so that who reads
//! the first block, or the last one, reads what the tool has said.

use std::{
    fmt,
    io::{self, BufWriter, Write},
};

use memchr::memchr2;
use serde::{
    Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    again::{note_of, place_of},
    outputs::Outputs,
    shorten::shortened,
};
use crate::session::rpc::json_string;
use crate::{config::ServerConfig, json_rpc::RawObject, tool::ServerName};

/// Values of one message that are decoded: each takes about 200 bytes of memory, at any length.
pub(in crate::session) const MAX_VALUES: usize = 100_000;
/// Fields of a result that are not content, such as `_meta`, and longer than this are left out.
const MAX_FIELD: usize = 64 << 10;
/// Bytes that all those fields may have together.
const MAX_FIELDS: usize = 128 << 10;
/// Blocks of one result that get a note and a file of their own. What follows shares one.
const MAX_FILES: usize = 8;

/// Limits for the results of one server.
#[derive(Clone)]
pub(in crate::session) struct Truncator {
    /// Bytes of a result that are passed on.
    pub(in crate::session) limit: usize,
    pub(super) server: ServerName,
    pub(super) outputs: Outputs,
    /// The results were cut before: a note in them says where the whole is.
    pub(super) is_again: bool,
}

impl Truncator {
    pub(in crate::session) fn new(config: &ServerConfig, outputs: &Outputs) -> Self {
        let server = config.name.clone();
        Self { limit: config.max_output, server, outputs: outputs.clone(), is_again: false }
    }

    /// The result within the limit, as a JSON object; `None` if it is not a tool result. What is no object is content. Blocks
    /// while it writes.
    pub(in crate::session) fn cut(&self, result: &str) -> serde_json::Result<Option<String>> {
        let mut work = ResultTruncation {
            truncator: self,
            room: ByteBudget { bytes: self.limit, values: MAX_VALUES },
            fields: String::new(),
            other_fields: MAX_FIELDS,
            blocks: Vec::new(),
            files: 0,
            rest: None,
            left_out: None,
            is_tool_result: false,
        };
        if result.starts_with('{') {
            serde_json::Deserializer::from_str(result).deserialize_map(&mut work)?;
        } else {
            work.is_tool_result = true;
            work.content(result);
        }
        Ok(work.is_tool_result.then(|| work.finish()))
    }

    /// Keeps `write`'s output in a file and says where, or why not.
    fn keep(&self, ending: &str, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let kept = self.outputs.create(&self.server, ending).and_then(|(path, file)| {
            let mut file = BufWriter::new(file);
            write(&mut file)?;
            file.flush()?;
            Ok(path)
        });
        match kept {
            Ok(path) => format!("all of it is in {}", path.display()),
            Err(error) => format!("it could not be saved: {error}"),
        }
    }
}

/// Bytes and values that may still be passed on.
struct ByteBudget {
    bytes: usize,
    values: usize,
}

impl ByteBudget {
    /// Takes the room of a value of that length, if there is enough.
    fn take(&mut self, raw: &str, bytes: usize) -> bool {
        let values = if bytes <= self.bytes { weigh(raw.as_bytes()) } else { usize::MAX };
        let fits = values <= self.values;
        if fits {
            self.bytes -= bytes;
            self.values -= values;
        }
        fits
    }
}

/// Whether a result may have been cut: it has words of a note.
pub fn may_be_cut(result: &str) -> bool {
    ["[cut: ", "[left out: "]
        .iter()
        .any(|note| memchr::memmem::find(result.as_bytes(), note.as_bytes()).is_some())
}

/// About how many values a JSON text holds: its separators and openings outside of strings.
pub(in crate::session) fn weigh(json: &[u8]) -> usize {
    let (mut values, mut at) = (1, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at += 1 + end_of_string(&json[at + 1..]),
            b',' | b':' | b'[' | b'{' => values += 1,
            _ => {}
        }
        at += 1;
    }
    values
}

/// Where the quote is that ends the string which `rest` begins in; the length of `rest` if there is none.
pub(super) fn end_of_string(rest: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = memchr2(b'"', b'\\', &rest[at.min(rest.len())..]) {
        at += found;
        if rest[at] == b'"' {
            return at;
        }
        at += 2;
    }
    rest.len()
}

/// A result while it is cut.
struct ResultTruncation<'c> {
    truncator: &'c Truncator,
    room: ByteBudget,
    /// Everything but the content, as members of the object to come.
    fields: String,
    /// Bytes that those may still have that are not the protocol's content.
    other_fields: usize,
    blocks: Vec<Block>,
    files: usize,
    /// Blocks after those with files of their own: how many, and all of them, one a line.
    rest: Option<RestFile>,
    /// About a structured result that was left out.
    left_out: Option<String>,
    is_tool_result: bool,
}

/// A block of the content to come.
enum Block {
    /// The block as the server wrote it.
    Whole(String),
    /// A text of ours.
    Text(String),
}

struct RestFile {
    blocks: usize,
    bytes: usize,
    file: io::Result<(std::path::PathBuf, BufWriter<std::fs::File>)>,
}

/// The two parts of a content block that matter here.
#[derive(serde::Deserialize)]
struct ContentBlock<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

impl ResultTruncation<'_> {
    /// The blocks of a list, or the one that stands in its place.
    fn content(&mut self, raw: &str) {
        // A text of JSON that was accepted already has no errors.
        match raw.as_bytes().first() {
            Some(b'[') => {
                let _ = serde_json::Deserializer::from_str(raw).deserialize_seq(Blocks(self));
            }
            Some(b'"') => self.text(raw),
            _ if raw == "null" => {}
            _ => self.block(raw),
        }
    }

    /// A result within a result.
    fn legacy(&mut self, raw: &str) {
        #[derive(serde::Deserialize)]
        struct Inner<'a> {
            #[serde(borrow)]
            content: &'a RawValue,
        }
        match serde_json::from_str::<Inner<'_>>(raw) {
            Ok(Inner { content }) => self.content(content.get()),
            Err(_) => self.content(raw),
        }
    }

    /// A text that stands where a block should.
    fn text(&mut self, raw: &str) {
        self.block(&format!(r#"{{"type":"text","text":{raw}}}"#));
    }

    fn block(&mut self, raw: &str) {
        let block: Option<ContentBlock<'_>> = serde_json::from_str(raw).ok();
        let text = block.as_ref().filter(|block| block.kind.is_some_and(|kind| kind.get() == "\"text\""));
        let text = text.and_then(|block| block.text).map(RawValue::get).filter(|raw| raw.starts_with('"'));
        let bytes = text.map_or(raw.len(), json_string::length);
        if self.rest.is_none() && self.room.take(raw, bytes) {
            self.blocks.push(Block::Whole(raw.to_owned()));
        } else if self.files == MAX_FILES {
            self.put_aside(raw);
        } else if let Some(text) = text {
            self.files += 1;
            self.cut_text(text, bytes);
        } else {
            self.files += 1;
            let kind = block.and_then(|block| serde_json::from_str::<String>(block.kind?.get()).ok());
            let kind = kind.filter(|kind| kind.len() < 50).unwrap_or_else(|| "unknown".to_owned());
            let place = self.truncator.keep("json", |file| file.write_all(raw.as_bytes()));
            let limit = self.truncator.limit;
            self.note(&format!(
                "[left out: a block of kind {kind} with {bytes} bytes (limits: {limit} bytes, {MAX_VALUES} values); {place}]"
            ));
        }
    }

    /// Keeps as much of a text as fits, up to a whole character, and writes all of it to a file.
    fn cut_text(&mut self, raw: &str, bytes: usize) {
        let room = std::mem::take(&mut self.room.bytes);
        let mut shown = String::with_capacity(room);
        // Ends early, with an error that says only that.
        let _ = json_string::pieces(raw, |piece| {
            let mut end = piece.len().min(room - shown.len());
            while !piece.is_char_boundary(end) {
                end -= 1;
            }
            shown.push_str(&piece[..end]);
            if end < piece.len() { Err(()) } else { Ok(()) }
        });
        let kept = self.truncator.is_again.then(|| note_of(raw)).flatten();
        let (bytes, place) = kept.unwrap_or_else(|| {
            let keep =
                |file: &mut dyn Write| json_string::pieces(raw, |piece| file.write_all(piece.as_bytes()));
            (bytes, self.truncator.keep("txt", keep))
        });
        let count = shown.len();
        let line = if count == 0 { "" } else { "\n" };
        self.note(&format!("{shown}{line}[cut: {count} of {bytes} bytes are shown; {place}]"));
    }

    fn put_aside(&mut self, raw: &str) {
        let rest = self.rest.get_or_insert_with(|| {
            let file = self.truncator.outputs.create(&self.truncator.server, "jsonl");
            RestFile { blocks: 0, bytes: 0, file: file.map(|(path, file)| (path, BufWriter::new(file))) }
        });
        rest.blocks += 1;
        rest.bytes += raw.len();
        if let Ok((_, file)) = &mut rest.file
            && let Err(error) = file.write_all(raw.as_bytes()).and_then(|()| file.write_all(b"\n"))
        {
            rest.file = Err(error);
        }
    }

    fn structured(&mut self, raw: &str) {
        // Servers repeat it in the content, so that the two do not share one room.
        let mut room = ByteBudget { bytes: self.truncator.limit, values: MAX_VALUES };
        if room.take(raw, raw.len()) {
            return self.field("structuredContent", raw);
        }
        let keep = || self.truncator.keep("json", |file| file.write_all(raw.as_bytes()));
        let place = self.truncator.is_again.then(|| place_of(raw)).flatten().unwrap_or_else(keep);
        let (bytes, limit) = (raw.len(), self.truncator.limit);
        let is_bearable = weigh(raw.as_bytes()) <= MAX_VALUES;
        match is_bearable.then(|| shortened(raw, limit, &place)).flatten() {
            Some(short) => self.field("structuredContent", &short),
            None => {
                self.left_out = Some(format!(
                    "[left out: the structured result with {bytes} bytes (limits: {limit} bytes, {MAX_VALUES} values); {place}]"
                ));
            }
        }
    }

    /// Adds a note to the last text, where there is one.
    fn add_note(&mut self, note: &str) {
        let of_text = |block: &str| {
            let mut block: RawObject = serde_json::from_str(block).ok()?;
            let text: String =
                block.read("text").filter(|_| block.read::<String>("type").as_deref() == Some("text"))?;
            block.write("text", &format!("{text}\n{note}"));
            Some(block.into_raw().get().to_owned())
        };
        for block in self.blocks.iter_mut().rev() {
            match block {
                Block::Text(text) => return text.extend(["\n", note]),
                Block::Whole(raw) => {
                    if let Some(noted) = of_text(raw) {
                        *raw = noted;
                        return;
                    }
                }
            }
        }
        self.note(note);
    }

    fn field(&mut self, name: &str, raw: &str) {
        self.fields += &format!("{}:{raw},", serde_json::Value::from(name));
    }

    fn note(&mut self, text: &str) {
        self.blocks.push(Block::Text(text.to_owned()));
    }

    fn finish(mut self) -> String {
        if let Some(RestFile { blocks, bytes, file }) = self.rest.take() {
            let place = match file.and_then(|(path, mut file)| file.flush().map(|()| path)) {
                Ok(path) => format!("they are in {}, one a line", path.display()),
                Err(error) => format!("they could not be saved: {error}"),
            };
            self.note(&format!("[left out: {blocks} more blocks with {bytes} bytes; {place}]"));
        }
        if let Some(note) = self.left_out.take() {
            self.add_note(&note);
        }
        let blocks = self.blocks.into_iter().map(|block| match block {
            Block::Whole(raw) => raw,
            Block::Text(text) => serde_json::json!({"type": "text", "text": text}).to_string(),
        });
        let blocks: Vec<String> = blocks.collect();
        format!("{{{}\"content\":[{}]}}", self.fields, blocks.join(","))
    }
}

impl<'de> Visitor<'de> for &mut ResultTruncation<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a result object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "content" => {
                    self.is_tool_result = true;
                    self.content(map.next_value::<&RawValue>()?.get());
                }
                // As servers of the first revisions answer.
                "toolResult" => {
                    self.is_tool_result = true;
                    self.legacy(map.next_value::<&RawValue>()?.get());
                }
                "structuredContent" => {
                    self.is_tool_result = true;
                    self.structured(map.next_value::<&RawValue>()?.get());
                }
                _ => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    let bytes = name.len() + raw.len();
                    match self.other_fields.checked_sub(bytes) {
                        Some(left) if raw.len() <= MAX_FIELD => {
                            self.other_fields = left;
                            self.field(&name, raw);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// The blocks of the content, one after the other: a list of them all might be larger than they are.
struct Blocks<'a, 'c>(&'a mut ResultTruncation<'c>);

impl<'de> Visitor<'de> for Blocks<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of content blocks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut blocks: A) -> Result<(), A::Error> {
        while let Some(block) = blocks.next_element::<&RawValue>()? {
            match block.get() {
                text if text.starts_with('"') => self.0.text(text),
                block => self.0.block(block),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
