//! Tests properties of delays over many inputs, and the loop under paused time. No test sleeps.

use std::{cell::RefCell, time::Duration};

use tokio::time::Instant;

use super::{attempts::RetryOutcome, *};

const SECOND: Duration = Duration::from_secs(1);

fn failed(attempts: u32, answering: bool) -> FailureRecord {
    let endpoint = if answering { EndpointState::Answering } else { EndpointState::Down };
    FailureRecord { attempts, waits: attempts, failing: 1.0, endpoint, down: None }
}

/// Every profile with inputs over its whole range.
fn cases() -> impl Iterator<Item = (RetryPolicy, FailureRecord, Option<Duration>, Duration, f64)> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..20_000).map(move |_| {
        let (_, profile) = random.choice(RetryPolicy::PROFILES).unwrap();
        let policy = profile();
        let hint = random.bool().then(|| Duration::from_millis(random.u64(..200_000)));
        let elapsed = Duration::from_millis(random.u64(..4_000_000));
        (policy, failed(random.u32(..40), random.bool()), hint, elapsed, random.f64())
    })
}

#[test]
fn waits_keep_to_every_limit() {
    for (policy, failed, hint, elapsed, draw) in cases() {
        let decision = policy.delay(&failed, hint, elapsed, &mut || draw);
        let Decision::Wait(wait) = decision else { continue };
        assert!(failed.attempts < policy.max_attempts);
        assert!(wait >= RetryPolicy::SHORTEST, "{wait:?}");
        assert!(wait >= hint.unwrap_or_default(), "a hint is a lower bound: {wait:?} {hint:?}");
        assert!(wait <= policy.cap.max(hint.unwrap_or_default()) + SECOND, "{wait:?}");
        assert!(hint.unwrap_or_default() <= policy.retry_after_max);
        assert!(elapsed + wait <= policy.total, "never past the total");
    }
}

#[test]
fn the_first_wait_is_base_and_later_ones_double() {
    let policy = RetryPolicy::agent();
    let longest_waits =
        |answering| -> Vec<u128> { policy.longest_waits(answering).map(|wait| wait.as_millis()).collect() };
    assert_eq!(longest_waits(true), [100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000, 1000, 1000]);
    assert_eq!(longest_waits(false), [100, 200, 400, 1600, 6400, 25600, 30000, 30000, 30000, 30000, 30000]);
    let fast: Vec<u128> = RetryPolicy::fast().longest_waits(true).map(|wait| wait.as_millis()).collect();
    assert_eq!(fast, [50, 100]);
    for profile in [RetryPolicy::fast(), RetryPolicy::agent()] {
        assert_eq!(profile.longest_waits(true).next(), Some(profile.base));
    }
    let failing = FailureRecord { endpoint: EndpointState::Failing, ..failed(11, false) };
    assert_eq!(policy.delay(&failing, None, Duration::ZERO, &mut || 1.0), Decision::Wait(8 * SECOND));
    // Nobody is there, or never was: that is told soon.
    let silent = FailureRecord { endpoint: EndpointState::Silent, ..failed(11, false) };
    assert_eq!(policy.delay(&silent, None, Duration::ZERO, &mut || 1.0), Decision::Wait(SECOND));
}

#[test]
fn an_outage_is_waited_for_from_the_first_failure_on() {
    let down = |seconds| {
        let failed = FailureRecord { down: Some(seconds * SECOND), ..failed(2, false) };
        RetryPolicy::fast().delay(&failed, None, Duration::ZERO, &mut || 1.0)
    };
    assert_eq!(down(9), Decision::Wait(Duration::from_millis(100)));
    assert_eq!(down(10), Decision::GiveUp(GiveUp::Outage { waited: 10 * SECOND }));
}

#[test]
fn jitter_starts_at_zero_or_at_half() {
    let draw = |answering, value: f64| {
        RetryPolicy::agent().delay(&failed(3, answering), None, Duration::ZERO, &mut || value)
    };
    assert_eq!(draw(true, 0.0), Decision::Wait(RetryPolicy::SHORTEST));
    assert_eq!(draw(true, 0.5), Decision::Wait(Duration::from_millis(200)));
    assert_eq!(draw(false, 0.0), Decision::Wait(Duration::from_millis(200)));
}

#[test]
fn patient_waits_are_constant_with_jitter() {
    let draw =
        |value: f64| RetryPolicy::patient().delay(&failed(7, true), None, Duration::ZERO, &mut || value);
    assert_eq!(draw(0.0), Decision::Wait(30 * SECOND));
    assert_eq!(draw(0.5), Decision::Wait(Duration::from_millis(30_500)));
}

#[test]
fn a_request_that_fails_alone_is_given_up() {
    let policy = RetryPolicy::agent();
    let gives_up = |attempts, failing| {
        let failed = FailureRecord { failing, ..failed(attempts, true) };
        match policy.delay(&failed, None, Duration::ZERO, &mut || 0.0) {
            Decision::GiveUp(reason) => Some(reason),
            Decision::Wait(_) => None,
        }
    };
    assert_eq!(gives_up(5, 0.0), None, "not before six");
    assert_eq!(gives_up(6, 0.02), Some(GiveUp::OnlyThis(6)));
    assert_eq!(gives_up(6, 0.2), None, "one in 15,000 is unlucky");
    assert_eq!(gives_up(8, 0.2), Some(GiveUp::OnlyThis(8)));
    assert_eq!(gives_up(11, 0.4), None);
    assert_eq!(gives_up(12, 0.4), Some(GiveUp::Attempts(12)));
    let words = "gave up after 6 attempts: other requests to this endpoint are answered";
    assert_eq!(GiveUp::OnlyThis(6).to_string(), words);
}

#[test]
fn reasons_are_shown_in_words() {
    let policy = RetryPolicy::agent();
    let reason = |attempts, hint: Option<u64>, elapsed| match policy.delay(
        &failed(attempts, true),
        hint.map(Duration::from_secs),
        Duration::from_secs(elapsed),
        &mut || 1.0,
    ) {
        Decision::GiveUp(reason) => reason.to_string(),
        Decision::Wait(wait) => panic!("waits {wait:?}"),
    };
    assert_eq!(reason(12, None, 0), "gave up after 12 attempts");
    assert_eq!(reason(1, Some(300), 0), "gave up: the server asks to wait 5m, more than the limit of 2m");
    assert_eq!(
        reason(1, Some(100), 550),
        "gave up: waiting 1m 41s more would pass the 10m of one request with all its attempts"
    );
}

#[test]
fn a_policy_is_shown_in_words() {
    assert_eq!(
        RetryPolicy::agent().to_string(),
        "up to 12 attempts, 6 where nearly all other requests are answered, waits up to 100ms, 200ms, 400ms, 800ms, then 1s \
         (drawn from 0), while it is down 100ms, 200ms, 400ms, 1s 600ms, 6s 400ms, 25s 600ms, then 30s (drawn from half), 10m \
         in all; Retry-After up to 2m; an endpoint that is down is probed by one request after 200ms, later 5s, and waited for up to 10m"
    );
    let patient = RetryPolicy::patient().to_string();
    assert!(patient.starts_with("up to 10 attempts, 6 where nearly all"), "{patient}");
    assert!(patient.contains(", waits of 30s, 1h in all"), "{patient}");
    let fast = RetryPolicy::fast().to_string();
    assert!(fast.starts_with("3 attempts, waits up to 50ms, 100ms (drawn from 0), 10m in all"), "{fast}");
    let once = RetryPolicy { max_attempts: 1, ..RetryPolicy::fast() }.to_string();
    assert!(once.starts_with("1 attempt, 10m in all"), "{once}");
}

/// Runs the loop over scripted failures and returns it with the times at which attempts began.
async fn drive(
    policy: &RetryPolicy,
    deadline: Option<Duration>,
    script: &[(Retry, Option<Duration>, Duration)],
) -> (RetryOutcome<&'static str, usize>, Vec<Duration>) {
    let start = Instant::now();
    let began = RefCell::new(Vec::new());
    let run = run(policy, deadline.map(|limit| start + limit), |attempt| {
        let index = began.borrow().len();
        began.borrow_mut().push(start.elapsed());
        assert_eq!(attempt.number as usize, index + 1);
        async move {
            let Some((retry, hint, queued)) = script.get(index).copied() else { return Ok("answer") };
            tokio::time::sleep(queued).await;
            Err(Failure { error: index, retry, hint, blame: FailureWeight::OWN, queued })
        }
    });
    let run = run.await;
    (run, began.into_inner())
}

#[tokio::test(start_paused = true)]
async fn waits_between_attempts_are_recorded() {
    let hint = Some(10 * SECOND);
    let (run, began) = drive(&RetryPolicy::agent(), None, &[(Retry::Yes, hint, Duration::ZERO); 2]).await;
    assert_eq!((run.result, run.failures), (Ok("answer"), vec![0, 1]));
    assert_eq!(began.len(), 3);
    assert!(began[1] >= 10 * SECOND && began[2] >= 20 * SECOND && began[2] <= 23 * SECOND, "{began:?}");
    assert!(run.waited >= 20 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded() {
    let (run, began) = drive(&RetryPolicy::agent(), None, &[(Retry::Yes, None, Duration::ZERO); 20]).await;
    assert_eq!(run.result, Err(StopReason::GaveUp(GiveUp::Attempts(12))));
    assert_eq!((run.failures.len(), began.len()), (12, 12));
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_are_not_repeated() {
    let (run, began) = drive(&RetryPolicy::agent(), None, &[(Retry::Never, None, Duration::ZERO); 2]).await;
    assert_eq!((run.result, began.len()), (Err(StopReason::Permanent), 1));
}

#[tokio::test(start_paused = true)]
async fn a_class_may_have_fewer_retries() {
    let class = Retry::AtMost { class: "server", retries: 2 };
    let (run, began) = drive(&RetryPolicy::agent(), None, &[(class, None, Duration::ZERO); 9]).await;
    assert_eq!(run.result, Err(StopReason::GaveUp(GiveUp::Class { class: "server", retries: 2 })));
    assert_eq!(began.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stale_connection_is_repeated_at_once_but_counts() {
    let (run, began) = drive(&RetryPolicy::fast(), None, &[(Retry::AtOnce, None, Duration::ZERO)]).await;
    assert_eq!((run.result, run.failures), (Ok("answer"), vec![0]));
    assert_eq!(began, [Duration::ZERO; 2]);
    let once = RetryPolicy { max_attempts: 1, ..RetryPolicy::agent() };
    let (run, began) = drive(&once, None, &[(Retry::AtOnce, None, Duration::ZERO); 2]).await;
    assert_eq!((run.result, began.len()), (Err(StopReason::GaveUp(GiveUp::Attempts(1))), 1));
}

#[tokio::test(start_paused = true)]
async fn every_request_counts_whatever_its_cause() {
    for causes in [
        [Retry::Again, Retry::Again, Retry::Again],
        [Retry::AtOnce, Retry::Again, Retry::Yes],
        [Retry::Yes, Retry::AtMost { class: "bad_answer", retries: 2 }, Retry::Again],
    ] {
        let script = [causes, causes].concat().into_iter().map(|retry| (retry, None, Duration::ZERO));
        let script: Vec<_> = script.collect();
        let (run, began) = drive(&RetryPolicy::fast(), None, &script).await;
        assert_eq!(run.result, Err(StopReason::GaveUp(GiveUp::Attempts(3))), "{causes:?}");
        assert_eq!(began.len(), 3, "{causes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn queueing_counts_only_toward_the_deadline() {
    let hour = Duration::from_secs(3600);
    let (run, _) = drive(&RetryPolicy::agent(), None, &[(Retry::Yes, None, hour); 3]).await;
    assert_eq!(run.result, Ok("answer"));
    let deadline = Some(Duration::from_secs(5));
    let (run, began) =
        drive(&RetryPolicy::agent(), deadline, &[(Retry::Yes, Some(6 * SECOND), Duration::ZERO)]).await;
    assert!(matches!(run.result, Err(StopReason::GaveUp(GiveUp::Deadline { .. }))));
    assert_eq!(began.len(), 1);
}

mod schedule {
    //! Tests of the schedules of all policies.

    use proptest::prelude::*;

    use super::super::*;

    fn time() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (0_u64..100_000).prop_map(Duration::from_millis),
            any::<u64>().prop_map(Duration::from_secs),
            Just(Duration::MAX),
        ]
    }

    prop_compose! {
        fn policy()(
            max_attempts in any::<u32>(), base in time(), cap in time(), flat in any::<bool>(),
            total in time(), retry_after_max in time(), outage in time(), reissue in any::<u32>(),
        ) -> RetryPolicy {
            RetryPolicy { max_attempts, base, cap, flat, total, retry_after_max, outage, reissue }
        }
    }

    proptest! {
        #[test]
        fn waits_are_bounded_and_hints_respected(
            policy in policy(), attempts in any::<u32>(), hint in prop::option::of(time()), elapsed in time(),
            draw in 0.0..1.0_f64, failing in 0.0..=1.0_f64, waits in any::<u32>(), down in prop::option::of(time()),
            endpoint in prop::sample::select(vec![
                EndpointState::Answering, EndpointState::Down, EndpointState::Failing, EndpointState::Silent,
            ]),
        ) {
            let failed = FailureRecord { attempts, waits, failing, endpoint, down };
            match policy.delay(&failed, hint, elapsed, &mut || draw) {
                Decision::Wait(wait) => {
                    prop_assert!(attempts < policy.max_attempts);
                    prop_assert!(elapsed.saturating_add(wait) <= policy.total, "{wait:?}");
                    prop_assert!(down.is_none_or(|down| down.saturating_add(wait) <= policy.outage), "{wait:?}");
                    prop_assert!(hint.is_none_or(|hint| wait >= hint && hint <= policy.retry_after_max));
                    let own = if policy.flat { policy.base } else { policy.cap };
                    let most = own.max(hint.unwrap_or_default()).max(RetryPolicy::SHORTEST);
                    prop_assert!(wait <= most.saturating_add(Duration::from_secs(1)), "{wait:?} over {most:?}");
                }
                Decision::GiveUp(GiveUp::Attempts(_)) => prop_assert!(attempts >= policy.max_attempts),
                Decision::GiveUp(GiveUp::OnlyThis(_)) => {
                    prop_assert!(attempts >= 6 && failing.powf(f64::from(attempts)) <= 1e-5);
                }
                Decision::GiveUp(GiveUp::HintTooLong { hint, limit }) => prop_assert!(hint > limit),
                Decision::GiveUp(GiveUp::Total { wait, limit }) => {
                    prop_assert!(elapsed.saturating_add(wait) > limit);
                }
                Decision::GiveUp(GiveUp::Outage { waited }) => prop_assert_eq!(Some(waited), down),
                Decision::GiveUp(other) => prop_assert!(false, "not the policy's to say: {other:?}"),
            }
        }
    }
}
