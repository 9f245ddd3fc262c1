//! Arguments of a client that do not fit the schema of a tool as they are, and do in another form.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value};

use super::{CatalogEntry, CheckThreads};
use crate::{
    config::ArgumentCheck,
    large::{LARGE, WhoseWork, at_turn, drop_beside},
};

/// Arguments that are `null`, of one call: with more of them none is left out.
const MOST_NULLS: usize = 32;
/// How long it is found out which of them may stay.
const KEEPING: Duration = Duration::from_millis(3);

impl CatalogEntry {
    /// `arguments` that fit the schema once texts are read as it wants them, or once those are left out that are `null` and need
    /// not be there. `None`: neither is so, or nothing is to be converted. `whose` they are, and how many bytes: large ones are rewritten
    /// at the turn of who sent them.
    #[doc(hidden)]
    pub async fn made_to_fit(
        self: &Arc<Self>,
        arguments: &Arc<Value>,
        threads: &CheckThreads,
        whose: (WhoseWork, usize),
    ) -> Option<Arc<Value>> {
        let mut arguments = arguments.clone();
        if self.checked != ArgumentCheck::Refuse {
            let (entry, before) = (self.clone(), arguments);
            let convert = move || {
                let (converted, done) = entry.converted(before.as_object()?);
                Some((Arc::new(Value::Object(converted)), !done.is_empty()))
            };
            let is_new;
            (arguments, is_new) = at_turn(whose.0, whose.1, convert).await.ok()??;
            if is_new && self.is_found_to_fit(&arguments, threads).await {
                return Some(arguments);
            }
        }
        self.without_nulls(arguments, threads, whose).await
    }

    /// `arguments` that fit the schema once those are left out that are `null`, may be left out, and may not be `null`.
    /// `None`: it is not that which is wrong with them, or that was not found out. Of large ones all are left out that may.
    async fn without_nulls(
        self: &Arc<Self>,
        arguments: Arc<Value>,
        threads: &CheckThreads,
        whose: (WhoseWork, usize),
    ) -> Option<Arc<Value>> {
        let (entry, is_large) = (self.clone(), whose.1 > LARGE);
        let leave_out = move || {
            let required = entry.tool.input_schema.get("required").and_then(Value::as_array);
            let needed = |name: &str| required.is_some_and(|list| list.iter().any(|entry| entry == name));
            let object = arguments.as_object()?;
            let nulls = object.iter().filter(|(name, value)| value.is_null() && !needed(name));
            let names: Vec<String> = nulls.map(|(name, _)| name.clone()).take(MOST_NULLS + 1).collect();
            if names.is_empty() || names.len() > MOST_NULLS {
                return None;
            }
            let order: Vec<String> = if is_large { Vec::new() } else { object.keys().cloned().collect() };
            // Once more at most, however many there are.
            let mut fitting = Arc::unwrap_or_clone(arguments);
            if let Value::Object(object) = &mut fitting {
                object.retain(|name, value| !value.is_null() || !names.contains(name));
            }
            Some((Arc::new(fitting), names, order))
        };
        let (fitting, names, order) = at_turn(whose.0, whose.1, leave_out).await.ok()??;
        if !self.is_found_to_fit(&fitting, threads).await {
            if is_large {
                drop_beside(fitting);
            }
            return None;
        }
        match is_large {
            true => Some(fitting),
            false => Some(Arc::new(self.with_nulls(Arc::unwrap_or_clone(fitting), names, &order))),
        }
    }

    /// `fitting` with as many of the nulls again as it fits with, as far as that is found out in a moment.
    fn with_nulls(&self, mut fitting: Value, names: Vec<String>, order: &[String]) -> Value {
        let began = Instant::now();
        let mut is_changed = false;
        for name in names {
            if began.elapsed() > KEEPING {
                break;
            }
            if let Value::Object(object) = &mut fitting {
                object.insert(name.clone(), Value::Null);
            }
            let fits = self.check.at_once(&fitting) == Some(Ok(true));
            is_changed |= fits;
            if !fits && let Value::Object(object) = &mut fitting {
                object.shift_remove(&name);
            }
        }
        match fitting {
            Value::Object(mut object) if is_changed => {
                let ordered = order.iter().filter_map(|name| object.swap_remove_entry(name));
                Value::Object(ordered.collect::<Map<String, Value>>())
            }
            fitting => fitting,
        }
    }

    /// Whether it was found out that arguments fit the schema.
    async fn is_found_to_fit(&self, arguments: &Arc<Value>, threads: &CheckThreads) -> bool {
        let verdict = match self.check.at_once(arguments) {
            Some(verdict) => verdict,
            None => Arc::clone(&self.check).on_thread(Arc::clone(arguments), threads).await,
        };
        verdict == Ok(true)
    }
}
