//! Unit and property tests of the retry rule.

use proptest::prelude::*;

use super::*;

fn answered(status: u16, headers: &[(&str, &'static str)]) -> AttemptOutcome {
    let header = |name: &str| headers.iter().find(|(other, _)| *other == name).map(|(_, v)| *v);
    AttemptOutcome::Answered(ResponseSignals::read(status, header, 784_111_770))
}

fn first_decision(policy: &RetryPolicy, outcome: &AttemptOutcome) -> RetryDecision {
    let mut budget = RetryBudget::new(policy.budget);
    let mut call = RetryState::begin(&mut budget, Duration::ZERO);
    policy.decide(&mut call, &mut budget, outcome, AttemptTiming::at(Duration::ZERO, 0.5))
}

fn wait(milliseconds: u64) -> RetryDecision {
    RetryDecision::Wait(Duration::from_millis(milliseconds))
}

#[test]
fn final_answers_end_a_call() {
    for status in [200, 201, 302, 400, 401, 404, 409, 410, 412, 422, 423, 501, 505] {
        let decision = first_decision(&RetryPolicy::SEMEL, &answered(status, &[]));
        assert_eq!(decision, RetryDecision::Done, "{status}");
    }
}

#[test]
fn failures_are_retried_with_jitter() {
    for status in [408, 425, 500, 502, 503, 504] {
        assert_eq!(first_decision(&RetryPolicy::SEMEL, &answered(status, &[])), wait(25));
    }
    assert_eq!(first_decision(&RetryPolicy::SEMEL, &answered(429, &[])), wait(500));
}

#[test]
fn the_server_decides_where_it_says_so() {
    let no = ("x-should-retry", "false");
    for status in [409, 429, 500, 503, 504] {
        let answer = answered(status, &[no, ("retry-after", "1")]);
        assert_eq!(first_decision(&RetryPolicy::SEMEL, &answer), RetryDecision::Done, "{status}");
    }
    let yes = ("x-should-retry", "true");
    for status in [400, 404, 409, 423, 501] {
        let answer = answered(status, &[yes, ("retry-after-ms", "300"), ("retry-after", "1")]);
        assert_eq!(first_decision(&RetryPolicy::SEMEL, &answer), wait(325), "{status}");
    }
}

#[test]
fn a_date_in_retry_after_counts_from_now() {
    let date = ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(first_decision(&RetryPolicy::SEMEL, &answered(503, &[date])), wait(7025));
    let past = ("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT");
    assert_eq!(first_decision(&RetryPolicy::SEMEL, &answered(409, &[past])), wait(25));
    for text in ["soon", "-1", "", "1.5", "Sun, 06 Foo 1994 08:49:37 GMT", "9999999999"] {
        let answer = answered(409, &[("retry-after", text)]);
        assert_eq!(first_decision(&RetryPolicy::SEMEL, &answer), RetryDecision::Done, "{text}");
    }
}

#[test]
fn waiting_for_a_running_operation_is_bounded_by_the_deadline_alone() {
    let policy = RetryPolicy::SEMEL;
    let mut budget = RetryBudget::new(policy.budget);
    let mut call = RetryState::begin(&mut budget, Duration::ZERO);
    let running = answered(409, &[("retry-after", "1")]);
    for second in 0..58 {
        let at = AttemptTiming::at(Duration::from_secs(second), 0.0);
        assert_eq!(policy.decide(&mut call, &mut budget, &running, at), wait(1000), "{second}");
    }
    let late = AttemptTiming::at(Duration::from_secs(59), 0.0);
    let decision = policy.decide(&mut call, &mut budget, &running, late);
    assert_eq!(decision, RetryDecision::GiveUp(GiveUpReason::Deadline));
    assert_eq!(call.attempts(), 1);
}

#[test]
fn a_bucket_of_aws_pays_35_retries_and_gets_them_back() {
    let policy = RetryPolicy::AWS;
    let mut budget = RetryBudget::new(policy.budget);
    let failed = answered(500, &[]);
    let at = AttemptTiming::at(Duration::ZERO, 0.0);
    let mut calls: Vec<RetryState> = Vec::new();
    for _ in 0..35 {
        let mut call = RetryState::begin(&mut budget, Duration::ZERO);
        assert_eq!(policy.decide(&mut call, &mut budget, &failed, at), wait(0));
        calls.push(call);
    }
    let mut call = RetryState::begin(&mut budget, Duration::ZERO);
    let refused = RetryDecision::GiveUp(GiveUpReason::Budget);
    assert_eq!(policy.decide(&mut call, &mut budget, &failed, at), refused);
    // 10 tokens are left: enough for two throttled retries.
    let throttled = answered(429, &[]);
    assert_eq!(policy.decide(&mut call, &mut budget, &throttled, at), wait(0));
    for mut succeeded in calls {
        let done = policy.decide(&mut succeeded, &mut budget, &answered(200, &[]), at);
        assert_eq!(done, RetryDecision::Done);
    }
    assert_eq!(budget.withdraw(Duration::ZERO, false), Some(14));
}

#[test]
fn grpc_stops_at_half_of_its_tokens() {
    let policy = RetryPolicy::GRPC;
    let mut budget = RetryBudget::new(policy.budget);
    let unavailable = answered(200, &[("grpc-status", "14")]);
    let at = AttemptTiming::at(Duration::ZERO, 0.5);
    let mut decide = || {
        let mut call = RetryState::begin(&mut budget, Duration::ZERO);
        policy.decide(&mut call, &mut budget, &unavailable, at)
    };
    for _ in 0..4 {
        assert_eq!(decide(), wait(50));
    }
    assert_eq!(decide(), RetryDecision::GiveUp(GiveUpReason::Budget));
}

fn outcome() -> impl Strategy<Value = AttemptOutcome> {
    let signals = (100_u16..600, any::<Option<bool>>(), any::<Option<bool>>(), 0_u64..5000);
    prop_oneof![
        Just(AttemptOutcome::NotSent),
        Just(AttemptOutcome::Broken),
        Just(AttemptOutcome::TimedOut),
        signals.prop_map(|(status, x_should_retry, stripe_should_retry, delay)| {
            AttemptOutcome::Answered(ResponseSignals {
                x_should_retry,
                stripe_should_retry,
                retry_after: (delay % 3 == 0).then(|| Duration::from_millis(delay)),
                aws_retry_after: (delay % 5 == 0).then(|| Duration::from_millis(delay)),
                ..ResponseSignals::of_status(status)
            })
        }),
    ]
}

fn policy() -> impl Strategy<Value = RetryPolicy> {
    proptest::sample::select(&["semel", "aws", "stripe", "grpc"])
        .prop_map(|name| RetryPolicy::preset(name).unwrap())
}

proptest! {
    /// No sequence of outcomes makes more attempts than the policy has, or begins one after the
    /// deadline; and no delay is longer than the backoff and what the server asked for.
    #[test]
    fn a_call_stays_within_its_bounds(
        policy in policy(),
        steps in proptest::collection::vec((outcome(), 0.0..1.0_f64), 1..200),
    ) {
        let mut budget = RetryBudget::new(policy.budget);
        let mut call = RetryState::begin(&mut budget, Duration::ZERO);
        let mut now = Duration::ZERO;
        for (outcome, random) in steps {
            let at = AttemptTiming::at(now, random);
            let decision = policy.decide(&mut call, &mut budget, &outcome, at);
            prop_assert!(call.attempts() <= policy.attempts_max);
            let RetryDecision::Wait(delay) = decision else { break };
            let asked = if let AttemptOutcome::Answered(signals) = &outcome {
                signals.retry_after.unwrap_or_default()
            } else {
                Duration::ZERO
            };
            prop_assert!(delay <= policy.backoff.max + asked + AWS_RETRY_AFTER_SPAN);
            prop_assert!(policy.rule != RetryRule::Semel || delay >= asked);
            now += delay;
            prop_assert!(policy.deadline.is_none_or(|deadline| now < deadline));
        }
    }

    /// In any ten seconds a client retries a tenth of its calls, or fills up to one request a
    /// second.
    #[test]
    fn the_window_bounds_the_retries(gaps in proptest::collection::vec(0_u64..3000, 1..400)) {
        let policy = RetryPolicy { attempts_max: 100, deadline: None, ..RetryPolicy::SEMEL };
        let mut budget = RetryBudget::new(policy.budget);
        let (mut first_attempts, mut retries) = (Vec::new(), Vec::new());
        let mut now = Duration::ZERO;
        for gap in gaps {
            now += Duration::from_millis(gap);
            let mut call = RetryState::begin(&mut budget, now);
            first_attempts.push(now.as_secs());
            let (broken, at) = (AttemptOutcome::Broken, AttemptTiming::at(now, 0.0));
            while let RetryDecision::Wait(_) = policy.decide(&mut call, &mut budget, &broken, at)
            {
                retries.push(now.as_secs());
            }
        }
        for end in 0..=now.as_secs() {
            let within = |at: &&u64| **at <= end && end - **at < 10;
            let firsts = first_attempts.iter().filter(within).count();
            let again = retries.iter().filter(within).count();
            prop_assert!(again * 10 <= firsts + 100 || again + firsts <= 10, "{firsts} {again}");
        }
    }
}
