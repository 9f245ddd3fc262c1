//! Tests endpoints that fail partly, under paused time: the cost of the gate compared with callers that share nothing
//! and retry by themselves (100 ms doubling to 1 s, drawn from 0, at most 12 attempts).

use std::{collections::HashMap, collections::VecDeque};

use super::*;

/// How an endpoint fails requests. Times are in seconds.
#[derive(Clone)]
struct Faults {
    service: f64,
    /// A share of requests fails independently, each after half of its time.
    share: f64,
    /// The trouble that those failures mean.
    trouble: EndpointTrouble,
    /// Until a time another share fails.
    before: (f64, f64),
    /// So many first attempts of each request fail.
    first: usize,
    /// Every request whose number this divides fails always.
    never: usize,
    /// Time in which it refuses new requests and goes on with those that it has.
    drains: (f64, f64),
    /// It takes so many requests in any minute, and refuses others.
    per_minute: usize,
    /// It takes so many requests a second, and six seconds' worth at once, and refuses others.
    per_second: f64,
}

const FAULTLESS: Faults = Faults {
    service: 0.05,
    share: 0.0,
    trouble: EndpointTrouble::Server,
    before: (0.0, 0.0),
    first: 0,
    never: usize::MAX,
    drains: (0.0, 0.0),
    per_minute: usize::MAX,
    per_second: f64::INFINITY,
};

struct Faulty {
    faults: Faults,
    began: Instant,
    /// Requests of each call.
    seen: Mutex<HashMap<usize, usize>>,
    minute: Mutex<VecDeque<Instant>>,
    bucket: Mutex<(f64, Instant)>,
}

impl Faulty {
    fn new(faults: &Faults) -> Self {
        let began = Instant::now();
        let bucket = Mutex::new((6.0 * faults.per_second, began));
        Self { faults: faults.clone(), began, seen: Mutex::default(), minute: Mutex::default(), bucket }
    }

    async fn ask(&self, call: usize) -> Result<(), EndpointTrouble> {
        let faults = &self.faults;
        let times = {
            let mut seen = self.seen.lock().unwrap();
            let times = seen.entry(call).or_default();
            *times += 1;
            *times
        };
        let at = self.began.elapsed().as_secs_f64();
        if at >= faults.drains.0 && at < faults.drains.1 {
            sleep(SECOND / 1000).await;
            return Err(OUTAGE);
        }
        if self.is_full() {
            sleep(SECOND / 1000).await;
            return Err(EndpointTrouble::Throttled);
        }
        let share = if at < faults.before.0 { faults.before.1 } else { faults.share };
        let fails = times <= faults.first || call.is_multiple_of(faults.never) || fastrand::f64() < share;
        let service = faults.service * (0.7 + 0.6 * fastrand::f64());
        sleep(Duration::from_secs_f64(if fails { service / 2.0 } else { service })).await;
        if fails { Err(faults.trouble.clone()) } else { Ok(()) }
    }

    fn is_full(&self) -> bool {
        let now = Instant::now();
        let mut minute = self.minute.lock().unwrap();
        minute.retain(|at| now - *at < 60 * SECOND);
        let (tokens, at) = &mut *self.bucket.lock().unwrap();
        let rate = self.faults.per_second;
        *tokens = (*tokens + (now - *at).as_secs_f64() * rate).min(6.0 * rate);
        *at = now;
        if minute.len() >= self.faults.per_minute || *tokens < 1.0 {
            return true;
        }
        minute.push_back(now);
        *tokens -= 1.0;
        false
    }
}

/// The outcome of a number of requests.
#[derive(Debug)]
struct Outcome {
    /// Seconds until the last answer.
    took: f64,
    lost: usize,
    /// Requests for each call, and most for one.
    each: f64,
    most: usize,
}

/// So many calls of so many callers, with a gate or with nothing that they share.
async fn run(faults: &Faults, calls: usize, callers: usize, gate: bool) -> Outcome {
    let server = Arc::new(Faulty::new(faults));
    let (gate, next) = (gate.then(Gate::default), Arc::new(AtomicUsize::new(0)));
    let mut calling = JoinSet::new();
    for _ in 0..callers {
        let (server, gate, next) = (Arc::clone(&server), gate.clone(), Arc::clone(&next));
        calling.spawn(async move {
            let (mut last, mut lost) = (0.0, 0);
            loop {
                let call = next.fetch_add(1, SeqCst) + 1;
                if call > calls {
                    return (last, lost);
                }
                let answered = match &gate {
                    Some(gate) => repeat(gate, || server.ask(call)).await.is_ok(),
                    None => plain(&server, call).await,
                };
                if answered {
                    last = server.began.elapsed().as_secs_f64();
                } else {
                    lost += 1;
                }
            }
        });
    }
    let ended = calling.join_all().await;
    if let Some(gate) = gate {
        assert_eq!((gate.stats().in_flight, gate.stats().waiting), (0, 0));
    }
    let seen = server.seen.lock().unwrap();
    Outcome {
        took: ended.iter().map(|(last, _)| *last).fold(0.0, f64::max),
        lost: ended.iter().map(|(_, lost)| lost).sum(),
        each: seen.values().sum::<usize>() as f64 / calls as f64,
        most: seen.values().max().copied().unwrap_or(0),
    }
}

async fn plain(server: &Faulty, call: usize) -> bool {
    for attempt in 1..=12 {
        if server.ask(call).await.is_ok() {
            return true;
        }
        let wait = (0.1 * 2_f64.powi(attempt - 1)).min(1.0) * fastrand::f64();
        sleep(Duration::from_secs_f64(wait)).await;
    }
    false
}

/// Runs of both kinds with other draws, and the sum of their times: of the gate, and of callers that share nothing.
async fn both(faults: &Faults, calls: usize, callers: usize, seeds: u64) -> (Vec<Outcome>, f64, f64) {
    let (mut outcomes, mut ours, mut theirs) = (Vec::new(), 0.0, 0.0);
    for seed in 0..seeds {
        fastrand::seed(seed);
        theirs += run(faults, calls, callers, false).await.took;
        fastrand::seed(seed);
        let outcome = run(faults, calls, callers, true).await;
        ours += outcome.took;
        outcomes.push(outcome);
    }
    (outcomes, ours, theirs)
}

#[tokio::test(start_paused = true)]
async fn partial_failures_cost_proportional_requests() {
    for trouble in [EndpointTrouble::Server, OUTAGE, EndpointTrouble::Throttled] {
        for (share, service, callers) in [
            (0.05, 0.05, 64),
            (0.2, 0.05, 64),
            (0.4, 0.05, 64),
            (0.05, 1.0, 64),
            (0.2, 1.0, 64),
            (0.4, 1.0, 64),
            (0.2, 0.05, 4),
            (0.2, 0.05, 2),
        ] {
            let faults = Faults { share, service, trouble: trouble.clone(), ..FAULTLESS };
            let (outcomes, ours, theirs) = both(&faults, 500, callers, 5).await;
            let case = format!("{trouble:?} {share} {service} {callers}: {outcomes:?}");
            assert!(ours <= 1.3 * theirs, "{ours} of {theirs} s, {case}");
            assert!(outcomes.iter().all(|outcome| outcome.lost == 0), "{case}");
            let each = outcomes.iter().map(|outcome| outcome.each).sum::<f64>() / 5.0;
            assert!(each <= 1.1 / (1.0 - share), "{each} requests, {case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn simultaneous_first_failures_recover_quickly() {
    for (trouble, first, within) in [
        (EndpointTrouble::Server, 1, 0.3),
        (OUTAGE, 1, 0.3),
        (EndpointTrouble::Throttled, 1, 0.3),
        (EndpointTrouble::Server, 3, 3.0),
        (EndpointTrouble::Throttled, 3, 3.0),
    ] {
        let faults = Faults { trouble, first, ..FAULTLESS };
        for seed in 0..20 {
            fastrand::seed(seed);
            let outcome = run(&faults, 20, 20, true).await;
            assert!(outcome.lost == 0 && outcome.took <= within, "{:?} {first}: {outcome:?}", faults.trouble);
            assert!(outcome.most == first + 1, "{outcome:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_succeeds_fails_alone() {
    for (share, seeds) in [(0.0, 5), (0.2, 20)] {
        let faults = Faults { share, never: 20, ..FAULTLESS };
        let (outcomes, ours, theirs) = both(&faults, 1000, 64, seeds).await;
        assert!(ours <= 1.3 * theirs, "the others: {ours} of {theirs} s, {outcomes:?}");
        assert!(outcomes.iter().all(|outcome| outcome.lost == 50), "{outcomes:?}");
    }
    let faults = Faults { never: 100, ..FAULTLESS };
    let outcome = run(&faults, 199, 64, true).await;
    assert!(outcome.lost == 1 && (6..=12).contains(&outcome.most), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_errors_loses_no_request() {
    for service in [0.05, 1.0] {
        let faults = Faults { before: (60.0, 1.0), service, ..FAULTLESS };
        let outcome = run(&faults, 100, 100, true).await;
        assert!(outcome.lost == 0 && outcome.each <= 12.0 && outcome.took <= 75.0, "{outcome:?}");
    }
    let faults = Faults { before: (10.0, 0.9), share: 0.05, service: 0.5, ..FAULTLESS };
    for trouble in [EndpointTrouble::Server, OUTAGE] {
        let faults = Faults { trouble, ..faults.clone() };
        let (mut ours, mut theirs) = (0, 0);
        for seed in 0..10 {
            fastrand::seed(seed);
            ours += run(&faults, 500, 64, true).await.lost;
            theirs += run(&faults, 500, 64, false).await.lost;
        }
        assert!(ours <= theirs + theirs / 10, "{ours} lost, {theirs} of callers that share nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_draining_server_loses_no_request() {
    // Old requests are answered for half a minute while new ones are refused.
    for drains in [(1.0, 61.0), (95.0, 155.0)] {
        let faults = Faults { service: 30.0, drains, ..FAULTLESS };
        let outcome = run(&faults, 400, 64, true).await;
        assert!(outcome.lost == 0 && outcome.most <= 10, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_obeyed() {
    let window = Faults { per_minute: 600, ..FAULTLESS };
    let bucket = Faults { per_second: 10.0, ..FAULTLESS };
    for (faults, least) in [(window, 60.0), (bucket, 94.0)] {
        for seed in 0..5 {
            fastrand::seed(seed);
            let outcome = run(&faults, 1000, 64, true).await;
            assert!(outcome.lost == 0 && outcome.each <= 1.25, "{outcome:?}");
            assert!(outcome.took >= least - 1.0 && outcome.took <= least + 10.0, "{outcome:?}");
        }
    }
}
