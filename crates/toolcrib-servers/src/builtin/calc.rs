//! `calc`: exact arithmetic and units through fend. Fractions stay fractions, integers have no limit.
//!
//! An expression comes from a model, and this may be the process that owns every server. Every expression is
//! evaluated on a thread of its own with room for its recursion, and given up after [`LIMIT`]. What fend could neither
//! be interrupted in nor hold in memory is refused before fend sees it (`limits`).

mod limits;
mod rounding;

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Outcome, Output, arguments, tool};

/// How long one expression may take.
const LIMIT: Duration = Duration::from_secs(2);
/// How much longer an expression may take to notice that its time is over.
const GRACE: Duration = Duration::from_millis(500);
/// Expressions that go on after they were given up. A thread cannot be ended, so no others are begun until one is done.
const MAX_OVERDUE: usize = 4;
/// Room for the recursion of the longest expression. Only what is used of it takes memory.
const STACK: usize = 256 << 20;
/// Longest result that is given, in characters.
const LONGEST: usize = 20_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Evaluate {
    /// The expression, for instance `1/3 + 1/6`, `2^200`, `sqrt(2)`, `5 feet 3 inches to cm`.
    expression: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![tool::<Evaluate>(
        "evaluate",
        "Evaluate an arithmetic expression exactly: integers of any size, fractions, powers, roots, \
         percentages, units and their conversion. Results that cannot be exact begin with `approx.`.",
    )]
}

/// The server. Its copies share the count of the expressions that were given up.
#[derive(Clone, Default)]
pub struct Calc {
    /// The results of abandoned evaluations that still run.
    overdue: Arc<Mutex<Vec<Receiver<Outcome>>>>,
}

impl Calc {
    pub(super) fn run(&self, name: &str, given: Map<String, Value>) -> Option<Outcome> {
        (name == "evaluate").then(|| self.begin(arguments::<Evaluate>(given)?.expression))
    }

    fn begin(&self, expression: String) -> Outcome {
        limits::check(&expression)?;
        self.on_thread(move || evaluate(&expression, LIMIT))
            .map_err(|error| format!("cannot evaluate: {error}"))?
    }

    /// The outcome of `work`, if it is there in time.
    fn on_thread(&self, work: impl FnOnce() -> Outcome + Send + 'static) -> io::Result<Outcome> {
        if self.count_overdue() >= MAX_OVERDUE {
            let why = "busy: earlier expressions were given up and have not ended yet; try again later";
            return Ok(Err(why.to_owned()));
        }
        let (done, outcome) = sync_channel(1);
        let work = move || drop(done.send(work()));
        thread::Builder::new().name("toolcrib-calc".to_owned()).stack_size(STACK).spawn(work)?;
        Ok(match outcome.recv_timeout(LIMIT + GRACE) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                self.overdue.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                Err(too_long())
            }
            Err(RecvTimeoutError::Disconnected) => Err("cannot evaluate this expression".to_owned()),
        })
    }

    fn count_overdue(&self) -> usize {
        let mut overdue = self.overdue.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that is done has sent its outcome, or has dropped its end in a panic.
        overdue.retain(|outcome| matches!(outcome.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)));
        overdue.len()
    }
}

struct Deadline(Instant);

impl fend_core::Interrupt for Deadline {
    fn should_interrupt(&self) -> bool {
        Instant::now() >= self.0
    }
}

fn too_long() -> String {
    format!("the expression takes longer than {} s", LIMIT.as_secs())
}

/// Evaluates an expression with fend.
fn value(expression: &str, deadline: &Deadline) -> Result<String, String> {
    use fend_core::Interrupt;

    // It reads all of an expression before it looks at the clock.
    if deadline.should_interrupt() {
        return Err(too_long());
    }
    let mut context = fend_core::Context::new();
    let result = fend_core::evaluate_with_interrupt(expression, &mut context, deadline);
    let result = result.map_err(|why| match why.as_str() {
        "interrupted" => too_long(),
        _ => format!("cannot evaluate `{expression}`: {why}"),
    })?;
    Ok(result.get_main_result().to_owned())
}

fn evaluate(expression: &str, limit: Duration) -> Outcome {
    let deadline = Deadline(Instant::now() + limit);
    rounding::check(expression, |part| value(part, &deadline))?;
    let text = value(expression, &deadline)?;
    if text.is_empty() {
        return Err(format!("`{expression}` has no value"));
    }
    if text.len() > LONGEST {
        return Err(format!("the result has {} characters, the limit is {LONGEST}", text.len()));
    }
    Ok(Output::Text(text))
}

/// For the fuzz target `calc`: what is not refused is evaluated, and given up soon.
pub fn fuzz(expression: &str) {
    if limits::check(expression).is_ok() {
        let expression = expression.to_owned();
        let evaluated = thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || drop(evaluate(&expression, Duration::from_millis(50))));
        // fend panics at some exponents: that is an error of the expression, as it is in a call.
        let _ = evaluated.map(thread::JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calc(expression: &str) -> Result<String, String> {
        match Calc::default().begin(expression.to_owned())? {
            Output::Text(text) | Output::Both(text, _) => Ok(text),
            Output::Data(data) => Ok(data.to_string()),
        }
    }

    #[test]
    fn deeply_nested_expressions_give_an_error_or_a_value() {
        // Each of them ended the process once: on the stack of an ordinary thread its recursion has no room.
        for (expression, value) in [
            (format!("{}1{}", "(".repeat(1_000), ")".repeat(1_000)), "1"),
            (format!("{}1", "-".repeat(1_500)), "1"),
            (format!("{}1", "1^".repeat(700)), "1"),
            (format!("{}1", "1+".repeat(1_000)), "1001"),
            (format!("1{}", "!".repeat(1_500)), "1"),
        ] {
            // A slow machine may not get there in time.
            let told = calc(&expression).unwrap_or_else(|why| why);
            assert!(told == value || told == too_long(), "{told}");
        }
        let long = calc(&format!("{}1", "1+".repeat(10_000))).unwrap_err();
        assert_eq!(long, "the expression has 20001 bytes, the limit is 4096");
    }

    #[test]
    fn numbers_are_rounded_correctly_or_not_at_all() {
        for (expression, value) in [
            ("floor(2.5) + ceil(2.5) + round(2.5)", "8"),
            ("floor(-2.5)", "-3"),
            ("2 floor(10/4) + FLOOR(pi)", "7"),
            ("floor(2.5 kg)", "2 kg"),
            ("a = 7/2; floor(a) + round(floor(a) / 2)", "5"),
            ("floor(10^15/3)", "333333333333333"),
            ("((10^100+1) - (10^100+1) mod 3) / 3 mod 1000", "333"),
            ("floor(1/3)", "0"),
            ("floor(0xff/2)", "0x7f"),
            ("floor(6#25/2)", "6#12"),
            ("cosh(0)", "1"),
        ] {
            let told = calc(expression).unwrap_or_else(|why| why);
            assert!(told == value || told == format!("approx. {value}"), "{expression}: {told}");
        }
        for (expression, why) in [
            ("floor(10^1000/3)", "cannot be rounded exactly"),
            ("floor(10^20)", "cannot be rounded exactly"),
            ("1 + ceil((10^20 + 1/3))", "cannot be rounded exactly"),
            ("round(9007199254740993)", "cannot be rounded exactly"),
            ("a = 10^30; b = a + 1/2; 2floor(b)", "cannot be rounded exactly"),
            ("floor((10^400 + 1) / 10^399)", "cannot be rounded exactly"),
            ("f = floor; f(10^30)", "in parentheses"),
            ("floor 2.5", "in parentheses"),
            ("sinh(50)", "out of range"),
            ("-cosh(100)", "out of range"),
        ] {
            let told = calc(expression).unwrap_err();
            // A slow machine may not get there in time.
            assert!(told.contains(why) || told == too_long(), "{expression}: {told}");
        }
    }

    #[test]
    fn abandoned_expressions_are_limited() {
        let calc = Calc::default();
        let gates: Vec<_> = (0..MAX_OVERDUE)
            .map(|_| {
                let (gate, wait) = sync_channel::<()>(0);
                let (done, outcome) = sync_channel(1);
                thread::spawn(move || {
                    let _ = wait.recv();
                    let _ = done.send(Err(String::new()));
                });
                calc.overdue.lock().unwrap().push(outcome);
                gate
            })
            .collect();
        assert!(calc.begin("1+1".to_owned()).is_err_and(|why| why.starts_with("busy")));
        drop(gates);
        while calc.count_overdue() > 0 {
            thread::yield_now();
        }
        assert!(calc.begin("1+1".to_owned()).is_ok());
    }

    #[test]
    fn a_panic_fails_only_its_expression() {
        let calc = Calc::default();
        let outcome = calc.on_thread(|| panic!("an expected panic of this test")).unwrap();
        assert!(outcome.is_err_and(|why| why.contains("cannot evaluate")));
    }
}
