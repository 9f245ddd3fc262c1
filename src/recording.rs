//! The one place at which the traffic of agents is observed, recorded and replayed.
//!
//! A [`TrafficObserver`] goes along with one agent of one task. The model client and the toolbox hand each request to
//! it where the request leaves: it answers from a cassette, or lets the request through and records the answer. What
//! happens is written to the run folder and told to a [`Feed`]. Knows neither models nor servers: it sees values.

mod cassette;
mod live;
mod observer;
mod spans;

pub(crate) use self::{cassette::Kind, observer::Answerer};
pub use self::{
    cassette::{Player, Recorder},
    live::{AgentEvent, Correction, CorrectionKind, Feed, Live, LiveError, LiveEvent, LiveEvents, Missed},
    observer::{Tap, Tape},
};
