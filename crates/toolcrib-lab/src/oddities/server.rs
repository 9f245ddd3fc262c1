//! Tool servers of which one node of one answer is odd, and one beside them that is not.

use std::{ops::Range, time::Duration};

use serde_json::{Map, Value, json};
use toolcrib::{
    Config, Endpoint, Error, Manager, ServerConfig, ServerName, StdioConfig, Toolbox, start::StartReport,
};
use toolcrib_fakes::{
    oddities::{Change, Oddity, Step},
    servers::odd::{Answer, Plan, REASON, TEXTS, TOOLS},
};

use super::Fault;
use crate::fakes;

/// How many odd servers are started at once.
pub(super) const AT_ONCE: u64 = 8;
/// How long a start or a call may take. An odd id loses an answer, so that the limit is reached.
const LIMIT: Duration = Duration::from_secs(5);
const STEADY: &str = "steady";

/// Starts odd servers, eight at a time.
pub(super) struct Servers {
    program: std::path::PathBuf,
}

/// Results that a server must give in spite of its oddities.
#[derive(Default)]
struct Promise {
    ready: bool,
    tools: Vec<&'static str>,
    texts: Vec<&'static str>,
    reason: bool,
}

impl Servers {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { program: fakes::program()? })
    }

    pub(super) async fn round(&self, seeds: Range<u64>) -> anyhow::Result<Vec<Fault>> {
        let odd = seeds
            .clone()
            .map(|seed| self.server(&format!("odd-{seed}"), &["odd".to_owned(), seed.to_string()]));
        let steady = self.server(STEADY, &["baseline".to_owned()]);
        let mut config = Config::new(odd.chain([steady]).collect::<anyhow::Result<Vec<_>>>()?);
        config.servers.values_mut().for_each(|entry| entry.required = false);
        let manager = Manager::start(&config).await?;
        let toolbox = manager.toolbox();
        let checks = seeds.clone().map(|seed| check(&toolbox, manager.report(), seed));
        let found = futures_util::future::join_all(checks).await;
        let mut faults: Vec<_> = found.into_iter().flatten().collect();
        let fault = |what| Fault { seed: seeds.start, change: format!("or one of the next {AT_ONCE}"), what };
        if let Err(error) = call(&toolbox, STEADY, "echo").await {
            faults.push(fault(format!("the server beside them failed: {error}")));
        }
        let left = manager.shutdown().await.survivors.len();
        if left > 0 {
            faults.push(fault(format!("{left} processes are left")));
        }
        Ok(faults)
    }

    fn server(&self, name: &str, words: &[String]) -> anyhow::Result<ServerConfig> {
        let command = StdioConfig::new(self.program.clone(), words.to_vec(), std::env::temp_dir());
        let mut server = ServerConfig::new(ServerName::new(name)?, Endpoint::Stdio(command));
        (server.startup_timeout, server.call_timeout, server.max_call_time) = (LIMIT, LIMIT, LIMIT);
        Ok(server)
    }
}

/// Calls what the server of `seed` has to be good for, and reads what was said of it when it started.
async fn check(toolbox: &Toolbox, start: &StartReport, seed: u64) -> Vec<Fault> {
    let Some(plan) = Plan::of(seed) else { return Vec::new() };
    let server = format!("odd-{seed}");
    let promise = Promise::of(&plan);
    let mut faults = Vec::new();
    let mut broken = |what: String| {
        faults.push(Fault { seed, change: format!("{:?} {}", plan.answer, plan.change), what });
    };
    let status = toolbox.status().into_iter().find(|status| status.name.as_str() == server);
    let up = toolbox.catalog().entries().iter().any(|entry| entry.server.as_str() == server);
    if promise.ready && !up {
        broken(format!("the server did not start: {:?}", status.map(|status| status.state)));
        return faults;
    }
    let rows = start.servers.iter().filter(|row| row.name.as_str() == server);
    let oddities: Vec<&String> =
        rows.flat_map(|row| &row.outcome).flat_map(|ready| &ready.oddities).collect();
    for oddity in oddities.iter().filter(|oddity| !plan.change.is_named(oddity)) {
        broken(format!("the warning does not name the path: {}", short(oddity)));
    }
    let lost = up && TOOLS.iter().any(|tool| toolbox.catalog().find(&server, tool).is_err());
    if lost && oddities.is_empty() && plan.change.is_unusable() {
        broken("a tool is left out without a word".to_owned());
    }
    for tool in TOOLS {
        let listed = toolbox.catalog().find(&server, tool).is_ok();
        if promise.tools.contains(&tool) && !listed {
            broken(format!("the tool `{tool}` is lost"));
        }
        if !listed {
            continue;
        }
        match call(toolbox, &server, tool).await {
            Ok(text) => {
                for lost in promise.texts.iter().filter(|part| !text.contains(**part)) {
                    broken(format!("`{lost}` is lost of the result of `{tool}`: {}", short(&text)));
                }
            }
            Err(error) if !promise.texts.is_empty() => broken(format!("`{tool}` failed: {}", short(&error))),
            Err(_) => {}
        }
    }
    if promise.reason {
        match call(toolbox, &server, "fails").await {
            Err(error) if error.contains(REASON) => {}
            Err(other) | Ok(other) => broken(format!("the error is not the server's: {}", short(&other))),
        }
    }
    faults
}

/// The text of a result, or the error with its causes.
async fn call(toolbox: &Toolbox, server: &str, tool: &str) -> Result<String, String> {
    let arguments = Map::from_iter([("text".to_owned(), json!("hello"))]);
    let shown = |error: Error| format!("{error} {}", error.causes().join(" "));
    let result = toolbox.call(server, tool, arguments).await.map_err(shown)?;
    let structured = result.structured_content.as_ref().map(Value::to_string).unwrap_or_default();
    Ok(result.text() + &structured)
}

fn short(text: &str) -> String {
    text.chars().take(300).collect()
}

impl Promise {
    fn of(plan: &Plan) -> Self {
        let all = Self { ready: true, tools: TOOLS.to_vec(), texts: TEXTS.to_vec(), reason: true };
        let Change { path, oddity } = &plan.change;
        let is_within = |start: &[&str]| plan.change.is_within(start);
        if plan.change.is_harmless() {
            return all;
        }
        // The frame of a message, and what makes its kind, can be lost.
        if path.len() == 1 {
            return match plan.answer {
                Answer::Initialize | Answer::List => Self::default(),
                Answer::Result => Self { texts: Vec::new(), ..all },
                Answer::Error => Self { reason: false, ..all },
            };
        }
        let at = match path.get(2) {
            Some(Step::Index(at)) => Some(*at),
            _ => None,
        };
        match plan.answer {
            Answer::Initialize if is_within(&["result", "protocolVersion"]) => Self::default(),
            Answer::List if is_within(&["result", "tools"]) => match at {
                Some(at) => {
                    let tools = TOOLS.iter().enumerate().filter(|(other, _)| *other != at);
                    let tools: Vec<_> = tools.map(|(_, tool)| *tool).collect();
                    Self { tools, reason: at != TOOLS.len(), ..all }
                }
                None if *oddity == Oddity::Huge => all,
                None => Self::default(),
            },
            Answer::Result if is_within(&["result", "content"]) => {
                let of_block = |at| match at {
                    Some(0) => vec![0],
                    Some(2) => vec![1],
                    Some(4) => vec![2],
                    Some(_) => vec![],
                    None => vec![0, 1, 2],
                };
                let lost = of_block(at);
                let texts = TEXTS.iter().enumerate().filter(|(text, _)| !lost.contains(text));
                Self { texts: texts.map(|(_, text)| *text).collect(), ..all }
            }
            Answer::Error if is_within(&["error", "message"]) => Self { reason: false, ..all },
            _ => all,
        }
    }
}
