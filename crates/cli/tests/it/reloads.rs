//! A changed configuration, applied while the gateway runs.

use std::{
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::task::JoinSet;

use crate::common::{
    Client, Gateway, ORDER, Reply, Setup, Upstream, charge, semel_command, wait_until,
};

/// How often the gateway has said that it applied a configuration.
fn applied(gateway: &Gateway) -> usize {
    gateway.log_lines().iter().filter(|line| line.contains("the configuration was applied")).count()
}

pub(crate) async fn reload(gateway: &Gateway) {
    let before = applied(gateway);
    gateway.signal("HUP");
    wait_until(|| applied(gateway) > before).await;
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
        wait_until(|| answered.load(Ordering::SeqCst) > before + 20).await;
        folder.with_upstream(if round % 2 == 0 { &two } else { &one }).write();
        reload(&gateway).await;
    }
    stop.store(true, Ordering::SeqCst);
    let sent: usize = clients.join_all().await.into_iter().sum();
    assert_eq!(one.request_count() + two.request_count(), sent);
    assert!(one.request_count() > 0 && two.request_count() > 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_changed_route_counts_from_the_next_request_on() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let mut client = gateway.connect().await;
    let first = client.send(charge("k", ORDER)).await;
    client.send(charge("k", ORDER)).await.assert_replay_of(&first);
    setup.clone().defaults("mode = \"observe\"").write();
    reload(&gateway).await;
    assert!(!client.send(charge("k", ORDER)).await.is_replayed(), "it is not guarded any more");
    assert_eq!(upstream.request_count(), 2);
    setup.write();
    reload(&gateway).await;
    client.send(charge("k", ORDER)).await.assert_replay_of(&first);
    assert_eq!((applied(&gateway), upstream.request_count()), (2, 2));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_configuration_and_says_where_it_is_wrong() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    for (bad, log) in [
        (setup.clone().defaults("retenion = \"1h\""), "retention"),
        (setup.clone().tables("[[route]\n"), "semel.toml:"),
    ] {
        bad.write();
        gateway.signal("HUP");
        gateway.wait_for_log("keeping the previous configuration").await;
        gateway.wait_for_log(log).await;
        assert!(
            !gateway.log_lines().iter().any(|line| line.contains("\\n")),
            "{:?}",
            gateway.log_lines()
        );
        gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    }
    std::fs::remove_file(setup.file()).unwrap();
    gateway.signal("HUP");
    gateway.wait_for_log("No such file").await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    assert_eq!((applied(&gateway), upstream.request_count()), (0, 1));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn settings_that_need_a_restart_are_logged_at_each_reload() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let changed = setup.clone().gateway("drain = \"3s\"").tables("[limits]\nwaiting = 7");
    changed.write();
    for round in 1..=2 {
        reload(&gateway).await;
        let log = gateway.log_lines();
        let named = log.iter().filter(|line| line.contains("restart: gateway.drain, limits"));
        assert_eq!(named.count(), round, "{log:#?}");
    }
    gateway.assert_clean_shutdown().await;
}

pub(crate) fn semel_reload(gateway: &Gateway, token: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = semel_command();
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
    setup.with_upstream(&two).write();
    for wrong in [None, Some("another-token-of-enough")] {
        assert!(!semel_reload(&gateway, wrong, &[]).status.success());
    }
    let mut client = Client::connect(gateway.address()).await;
    client.send(charge("1", ORDER)).await;
    assert_eq!((one.request_count(), two.request_count()), (1, 0), "nothing has changed");
    let done = semel_reload(&gateway, Some(TOKEN), &[]);
    assert!(done.status.success(), "{done:?}");
    client.send(charge("2", ORDER)).await;
    assert_eq!((one.request_count(), two.request_count()), (1, 1));
    gateway.assert_clean_shutdown().await;
}
