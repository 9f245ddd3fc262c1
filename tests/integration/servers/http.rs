//! Servers behind a URL as they are on bad days, and the parts of the protocol over HTTP that good ones use.

mod bad_answers;
mod eras;
mod public;
mod scripted;
mod streams;
