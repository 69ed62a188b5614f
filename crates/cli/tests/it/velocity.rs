//! Velocity limits and duplicates of the real binary.

use std::sync::Arc;

use semel_testkit::{gate::Gate, torture};

use crate::{
    common::{
        ClientRequest, Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge, wait_until,
    },
    operators::reaches,
};

/// A route with these settings.
fn route(settings: &str) -> String {
    format!(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"payments\"\ncaller = [\"anonymous\"]\n\
         key = {{ required = true }}\n{settings}\n"
    )
}

async fn start(upstream: &Upstream, settings: &str) -> Gateway {
    Setup::new(&upstream.url()).on_disk().tables(route(settings)).start().await
}

fn card(key: &str, number: usize) -> ClientRequest {
    charge(key, &format!(r#"{{"card":"4000-{number:06}","amount":100}}"#))
}

/// Sends all at once and returns the statuses in order.
async fn all(gateway: &Arc<Gateway>, requests: Vec<ClientRequest>) -> Vec<TestResponse> {
    let sent = requests.into_iter().map(|request| {
        let gateway = Arc::clone(gateway);
        tokio::spawn(async move { gateway.send(request).await })
    });
    let mut answers = Vec::new();
    for sent in sent.collect::<Vec<_>>() {
        answers.push(sent.await.unwrap());
    }
    answers
}

/// A refusal by a limit that has no unit within a minute.
fn assert_limited(answer: &TestResponse) {
    assert_eq!(answer.status.as_u16(), 429, "{answer:?}");
    assert_eq!(answer.json()["type"], "urn:semel:problem:rate-limited");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

fn count(answers: &[TestResponse], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status.as_u16() == status).count()
}

#[tokio::test]
async fn torture_of_card_testing_stops_at_the_limit_and_replays_go_on() {
    let cards = if torture() { 10_000 } else { 400 };
    let upstream = Upstream::plain().await;
    let limits = r#"velocity = [{ by = "address", max = 20, per = "1h" }]"#;
    let gateway = start(&upstream, limits).await;
    let honest = gateway.send(card("honest", 1)).await;
    assert_eq!(honest.status.as_u16(), 201);
    let mut client = gateway.connect().await;
    let mut refused = 0;
    for number in 0..cards {
        let answer = client.send(card(&format!("stolen-{number}"), number)).await;
        if answer.status.as_u16() != 201 {
            assert_limited(&answer);
            refused += 1;
        }
    }
    assert_eq!((upstream.request_count(), refused), (20, cards - 19));
    // A refusal leaves nothing in the store.
    assert_eq!(gateway.records().await.len(), 20);
    gateway.send(card("honest", 1)).await.assert_replay_of(&honest);
    let name = r#"semel_requests_total{scope="payments",outcome="rate-limited"}"#;
    reaches(&gateway, name, u32::try_from(refused).unwrap()).await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_refusal_says_which_limit_and_when_to_come_back() {
    let upstream = Upstream::plain().await;
    let limits = r#"velocity = [
        { by = ["/card", { header = "X-Shop" }], max = 2, per = "30s" },
        { by = "caller", max = 100, per = "1h", count = "completed" },
    ]"#;
    let gateway = start(&upstream, limits).await;
    for key in ["one", "two"] {
        assert_eq!(gateway.send(card(key, 7)).await.status.as_u16(), 201);
    }
    let refused = gateway.send(card("three", 7)).await;
    refused.assert_problem(429, "rate-limited");
    let name = "executions by /card, x-shop";
    assert!(refused.text().contains(name), "{}", refused.text());
    assert_eq!(refused.header("ratelimit-policy"), Some(&*format!("\"{name}\";q=2;w=30")));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    assert_eq!(refused.header("ratelimit"), Some(&*format!("\"{name}\";r=0;t={wait}")));
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    assert_eq!(gateway.send(card("three", 8)).await.status.as_u16(), 201, "another card");
    let mut in_shop = card("four", 7);
    in_shop.headers_mut().insert("x-shop", "s1".parse().unwrap());
    assert_eq!(gateway.send(in_shop).await.status.as_u16(), 201, "another shop");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn of_a_hundred_parallel_payments_no_fourth_is_declined() {
    let upstream = Upstream::start(|_| Reply::new(402, "declined")).await;
    let limits = r#"velocity = [{ by = "/merchant", max = 3, per = "1h", count = "declined" }]"#;
    let gateway = Arc::new(start(&upstream, limits).await);
    let payment = |number| charge(&format!("k-{number}"), r#"{"merchant":"m1"}"#);
    let answers = all(&gateway, (0..100).map(payment).collect()).await;
    assert_eq!((count(&answers, 402), count(&answers, 429)), (3, 97));
    assert_eq!(upstream.request_count(), 3);
    let other = gateway.send(charge("other", r#"{"merchant":"m2"}"#)).await;
    assert_eq!(other.status.as_u16(), 402);
    Arc::into_inner(gateway).unwrap().assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_limit_counts_tags_and_the_client_does_not_see_them() {
    let upstream = Upstream::start(|request| {
        let tag = if request.key().starts_with("bad") { "fraud" } else { "fine" };
        Reply::new(200, "checked").header("idempotency-tag", tag)
    })
    .await;
    let limits = r#"velocity = [
        { by = "address", max = 2, per = "1h", count = { tag = "fraud" } },
    ]"#;
    let gateway = start(&upstream, limits).await;
    for key in ["good-1", "bad-1", "good-2", "bad-2"] {
        let answer = gateway.send(charge(key, ORDER)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("idempotency-tag")),
            (200, None),
            "{key}"
        );
    }
    assert_limited(&gateway.send(charge("good-3", ORDER)).await);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_double_click_with_two_keys_runs_once() {
    let gate = Gate::new();
    let blocked = gate.clone();
    let upstream = Upstream::start(move |_| Reply::new(201, "paid").blocked_on(&blocked)).await;
    let refuse = r#"duplicates = { window = "10m", action = "refuse" }"#;
    let gateway = Arc::new(start(&upstream, refuse).await);
    let clicks = ["first", "second"].map(|key| {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.send(charge(key, ORDER)).await })
    });
    // One of them is refused while the other runs.
    wait_until(|| clicks.iter().any(tokio::task::JoinHandle::is_finished)).await;
    gate.open();
    let mut answers = Vec::new();
    for click in clicks {
        answers.push(click.await.unwrap());
    }
    assert_eq!((count(&answers, 201), count(&answers, 409)), (1, 1));
    let refused = answers.iter().find(|answer| answer.status.as_u16() == 409).unwrap();
    refused.assert_problem(409, "possible-duplicate");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(upstream.request_count(), 1);
    // The client means it.
    let mut intended = charge("third", ORDER);
    intended.headers_mut().insert("idempotency-duplicate", "intended".parse().unwrap());
    assert_eq!(gateway.send(intended).await.status.as_u16(), 201);
    let other = gateway.send(charge("fourth", r#"{"order":"another"}"#)).await;
    assert_eq!(other.status.as_u16(), 201, "another operation");
    Arc::into_inner(gateway).unwrap().assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_new_try_after_a_decline_runs() {
    let upstream = Upstream::start(|request| {
        let status = if request.key() == "first" { 402 } else { 201 };
        Reply::new(status, "answer")
    })
    .await;
    let refuse = r#"duplicates = { window = "10m", action = "refuse" }"#;
    let gateway = start(&upstream, refuse).await;
    assert_eq!(gateway.send(charge("first", ORDER)).await.status.as_u16(), 402);
    assert_eq!(gateway.send(charge("second", ORDER)).await.status.as_u16(), 201);
    gateway.send(charge("third", ORDER)).await.assert_problem(409, "possible-duplicate");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_key_in_the_body_does_not_hide_a_duplicate() {
    let upstream = Upstream::plain().await;
    let settings = "duplicates = { window = \"10m\", action = \"mark\" }";
    let table = route(settings)
        .replace("key = { required = true }", "key = { json = \"/id\", required = true }");
    let gateway = Setup::new(&upstream.url()).on_disk().tables(&table).start().await;
    let event = |id: &str| charge("unused", &format!(r#"{{"id":"{id}","amount":5}}"#));
    let first = gateway.send(event("one")).await;
    assert_eq!(first.header("idempotency-duplicate"), None);
    let second = gateway.send(event("two")).await;
    assert_eq!(second.status.as_u16(), 201);
    assert_eq!(second.header("idempotency-duplicate"), Some("possible"));
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn what_only_reports_or_observes_refuses_nothing() {
    let upstream = Upstream::plain().await;
    for settings in [
        r#"velocity = [{ by = "caller", max = 1, per = "1h", action = "report" }]"#,
        "mode = \"observe\"\nvelocity = [{ by = \"caller\", max = 1, per = \"1h\" }]",
    ] {
        let gateway = start(&upstream, settings).await;
        for key in ["one", "two", "three"] {
            assert_eq!(gateway.send(charge(key, ORDER)).await.status.as_u16(), 201, "{settings}");
        }
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn wrong_limits_are_refused_with_their_place() {
    let cases = [
        (r#"velocity = [{ by = "caller", max = 5 }]"#, "needs `per`"),
        (r#"velocity = [{ by = "caller", max = 1001, per = "1m" }]"#, "from 1 to 1000"),
        (r#"velocity = [{ by = "caller", max = 5, per = "31d" }]"#, "from 1s to 30d"),
        (r#"velocity = [{ by = "card", max = 5, per = "1m" }]"#, "JSON Pointer"),
        (r#"velocity = [{ by = [], max = 5, per = "1m" }]"#, "empty"),
        (r#"velocity = [{ by = "caller", max = 5, per = "1m", count = "all" }]"#, "executions"),
        (r#"velocity = [{ by = "caller", max = 5, per = "1m", counts = "x" }]"#, "counts"),
        (r#"duplicates = { action = "refuse" }"#, "needs a window"),
        (r#"duplicates = { window = "10m", action = "drop" }"#, "report"),
    ];
    for (settings, message) in cases {
        let setup = Setup::new("http://127.0.0.1:9").tables(route(settings));
        assert_refused(&setup, message).await;
    }
    let inbox = "[[route]]\nmatch = \"POST /hooks\"\nscope = \"hooks\"\nsignature = { scheme = \
                 \"stripe\", secret_env = \"SEMEL_SECRET\" }\nduplicates = { window = \"10m\" }\n";
    assert_refused(&Setup::new("http://127.0.0.1:9").tables(inbox), "cannot have `duplicates`")
        .await;
}

/// Starts a gateway that ends with this message and its place in the configuration.
async fn assert_refused(setup: &Setup, message: &str) {
    let gateway = setup.spawn();
    assert_eq!(gateway.wait_for_exit().await.code(), Some(64), "{message}");
    gateway.wait_for_log(message).await;
    gateway.wait_for_log("semel.toml:").await;
}
