//! The service API of the real binary: alone, through crashes, and through lost replies.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output},
    time::Duration,
};

use http::Request;
use http_body_util::Full;
use semel::core::StateName;
use semel_testkit::{seed, wire::Proxy};
use serde_json::{Value, json};

use crate::common::{Client, ClientRequest, JOBS_TOKEN, Records, Setup, TestResponse, local, send};

fn request(path: &str, body: &Value) -> ClientRequest {
    Request::post(format!("/v1/{path}"))
        .header("host", "localhost")
        .header("authorization", format!("Bearer {JOBS_TOKEN}"))
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap()
}

async fn call(api: SocketAddr, path: &str, body: &Value) -> TestResponse {
    send(api, request(path, body)).await
}

fn json(answer: &TestResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

fn claim(key: &str, attempt: u32) -> Value {
    let attempt_id = format!("{attempt:032x}");
    json!({ "scope": "jobs", "key": key, "attempt_id": attempt_id, "wait": "0s" })
}

#[tokio::test]
async fn a_claim_survives_a_crash_of_the_server() {
    let setup = Setup::service_api(Records::fresh());
    let server = setup.start().await;
    assert!(server.log_lines().iter().all(|line| !line.contains("listening on")));
    let granted = json(&call(server.api(), "claims", &claim("k", 1)).await);
    assert_eq!(granted["outcome"], "execute");
    server.kill();

    let server = setup.start().await;
    let api = server.api();
    assert_eq!(json(&call(api, "claims", &claim("k", 1)).await)["fence"], granted["fence"]);
    call(api, "claims", &claim("k", 2)).await.assert_problem(409, "in-progress");
    let result = json!({ "claim": granted["claim"], "result": { "body": 17 } });
    let completed = json!({ "outcome": "completed", "retained": true });
    assert_eq!(json(&call(api, "claims/complete", &result).await), completed);
    server.kill();

    let server = setup.start().await;
    let api = server.api();
    assert_eq!(json(&call(api, "claims/complete", &result).await), completed);
    assert_eq!(json(&call(api, "claims", &claim("k", 2)).await)["result"]["body"], 17);
    let document = send(api, local("/openapi.json")).await;
    let kept = include_str!("../../../../docs/reference/openapi.json");
    assert_eq!((document.status.as_u16(), document.text()), (200, kept));
    server.assert_clean_shutdown().await;
}

/// A client that repeats every call until it has a reply.
struct PersistentClient {
    proxy: Proxy,
    repeats: u32,
}

impl PersistentClient {
    async fn call(&mut self, path: &str, body: &Value) -> TestResponse {
        let address = SocketAddr::from(([127, 0, 0, 1], self.proxy.port()));
        loop {
            if let Ok(mut client) = Client::try_connect(address).await
                && let Ok(answer) = client.try_send(request(path, body)).await
            {
                return answer;
            }
            self.repeats += 1;
        }
    }
}

#[tokio::test]
async fn lost_replies_hold_nothing_and_run_nothing_twice() {
    let setup = Setup::service_api(Records::fresh());
    let server = setup.start().await;
    let proxy = Proxy::start(server.api().port());
    proxy.chaos(seed());
    let mut client = PersistentClient { proxy, repeats: 0 };
    let mut fences: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut expected = BTreeMap::new();
    for number in 0..60_u32 {
        let key = format!("job-{number}");
        // The first attempt of some is given back.
        for attempt in 1..=2 {
            let granted = json(&client.call("claims", &claim(&key, attempt)).await);
            if granted["outcome"] != "execute" {
                break;
            }
            fences.entry(key.clone()).or_default().push(granted["fence"].as_u64().unwrap());
            let held = json!({ "claim": granted["claim"] });
            let renewed = json(&client.call("claims/renew", &held).await);
            assert_eq!(renewed["outcome"], "renewed", "{renewed}");
            let (end, body, state) = match (number % 4, attempt) {
                (0, 1) => ("release", json!({ "claim": held["claim"], "counted": false }), None),
                (1, 1) => ("release", json!({ "claim": held["claim"] }), None),
                (2, _) => ("hold", held, Some(StateName::Held)),
                _ => ("complete", held, Some(StateName::Completed)),
            };
            let ended = client.call(&format!("claims/{end}"), &body).await;
            assert_eq!(ended.status, 200, "{key}: {}", ended.text());
            if let Some(state) = state {
                expected.insert(key.clone(), state);
                break;
            }
        }
    }
    client.proxy.calm();
    assert!(client.repeats > 0, "chaos has cut nothing");
    for record in server.records().await {
        let key = record.id.key.as_str().to_owned();
        assert_eq!(Some(record.state), expected.remove(&key), "{key}");
        let given_back =
            matches!(key.trim_start_matches("job-").parse::<u32>().unwrap() % 4, 0 | 1);
        assert_eq!(fences[&key].len(), if given_back { 2 } else { 1 }, "{key}");
        assert!(fences[&key].is_sorted());
    }
    assert!(expected.is_empty(), "{expected:?}");
    server.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_waiting_claim_is_answered_when_the_server_shuts_down() {
    let setup = Setup::service_api(Records::fresh());
    let server = setup.start().await;
    let api = server.api();
    let granted = json(&call(api, "claims", &claim("k", 1)).await);
    let mut waiting = claim("k", 2);
    waiting["wait"] = "1m".into();
    let waiting = tokio::spawn(async move { call(api, "claims", &waiting).await });
    while !send(api, local("/metrics")).await.text().contains("semel_waiting 1\n") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.signal("TERM");
    let answer = waiting.await.unwrap();
    answer.assert_problem(503, "draining");
    assert_eq!(answer.header("x-should-retry"), Some("true"));
    assert!(server.wait_for_exit().await.success(), "{:#?}", server.log_lines());

    // The server after it takes the same calls.
    let server = setup.start().await;
    let result = json!({ "claim": granted["claim"], "result": { "body": 17 } });
    call(server.api(), "claims/complete", &result).await;
    let replay = json(&call(server.api(), "claims", &claim("k", 2)).await);
    assert_eq!(replay["result"]["body"], 17);
    server.assert_clean_shutdown().await;
}

#[tokio::test]
async fn claims_wait_without_their_bodies() {
    let setup = Setup::service_api(Records::fresh());
    let server = setup.start().await;
    let api = server.api();
    let large = |attempt: u32| {
        let mut large = claim("k", attempt);
        large["payload"] = "x".repeat(8_000_000).into();
        large["wait"] = if attempt == 0 { "0s" } else { "1m" }.into();
        large
    };
    let granted = json(&call(api, "claims", &large(0)).await);
    let mut waiting = tokio::task::JoinSet::new();
    let mut peaks = Vec::new();
    for attempt in 1..=16 {
        let body = large(attempt);
        waiting.spawn(async move { call(api, "claims", &body).await });
        let all = format!("semel_waiting {attempt}\n");
        while !send(api, local("/metrics")).await.text().contains(&all) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        peaks.push(server.memory_peak_kib());
    }
    let grown = peaks[15] - peaks[0];
    assert!(grown < 96 << 10, "15 more claims of 8 MB wait in {grown} KiB: {peaks:?}");
    let result = json!({ "claim": granted["claim"], "result": { "body": 17 } });
    call(api, "claims/complete", &result).await;
    for replay in waiting.join_all().await {
        assert_eq!(json(&replay)["result"]["body"], 17);
    }
    server.assert_clean_shutdown().await;
}

#[tokio::test]
async fn claims_and_tokens_survive_a_change_of_their_secrets() {
    let tokens = [JOBS_TOKEN, "the-next-token-of-the-jobs-is-this-one"];
    let base = Setup::on_store(Records::fresh(), "")
        .environment("FIRST", "the-first-secret-of-these-servers")
        .environment("SECOND", "the-second-secret-of-these-servers")
        .environment("TOKEN", tokens[0])
        .environment("NEXT_TOKEN", tokens[1]);
    let store = base.text().replace("secret_env = \"SEMEL_SECRET\"", "");
    // The secrets of claims, and of the token.
    let setup = |secrets: &str, of_token: &str| {
        let token = "[[api.token]]\nname = \"jobs\"\nrole = \"app\"\nsecret_env";
        base.clone().tables(format!("{token} = {of_token}")).head(&format!("{store}\n{secrets}"))
    };
    let ask = async |api, token: &str, path: &str, body: &Value| {
        let mut request = request(path, body);
        let token = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", token);
        send(api, request).await
    };
    let server = setup("secret_env = \"FIRST\"", "\"TOKEN\"").start().await;
    let old = json(&ask(server.api(), tokens[0], "claims", &claim("old", 1)).await);
    let other = json(&ask(server.api(), tokens[0], "claims", &claim("other", 1)).await);
    ask(server.api(), tokens[1], "claims", &claim("k", 1))
        .await
        .assert_problem(401, "token-missing");
    server.kill();

    // Both secrets, of the claims and of the token.
    let both = "secret_env = \"SECOND\"\nsecret_before_env = \"FIRST\"";
    let server = setup(both, "[\"NEXT_TOKEN\", \"TOKEN\"]").start().await;
    let end = |claimed: &Value| json!({ "claim": claimed["claim"] });
    for token in tokens {
        let ended = ask(server.api(), token, "claims/complete", &end(&old)).await;
        assert_eq!(ended.status, 200);
    }
    let new = json(&ask(server.api(), tokens[1], "claims", &claim("new", 1)).await);
    server.kill();

    let last = setup("secret_env = \"SECOND\"", "\"NEXT_TOKEN\"");
    let server = last.argument("--accept-identity-change").start().await;
    let api = server.api();
    ask(api, tokens[0], "claims/complete", &end(&new)).await.assert_problem(401, "token-missing");
    assert_eq!(ask(api, tokens[1], "claims/complete", &end(&new)).await.status, 200);
    // Sealed under the secret that is gone; a repeat of the claim is sealed under the new one.
    let malformed = ask(api, tokens[1], "claims/complete", &end(&other)).await;
    malformed.assert_problem(400, "claim-malformed");
    let again = json(&ask(api, tokens[1], "claims", &claim("other", 1)).await);
    assert_eq!(again["fence"], other["fence"]);
    assert_eq!(ask(api, tokens[1], "claims/complete", &end(&again)).await.status, 200);
    server.assert_clean_shutdown().await;
}

/// The blocks of one language in the guide.
fn blocks(language: &str) -> Vec<String> {
    let guide = include_str!("../../../../docs/guide/from-anything.md");
    let fence = format!("```{language}\n");
    let blocks = guide.split(&*fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_script_of_the_guide_runs_a_command_once() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("curl is not installed: the script of the guide is not run");
        return;
    }
    let setup = Setup::service_api(Records::fresh());
    let [config] = &blocks("toml")[..] else { panic!("one configuration") };
    assert!(setup.text().contains(config.trim()), "{config}");
    let server = setup.start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("once.sh");
    let text = blocks("sh").into_iter().find(|block| block.starts_with("#!/bin/sh"));
    fs::write(&script, text.unwrap()).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let runs = folder.path().join("runs");
    let once = |key: &str, command: &str| -> Output {
        Command::new("sh")
            .arg(&script)
            .args([key, "sh", "-c", command])
            .env("SEMEL", format!("http://{}", server.api()))
            .env("JOBS_TOKEN", JOBS_TOKEN)
            .env("RUNS", &runs)
            .output()
            .unwrap()
    };
    let nightly = "echo ran >> \"$RUNS\"; echo 'report \"7\" is sent'";
    for _ in 0..3 {
        let output = once("report 2026-11-18", nightly);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(shown, "report \"7\" is sent\n", "{output:?}");
        assert!(output.status.success());
    }
    assert_eq!(fs::read_to_string(&runs).unwrap(), "ran\n");
    // More than an argument of a command holds.
    for _ in 0..2 {
        let output = once("large", "echo ran >> \"$RUNS\"; seq 1 40000");
        assert!(output.status.success() && output.stdout.ends_with(b"\n40000\n"), "{output:?}");
    }
    assert_eq!(fs::read_to_string(&runs).unwrap(), "ran\nran\n");
    // Nothing happened: the next run may try again.
    assert_eq!(once("b", "exit 75").status.code(), Some(75));
    assert!(once("b", nightly).status.success());
    // The outcome is unknown.
    assert_eq!(once("c", "exit 1").status.code(), Some(1));
    let output = once("c", nightly);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("outcome-unknown"), "{output:?}");
    assert_eq!(fs::read_to_string(&runs).unwrap(), "ran\nran\nran\n");
}
