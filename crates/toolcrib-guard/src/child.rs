//! One child process by what every Unix has: its program, its pipes, its exit, its process group.

pub(crate) mod exit;
pub(crate) mod group;
pub(crate) mod lines;
pub(crate) mod program;
pub(crate) mod stderr;
pub(crate) mod writer;
