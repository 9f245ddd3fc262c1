//! Amounts that tasks have spent according to their journals, before their agents go on.

use std::collections::HashMap;

use serde_json::Value;

use super::record::{Entry, JUDGE, Record};

/// Tokens and US dollars.
type Amount = (u64, f64);

/// Says what the outcome of a step took. The server of a tool call is named.
pub(crate) type SpentFor<'a> = &'a dyn Fn(Option<&str>, &Value) -> Amount;

/// Amounts that tasks have spent which have not ended, or are taken up again.
#[derive(Debug, Default)]
pub struct Spending {
    /// Amounts by the id of the task in the store: for steps whose outcome its agents take from the journal.
    of_tasks: HashMap<String, Amount>,
    /// Amount for steps that are done again.
    sunk: Amount,
}

impl Spending {
    /// Adds the journal of a task. `retried`: it has errored, and is taken up again now.
    pub(super) fn add(
        &mut self,
        task: String,
        entries: impl Iterator<Item = Entry>,
        retried: bool,
        spent: SpentFor<'_>,
    ) {
        let (mut agents, mut judge) = ((0, 0.0), (0, 0.0));
        for Entry { record, .. } in entries {
            match record {
                // As the history of the task has it: the judge is asked again.
                Record::Claim { retry: true, .. } => add(&mut self.sunk, std::mem::take(&mut judge)),
                Record::End { step, outcome, .. } => {
                    let amount = if step.agent == JUDGE { &mut judge } else { &mut agents };
                    add(amount, spent(step.server.as_deref(), &outcome));
                }
                _ => {}
            }
        }
        add(if retried { &mut self.sunk } else { &mut agents }, judge);
        if agents.0 > 0 || agents.1 > 0.0 {
            self.of_tasks.insert(task, agents);
        }
    }

    /// All of it.
    pub fn sum(&self) -> Amount {
        let mut sum = self.sunk;
        self.of_tasks.values().for_each(|amount| add(&mut sum, *amount));
        sum
    }

    /// Amount that a task spent for steps that its agents take from the journal.
    pub(crate) fn of_task(&self, task: &str) -> Amount {
        self.of_tasks.get(task).copied().unwrap_or_default()
    }
}

fn add(sum: &mut Amount, more: Amount) {
    sum.0 = sum.0.saturating_add(more.0);
    sum.1 += more.1;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::record::{StepKey, StepKind},
        *,
    };

    fn end(agent: &str, tokens: u64) -> Record {
        let (agent, request) = (agent.to_owned(), tokens.to_string());
        let step = StepKey { agent, kind: StepKind::Model, server: None, request, n: 1 };
        Record::End { step, outcome: json!(tokens), failed: false }
    }

    #[test]
    fn what_is_asked_again_is_spent_and_no_credit() {
        let tokens = |_: Option<&str>, outcome: &Value| (outcome.as_u64().unwrap(), 1.0);
        let claim = |retry| Record::Claim { lease: "x".to_owned(), retry };
        let journal = || {
            let records = [claim(false), end("main", 100), end(JUDGE, 10), claim(true), end(JUDGE, 7)];
            records.into_iter().map(Entry::now)
        };
        let mut spending = Spending::default();
        spending.add("a".to_owned(), journal(), false, &tokens);
        assert_eq!((spending.sum(), spending.of_task("a")), ((117, 3.0), (107, 2.0)));
        spending.add("b".to_owned(), journal(), true, &tokens);
        assert_eq!((spending.sum(), spending.of_task("b")), ((234, 6.0), (100, 1.0)));
        assert_eq!(spending.of_task("c"), (0, 0.0));
    }
}
