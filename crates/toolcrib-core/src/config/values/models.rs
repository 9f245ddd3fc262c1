//! The models of `[llm]` by their names: clients, and strategies that ask several of them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use indexmap::IndexMap;

use super::model_flags::{LlmDraft, ModelDrafts};

use crate::config::{
    LlmConfig,
    check::validate,
    env::{Env, Names},
    file::{
        raw::{RawLlm, RawStrategy},
        source_location::{SourceLocation, Text},
    },
};
use crate::{
    error::{Error, Result, nearest},
    retry::RetryPolicy,
};

/// Several models that are asked in place of one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Strategy {
    /// The order in which members are asked.
    pub order: Order,
    /// Who is asked: clients, or strategies again.
    pub members: Vec<LlmConfig>,
    /// Limit of one request with all that are asked.
    pub total: Option<Duration>,
    /// How often all of them are asked again when none answered. `None`: not at all.
    pub retry: Option<RetryPolicy>,
}

/// The order in which the members of a strategy are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In the order of the list, each when the one before failed.
    Fallback,
    /// Beginning with another one each time; the others follow when it fails.
    RoundRobin {
        /// Whether the first request goes to the first one, and not to any.
        from_first: bool,
    },
    /// Side by side: the first usable answer counts, and the other requests are cancelled. Listeners get that
    /// answer when it is whole.
    Race {
        /// The wait for an answer before the next one is asked too; zero: all are asked at once. After a failure the
        /// next one is asked without a wait.
        delay: Duration,
    },
}

/// Settings of a strategy that its members use in place of their own.
#[derive(Debug, Clone, Default)]
pub(in crate::config) struct Overrides {
    pub(in crate::config) temperature: Option<f64>,
    pub(in crate::config) max_tokens: Option<u32>,
    pub(in crate::config) request_timeout: Option<Duration>,
    pub(in crate::config) retry: Option<RetryPolicy>,
}

impl Overrides {
    fn apply(&self, strategy: &str, llm: &mut LlmConfig) {
        llm.overridden_in.push(strategy.to_owned());
        llm.temperature = self.temperature.or(llm.temperature);
        llm.max_tokens = self.max_tokens.or(llm.max_tokens);
        llm.request_timeout = self.request_timeout.unwrap_or(llm.request_timeout);
        if let Some(retry) = &self.retry {
            llm.retry = retry.clone();
        }
    }
}

impl Strategy {
    /// These in this order, without limits.
    pub fn new(order: Order, members: Vec<LlmConfig>) -> Self {
        Self { order, members, total: None, retry: None }
    }
}

/// The name of the client of the `[llm]` table itself in strategies.
pub(in crate::config) const OWN: &str = "llm";

type Known = IndexMap<String, Result<LlmConfig, Arc<Error>>>;

/// The model that is asked, and all that have names. Secrets are added to `secrets` whether they can be used or not.
pub(in crate::config) fn resolve(
    mut raw: RawLlm,
    origin: &SourceLocation,
    open: &Names,
    env: &Env,
    secrets: &mut Vec<String>,
) -> Result<(Result<LlmConfig, Arc<Error>>, Known, ModelDrafts)> {
    let (clients, strategies) = (std::mem::take(&mut raw.clients), std::mem::take(&mut raw.strategies));
    check(&clients, &strategies, raw.client.as_ref(), origin)?;
    let mut known = Known::new();
    let client = raw.client.take();
    // The table itself is one of them, if it describes a model or there is no other client.
    let own = raw.model.is_some() || raw.base_url.is_some() || client.is_none();
    let mut drafts =
        ModelDrafts { asked: client.as_ref().map(|name| name.value.clone()), ..ModelDrafts::default() };
    let draft = validate::llm(raw, origin, open, env, secrets).map_err(Arc::new);
    let finished = |draft: &Result<LlmDraft, Arc<Error>>| draft.clone().and_then(|draft| draft.finished());
    let own = own.then(|| finished(&draft));
    drafts.tables.insert(OWN.to_owned(), draft);
    if let Some(own) = &own {
        let named = |llm: LlmConfig| LlmConfig { name: Some(OWN.to_owned()), ..llm };
        known.insert(OWN.to_owned(), own.clone().map(named));
    }
    for client in clients {
        let name = client.request.name.clone().unwrap_or_default();
        let client = validate::llm(client, origin, open, env, secrets).map_err(Arc::new);
        known.insert(name.clone(), finished(&client));
        drafts.tables.insert(name, client);
    }
    let by_name: HashMap<&str, &RawStrategy> =
        strategies.iter().map(|strategy| (strategy.name.as_str(), strategy)).collect();
    for strategy in &strategies {
        let built = build(&strategy.name, &by_name, &known, &[]);
        known.insert(strategy.name.clone(), built);
    }
    let asked = match (client, own) {
        (Some(name), _) => build(&name.value, &by_name, &known, &[]),
        (None, Some(own)) => own,
        (None, None) => Err(missing(OWN)),
    };
    Ok((asked, known, drafts))
}

fn missing(name: &str) -> Arc<Error> {
    let help = "give [llm] a model, or name another client".to_owned();
    Arc::new(Error::input(format!("there is no client `{name}`"), Some(help)))
}

/// `overrides` are those of the strategies around it, the outermost first, which takes precedence.
fn build(
    name: &str,
    strategies: &HashMap<&str, &RawStrategy>,
    known: &Known,
    overrides: &[(&str, &Overrides)],
) -> Result<LlmConfig, Arc<Error>> {
    let Some(raw) = strategies.get(name) else {
        let mut llm = known.get(name).cloned().unwrap_or_else(|| Err(missing(name)))?;
        overrides.iter().rev().for_each(|(strategy, overrides)| overrides.apply(strategy, &mut llm));
        return Ok(llm);
    };
    let own = raw.overrides.as_ref().map(|own| (raw.name.as_str(), own));
    let inner: Vec<_> = overrides.iter().copied().chain(own).collect();
    let members = raw.members.iter().map(|member| build(&member.value, strategies, known, &inner));
    let strategy = Strategy {
        order: raw.order,
        members: members.collect::<Result<_, _>>()?,
        total: raw.total,
        retry: raw.retry.clone(),
    };
    let mut llm = LlmConfig::new(None, name);
    (llm.name, llm.strategy) = (Some(name.to_owned()), Some(Arc::new(strategy)));
    llm.overridden_in = overrides.iter().rev().map(|(strategy, _)| (*strategy).to_owned()).collect();
    Ok(llm)
}

/// Names are unique, every member exists, and no strategy contains itself.
fn check(
    clients: &[RawLlm],
    strategies: &[RawStrategy],
    asked: Option<&Text>,
    origin: &SourceLocation,
) -> Result<()> {
    let of_client = |client: &RawLlm| client.request.name.clone().unwrap_or_default();
    let names: Vec<String> = clients
        .iter()
        .map(of_client)
        .chain(strategies.iter().map(|strategy| strategy.name.clone()))
        .collect();
    let lines = clients.iter().map(|client| (client.line, "clients", of_client(client)));
    let mut lines =
        lines.chain(strategies.iter().map(|known| (known.line, "strategies", known.name.clone())));
    if let Some((line, table, _)) = lines.find(|(.., name)| name == OWN) {
        let help = Some("give it another name".to_owned());
        let message = "is the name of the client of [llm] itself".to_owned();
        return Err(origin.error(line, Some(format!("llm.{table}.{OWN}")), message, help));
    }
    for strategy in strategies {
        if clients.iter().any(|client| client.request.name.as_deref() == Some(&strategy.name)) {
            let key = Some(format!("llm.strategies.{}", strategy.name));
            let help = Some("give one of the two another name".to_owned());
            return Err(origin.error(strategy.line, key, "is the name of a client too".to_owned(), help));
        }
    }
    for name in strategies.iter().flat_map(|strategy| &strategy.members).chain(asked) {
        if name.value != OWN && !names.contains(&name.value) {
            let help = match nearest(&name.value, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if names.is_empty() => "add a client: [llm.clients.NAME]".to_owned(),
                None => format!("there are: {}", names.join(", ")),
            };
            let message = format!("there is no client or strategy `{}`", name.value);
            return Err(origin.error(name.line, Some(name.key.clone()), message, Some(help)));
        }
    }
    let members = |name: &str| {
        strategies.iter().find(|strategy| strategy.name == name).map_or(&[][..], |strategy| &strategy.members)
    };
    for strategy in strategies {
        if let Some(way) = cycle(&[strategy.name.as_str()], &members) {
            let key = Some(format!("llm.strategies.{}", strategy.name));
            let message = format!("asks itself: {}", way.join(" -> "));
            return Err(origin.error(strategy.line, key, message, Some("take one of these out".to_owned())));
        }
    }
    Ok(())
}

/// The way from the first name of `way` back to itself, if there is one.
fn cycle<'a>(way: &[&'a str], members: &impl Fn(&str) -> &'a [Text]) -> Option<Vec<&'a str>> {
    for next in members(way.last()?) {
        let longer = [way, &[next.value.as_str()]].concat();
        if way.first() == Some(&next.value.as_str()) {
            return Some(longer);
        }
        // A circle further on is found from its own members.
        if !way.contains(&next.value.as_str())
            && let Some(found) = cycle(&longer, members)
        {
            return Some(found);
        }
    }
    None
}
