//! Servers that are processes: messages are lines, written to one pipe and read from another.

pub(super) mod lines;
mod queue;
pub(super) mod reader;
