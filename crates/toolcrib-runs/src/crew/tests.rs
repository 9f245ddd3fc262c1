//! Tests crews whose agents hang, refuse and panic: how often each is asked, when each acts, and the reports.

use std::sync::{Mutex, atomic::AtomicUsize, atomic::Ordering::SeqCst};

use super::*;
use crate::{
    config::{HttpConfig, LlmConfig},
    error::{Error, ErrorCode},
    http::HttpClients,
    llm::{ChatAnswer, ChatRequest, LlmClient, Message},
};

/// Asks with its own number and what it sees of the world.
struct Walker {
    number: usize,
    /// Every answer of which it made something.
    acted: Vec<usize>,
    blind: bool,
}

impl CrewAgent for Walker {
    type World = Vec<usize>;
    type Request = (usize, usize);
    type Answer = usize;

    fn name(&self) -> String {
        format!("walker {}", self.number)
    }

    fn observe(&self, world: &Vec<usize>) -> Result<(usize, usize), String> {
        if self.blind { Err("it is dark".into()) } else { Ok((self.number, world.len())) }
    }

    fn apply(&mut self, world: &mut Vec<usize>, answer: usize) -> Result<(), String> {
        self.acted.push(answer);
        if answer == CLUMSY {
            return Err("it fell".into());
        }
        world.push(self.number);
        Ok(())
    }
}

/// An answer that cannot be applied.
const CLUMSY: usize = 999;

fn crew(count: usize, config: CrewConfig) -> Crew<Walker> {
    Crew::new((0..count).map(|number| Walker { number, acted: Vec::new(), blind: false }), config)
}

/// Treatment of an agent when it asks for the n-th time.
#[derive(Clone, Copy)]
enum Fate {
    After(u64),
    Hangs,
    Limited,
    Panics,
    Clumsy,
    /// It works for so many milliseconds without giving way.
    Blocks(u64),
}

struct Mind<F> {
    fate: F,
    /// Agent and what it saw, in the order of asking.
    asked: Mutex<Vec<(usize, usize)>>,
    now: AtomicUsize,
    peak: AtomicUsize,
}

fn mind<F: Fn(usize, usize) -> Fate>(fate: F) -> Mind<F> {
    Mind { fate, asked: Mutex::default(), now: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
}

impl<F> Mind<F> {
    fn times(&self, agent: usize) -> usize {
        self.asked.lock().unwrap().iter().filter(|(asked, _)| *asked == agent).count()
    }
}

impl<F: Fn(usize, usize) -> Fate + Sync> Decide for Mind<F> {
    type Request = (usize, usize);
    type Answer = usize;

    async fn decide(&self, request: &(usize, usize), _: Option<std::time::Instant>) -> Decided<usize> {
        self.asked.lock().unwrap().push(*request);
        self.peak.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        let fate = (self.fate)(request.0, self.times(request.0));
        let result = match fate {
            Fate::After(millis) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Ok(request.0)
            }
            Fate::Hangs => std::future::pending().await,
            Fate::Limited => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(Error::input("429 Too Many Requests", None))
            }
            Fate::Panics => panic!("on purpose"),
            Fate::Clumsy => Ok(CLUMSY),
            Fate::Blocks(millis) => {
                std::thread::sleep(Duration::from_millis(millis));
                Ok(request.0)
            }
        };
        self.now.fetch_sub(1, SeqCst);
        Decided { result, attempts: 1 }
    }
}

fn failures(report: &StepReport) -> Vec<(String, String)> {
    report.failures().map(|(agent, error)| (agent.agent.clone(), error.to_string())).collect()
}

fn told(agent: &str, error: &str) -> (String, String) {
    (agent.to_owned(), error.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_hanging_agent_does_not_delay_the_other_49() {
    let deadline = Some(Duration::from_secs(30));
    let mut crew = crew(50, CrewConfig { deadline, ..CrewConfig::default() });
    let mind = mind(|agent, _| if agent == 49 { Fate::Hangs } else { Fate::After(200) });
    let mut world = Vec::new();
    let start = Instant::now();
    let report = crew.step(&mut world, &mind).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    assert_eq!(failures(&report), [told("walker 49", "no decision within 30s")]);
    assert!((0..50).all(|agent| mind.times(agent) == 1));
    assert_eq!(world, (0..49).collect::<Vec<_>>());
    assert!(crew.agents()[..49].iter().all(|agent| agent.acted.len() == 1));
    assert_eq!((report.agents.len(), crew.tick(), mind.peak.into_inner()), (50, 1, 50));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["agents"][49]["result"]["failed"]["code"], "budget_exceeded", "{json}");
    assert_eq!((&json["agents"][0]["result"], &json["agents"][0]["llm_calls"]), (&"acted".into(), &1.into()));
}

/// Asks a model.
struct Asker;

impl CrewAgent for Asker {
    type World = Vec<String>;
    type Request = ChatRequest;
    type Answer = ChatAnswer;

    fn name(&self) -> String {
        "asker".into()
    }

    fn observe(&self, _: &Vec<String>) -> Result<ChatRequest, String> {
        Ok(ChatRequest::new(vec![Message::User("hello".into())]))
    }

    fn apply(&mut self, said: &mut Vec<String>, answer: ChatAnswer) -> Result<(), String> {
        said.push(answer.content);
        Ok(())
    }
}

#[tokio::test]
async fn a_hanging_model_is_reported_with_the_time() {
    // It takes connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", silent.local_addr().unwrap());
    let http = HttpClients::new(&HttpConfig::default()).unwrap();
    let client = LlmClient::new(&LlmConfig::new(Some(url), "m"), &http, ".".as_ref()).unwrap();
    let deadline = Some(Duration::from_millis(300));
    let mut crew = Crew::new([Asker], CrewConfig { deadline, ..CrewConfig::default() });
    let report = crew.step(&mut Vec::new(), &client).await.unwrap();
    assert_eq!(failures(&report), [told("asker", "no decision within 300ms")]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["agents"][0]["result"]["failed"],
        serde_json::json!({"code": "budget_exceeded", "message": "no decision within 300ms"})
    );
}

#[tokio::test(start_paused = true)]
async fn agents_decide_on_one_world_and_act_in_order() {
    let mut crew = crew(5, CrewConfig::default());
    let mind = mind(|agent, _| Fate::After(100 - 10 * agent as u64));
    let mut world = vec![7, 7];
    let _ = crew.step(&mut world, &mind).await.unwrap();
    let second = crew.step(&mut world, &mind).await.unwrap();
    assert_eq!((second.tick, second.is_complete()), (1, true));
    assert_eq!(world, [7, 7, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    let saw: Vec<usize> = mind.asked.into_inner().unwrap().iter().map(|(_, saw)| *saw).collect();
    assert_eq!(saw, [2, 2, 2, 2, 2, 7, 7, 7, 7, 7]);
}

#[tokio::test(start_paused = true)]
async fn width_limits_concurrent_decisions_and_reports_the_queue() {
    let deadline = Some(Duration::from_millis(150));
    let mut crew = crew(6, CrewConfig { width: NonZeroUsize::new(2), deadline, ..CrewConfig::default() });
    let mind = mind(|_, _| Fate::After(100));
    let start = Instant::now();
    let report = crew.step(&mut Vec::new(), &mind).await.unwrap();
    assert_eq!((start.elapsed(), mind.peak.into_inner()), (Duration::from_millis(300), 2));
    assert!(report.is_complete(), "time in the queue is none of the deadline");
    let queued: Vec<u128> = report.agents.iter().map(|agent| agent.queued.as_millis()).collect();
    assert_eq!(queued, [0, 0, 100, 100, 200, 200]);
    assert!(report.agents.iter().all(|agent| agent.took.as_millis() == 100));
    assert_eq!((report.waves, serde_json::to_value(&report).unwrap()["waves"].as_u64()), (3, Some(3)));
    crew.set_config(CrewConfig::default());
    assert_eq!(crew.step(&mut Vec::new(), &self::mind(|_, _| Fate::After(1))).await.unwrap().waves, 1);
}

#[tokio::test]
async fn an_agent_whose_decision_blocks_is_named() {
    let mut crew = crew(4, CrewConfig::default());
    let mind = mind(|agent, _| if agent == 2 { Fate::Blocks(80) } else { Fate::After(1) });
    let report = crew.step(&mut Vec::new(), &mind).await.unwrap();
    assert!(report.is_complete());
    let blocked: Vec<u128> = report.agents.iter().map(|agent| agent.blocked.as_millis()).collect();
    assert!(blocked[2] >= 80 && [0, 1, 3].iter().all(|other| blocked[*other] == 0), "{blocked:?}");
    assert!(serde_json::to_value(&report).unwrap()["agents"][2]["blocked_ms"].as_f64().unwrap() >= 80.0);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limited_agent_is_reported_and_delays_no_other() {
    let mut crew = crew(3, CrewConfig::default());
    let mind = mind(|agent, _| if agent == 1 { Fate::Limited } else { Fate::After(10) });
    let mut world = Vec::new();
    let report = crew.step(&mut world, &mind).await.unwrap();
    assert_eq!(failures(&report), [told("walker 1", "429 Too Many Requests")]);
    assert_eq!(world, [0, 2]);
    assert!(!report.is_complete());
}

#[tokio::test(start_paused = true)]
async fn only_pending_agents_are_asked_again() {
    let again = OnError::RetryPending { rounds: 2, wait: Duration::from_secs(1) };
    let mut crew = crew(4, CrewConfig { on_error: again, ..CrewConfig::default() });
    let mind = mind(|agent, time| match (agent, time) {
        (1, 1) | (2, _) => Fate::Limited,
        (3, _) => Fate::Panics,
        _ => Fate::After(10),
    });
    let mut world = Vec::new();
    let report = crew.step(&mut world, &mind).await.unwrap();
    assert_eq!(
        failures(&report),
        [told("walker 2", "429 Too Many Requests"), told("walker 3", "panicked: on purpose")]
    );
    let asked: Vec<usize> = (0..4).map(|agent| mind.times(agent)).collect();
    assert_eq!(asked, [1, 2, 3, 1], "done; mended; never; not to be mended");
    let rounds: Vec<u32> = report.agents.iter().map(|agent| agent.rounds).collect();
    assert_eq!(rounds, [1, 2, 3, 1]);
    assert_eq!(world, [0, 1], "in order, after all rounds");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_fails_to_observe_is_left_out() {
    let again = OnError::RetryPending { rounds: 3, wait: Duration::ZERO };
    let mut crew = crew(3, CrewConfig { on_error: again, ..CrewConfig::default() });
    crew.agents_mut()[1].blind = true;
    let mind = mind(|_, _| Fate::After(10));
    let mut world = Vec::new();
    let report = crew.step(&mut world, &mind).await.unwrap();
    assert_eq!(failures(&report), [told("walker 1", "could not observe: it is dark")]);
    assert_eq!((mind.times(1), mind.times(0), world), (0, 1, vec![0, 2]));
}

#[tokio::test(start_paused = true)]
async fn raise_keeps_the_tick_open_for_missing_answers() {
    let mut crew = crew(4, CrewConfig { on_error: OnError::Raise, ..CrewConfig::default() });
    let mind = mind(|agent, time| match (agent, time) {
        (2, 1) => Fate::Clumsy,
        (1, 1) => Fate::Limited,
        (0, _) => Fate::After(0),
        _ => Fate::After(500),
    });
    let mut world = Vec::new();
    let raised = crew.step(&mut world, &mind).await.unwrap_err();
    assert_eq!(raised.to_string(), "agent `walker 1`: 429 Too Many Requests");
    assert!(matches!(raised.report.agents[3].result, StepOutcome::Pending));
    assert_eq!((world.len(), crew.tick()), (0, 0), "nobody acts");

    // Now all have an answer, and the third one cannot use its own.
    let raised = crew.step(&mut world, &mind).await.unwrap_err();
    assert_eq!(raised.to_string(), "agent `walker 2`: could not apply the answer: it fell");
    let codes: Vec<ErrorCode> = raised.report.failures().map(|(_, error)| error.code()).collect();
    assert_eq!(codes, [ErrorCode::AnswerUnusable]);
    assert!(matches!(raised.report.agents[3].result, StepOutcome::Decided));
    assert_eq!(world, [0, 1]);

    let report = crew.step(&mut world, &mind).await.unwrap();
    assert_eq!(failures(&report), [told("walker 2", "could not apply the answer: it fell")]);
    assert_eq!((world, crew.tick()), (vec![0, 1, 3], 1));
    assert!(crew.agents().iter().all(|agent| agent.acted.len() == 1), "no answer is brought twice");
    assert_eq!(mind.times(3), 2, "the first time it was cut off");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_step_keeps_decisions() {
    let mut crew = crew(3, CrewConfig::default());
    let mind = mind(|agent, _| Fate::After(if agent == 2 { 5000 } else { 10 }));
    let mut world = Vec::new();
    let cut = tokio::time::timeout(Duration::from_secs(1), crew.step(&mut world, &mind)).await;
    assert!(cut.is_err());
    assert_eq!((world.len(), crew.tick()), (0, 0));
    assert!(crew.step(&mut world, &mind).await.unwrap().is_complete());
    assert_eq!((mind.times(0), mind.times(1), mind.times(2)), (1, 1, 2));
    assert_eq!(world, [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn agents_can_join_and_leave_an_open_tick() {
    let mut crew = crew(3, CrewConfig { on_error: OnError::Raise, ..CrewConfig::default() });
    let mind = mind(|agent, _| if agent == 1 { Fate::Limited } else { Fate::After(0) });
    let mut world = Vec::new();
    let _ = crew.step(&mut world, &mind).await.unwrap_err();
    crew.retain(|agent| agent.number != 1);
    crew.push(Walker { number: 9, acted: Vec::new(), blind: false });
    assert!(crew.step(&mut world, &mind).await.unwrap().is_complete());
    assert_eq!((world, mind.times(0)), (vec![0, 2, 9], 1));
}

#[tokio::test]
async fn a_step_can_be_sent_to_another_thread() {
    fn sendable<T: Send>(it: T) -> T {
        it
    }
    let mut crew = crew(1, CrewConfig::default());
    let mind = mind(|_, _| Fate::After(0));
    assert!(sendable(crew.step(&mut Vec::new(), &mind)).await.unwrap().is_complete());
}
