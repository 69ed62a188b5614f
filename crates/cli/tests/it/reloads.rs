//! A changed configuration, applied while the gateway runs.

use std::{
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::task::JoinSet;

use crate::common::{Client, Gateway, ORDER, Reply, Setup, Upstream, charge, until};

/// How often the gateway has said that it applied a configuration.
fn applied(gateway: &Gateway) -> usize {
    gateway.said().iter().filter(|line| line.contains("the configuration was applied")).count()
}

pub(crate) async fn reload(gateway: &Gateway) {
    let before = applied(gateway);
    gateway.signal("HUP");
    until(|| applied(gateway) > before).await;
}

#[tokio::test]
async fn a_reload_under_load_drops_no_connection_and_loses_no_request() {
    let one = Upstream::start(|_| Reply::new(201, "one")).await;
    let two = Upstream::start(|_| Reply::new(201, "two")).await;
    let setup = Setup::new(&one.url());
    let gateway = setup.start().await;
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for name in 0..16 {
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        let mut client = gateway.connect().await;
        clients.spawn(async move {
            let mut sent = 0;
            while !stop.load(Ordering::SeqCst) {
                // Its one connection is used from the first request to the last.
                let answer = client.try_send(charge(&format!("{name}-{sent}"), ORDER)).await;
                let answer = answer.expect("no connection is dropped");
                assert_eq!(answer.status.as_u16(), 201);
                assert!(["one", "two"].contains(&answer.text()));
                sent += 1;
                answered.fetch_add(1, Ordering::SeqCst);
            }
            sent
        });
    }
    let folder = setup.clone();
    for round in 0..10 {
        let before = answered.load(Ordering::SeqCst);
        until(|| answered.load(Ordering::SeqCst) > before + 20).await;
        folder.towards(if round % 2 == 0 { &two } else { &one }).write();
        reload(&gateway).await;
    }
    stop.store(true, Ordering::SeqCst);
    let sent: usize = clients.join_all().await.into_iter().sum();
    assert_eq!(one.total() + two.total(), sent);
    assert!(one.total() > 0 && two.total() > 0);
    gateway.through().await;
}

#[tokio::test]
async fn a_changed_route_counts_from_the_next_request_on() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let mut client = gateway.connect().await;
    let first = client.send(charge("k", ORDER)).await;
    client.send(charge("k", ORDER)).await.replays(&first);
    setup.clone().defaults("mode = \"observe\"").write();
    reload(&gateway).await;
    assert!(!client.send(charge("k", ORDER)).await.is_replayed(), "it is not guarded any more");
    assert_eq!(upstream.total(), 2);
    setup.write();
    reload(&gateway).await;
    client.send(charge("k", ORDER)).await.replays(&first);
    assert_eq!((applied(&gateway), upstream.total()), (2, 2));
    gateway.through().await;
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_configuration_and_says_where_it_is_wrong() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    for (bad, said) in [
        (setup.clone().defaults("retenion = \"1h\""), "retention"),
        (setup.clone().tables("[[route]\n"), "semel.toml:"),
    ] {
        bad.write();
        gateway.signal("HUP");
        gateway.says("keeping the previous configuration").await;
        gateway.says(said).await;
        assert!(!gateway.said().iter().any(|line| line.contains("\\n")), "{:?}", gateway.said());
        gateway.send(charge("k", ORDER)).await.replays(&first);
    }
    std::fs::remove_file(setup.file()).unwrap();
    gateway.signal("HUP");
    gateway.says("No such file").await;
    gateway.send(charge("k", ORDER)).await.replays(&first);
    assert_eq!((applied(&gateway), upstream.total()), (0, 1));
    gateway.through().await;
}

#[tokio::test]
async fn what_needs_a_restart_is_named_until_there_is_one() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let changed = setup.clone().gateway("drain = \"3s\"").tables("[limits]\nwaiting = 7");
    changed.write();
    for round in 1..=2 {
        reload(&gateway).await;
        let said = gateway.said();
        let named = said.iter().filter(|line| line.contains("restart: gateway.drain, limits"));
        assert_eq!(named.count(), round, "{said:#?}");
    }
    gateway.through().await;
}

pub(crate) fn semel_reload(gateway: &Gateway, token: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["reload", "--server", &format!("http://{}", gateway.api())]);
    command.args(arguments);
    command.env_remove("SEMEL_OPERATOR_TOKEN");
    if let Some(token) = token {
        command.env("SEMEL_OPERATOR_TOKEN", token);
    }
    command.output().unwrap()
}

#[tokio::test]
async fn an_operator_reloads_with_the_token_only() {
    const TOKEN: &str = "a-token-of-enough-characters";
    let (one, two) = (Upstream::plain().await, Upstream::plain().await);
    let setup = Setup::new(&one.url())
        .environment("OPERATORS", TOKEN)
        .tables("[api]\noperator_token_env = \"OPERATORS\"");
    let gateway = setup.start().await;
    setup.towards(&two).write();
    for wrong in [None, Some("another-token-of-enough")] {
        assert!(!semel_reload(&gateway, wrong, &[]).status.success());
    }
    let mut client = Client::connect(gateway.address()).await;
    client.send(charge("1", ORDER)).await;
    assert_eq!((one.total(), two.total()), (1, 0), "nothing has changed");
    let done = semel_reload(&gateway, Some(TOKEN), &[]);
    assert!(done.status.success(), "{done:?}");
    client.send(charge("2", ORDER)).await;
    assert_eq!((one.total(), two.total()), (1, 1));
    gateway.through().await;
}
