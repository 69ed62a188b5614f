//! The service API over a real socket.

use std::collections::BTreeSet;

use super::*;

const SOURCE: &str = r#"
[gateway]
upstream = "http://127.0.0.1:1"

[[route]]
match = "POST /payments"
scope = "payments"

[[route]]
match = "POST /orders"
scope = "orders"
api = true

[[scope]]
name = "small"
lease = "5s"
retention = "1h"
on_unknown = "rerun"
result_max = "64B"

[[api.token]]
name = "jobs"
role = "app"
secret_env = "JOBS"

[[api.token]]
name = "invoicing"
role = "app"
scopes = ["invoices"]
caller = "tenant-1"
secret_env = "INVOICING"

[[api.token]]
name = "platform"
role = "app"
caller = "*"
secret_env = "PLATFORM"
"#;

async fn api() -> TestApi {
    TestApi::configured(MemoryStore::new(), SOURCE).await
}

impl TestApi {
    async fn call_as(&self, sender: &str, path: &str, body: impl Into<String>) -> TestResponse {
        let request = http::Request::post(format!("/v1/{path}"))
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", secret_in(sender)))
            .header("content-type", "application/json");
        let body: String = body.into();
        self.ask(request.body(body.into()).unwrap()).await
    }

    async fn call(&self, path: &str, body: Value) -> TestResponse {
        self.call_as("JOBS", path, body.to_string()).await
    }

    /// A granted claim.
    async fn granted(&self, key: &str, attempt: u8) -> Value {
        let answer = self.call("claims", claim(key, attempt)).await;
        let granted = answer.json();
        assert_eq!(
            (answer.status.as_u16(), &granted["outcome"]),
            (200, &json!("execute")),
            "{granted}"
        );
        granted
    }
}

fn attempt_id(attempt: u8) -> String {
    format!("{attempt:032x}")
}

fn claim(key: &str, attempt: u8) -> Value {
    json!({ "scope": "invoices", "key": key, "attempt_id": attempt_id(attempt), "wait": "0s" })
}

#[tokio::test]
async fn a_result_is_replayed_byte_for_byte() {
    let api = api().await;
    let results = [
        r#"{"content_type":"application/json","body":{"b":12345678901234567890.10, "a":1e400}}"#,
        r#"{"body":null}"#,
        r#"{"content_type":"application/vnd.shop+json; v=1","body":"text \u00e9"}"#,
        r#"{"content_type":"text/plain","body_base64":"aGVsbG8="}"#,
        r#"{"body_base64":"/wA="}"#,
    ];
    for (number, result) in results.into_iter().enumerate() {
        let key = format!("order-{number}");
        let granted = api.granted(&key, 1).await;
        assert_eq!((&granted["attempt"], &granted["lease_ms"]), (&json!(1), &json!(30000)));
        let body = format!(r#"{{"claim":{},"result":{result}}}"#, granted["claim"]);
        for _ in 0..2 {
            let answer = api.call_as("JOBS", "claims/complete", &*body).await;
            assert_eq!(answer.json(), json!({ "outcome": "completed", "retained": true }));
        }
        let replay = api.call("claims", claim(&key, 2)).await;
        let text = String::from_utf8(replay.body.to_vec()).unwrap();
        let sent = result.split_once("\"body").unwrap().1;
        assert!(text.contains(&format!("\"body{sent}")), "{text}");
        assert!(text.ends_with(",\"retained\":true}"), "{text}");
        assert_eq!(replay.header("content-type"), Some("application/json"));
    }
    let granted = api.granted("nothing", 1).await;
    api.call("claims/complete", json!({ "claim": granted["claim"] })).await;
    let replay = api.call("claims", claim("nothing", 2)).await.json();
    let result = json!({ "content_type": "application/json", "body": null });
    assert_eq!(replay, json!({ "outcome": "replay", "result": result, "retained": true }));
}

#[tokio::test]
async fn a_repeated_claim_is_the_same_claim() {
    let api = api().await;
    let first = api.granted("k", 1).await;
    let again = api.granted("k", 1).await;
    assert_eq!((&first["fence"], &first["attempt"]), (&again["fence"], &again["attempt"]));
    let other = api.call("claims", claim("k", 2)).await;
    other.assert_api_problem(409, "in-progress");
    // Either text of the claim is good.
    let renewed = api.call("claims/renew", json!({ "claim": again["claim"], "lease": "1m" })).await;
    assert_eq!(renewed.json(), json!({ "outcome": "renewed", "lease_ms": 60000 }));
    let done = api.call("claims/complete", json!({ "claim": first["claim"] })).await;
    assert_eq!(done.status, 200);
    let result = json!({ "claim": again["claim"], "result": { "body": 7 } });
    api.call("claims/complete", result).await.assert_api_problem(409, "result-differs");
}

#[tokio::test]
async fn a_claim_that_ended_is_lost_to_every_call() {
    let api = api().await;
    for (counted, attempt) in [(json!(false), 1), (json!(true), 2)] {
        let key = format!("k-{attempt}");
        let claim_text = api.granted(&key, 1).await["claim"].clone();
        let release = json!({ "claim": claim_text, "counted": counted });
        for _ in 0..2 {
            let released = api.call("claims/release", release.clone()).await;
            assert_eq!(released.json(), json!({ "outcome": "released" }));
        }
        for path in ["claims/complete", "claims/renew", "claims/hold"] {
            let answer = api.call(path, json!({ "claim": claim_text })).await;
            answer.assert_api_problem(409, "claim-lost");
        }
        api.call("claims", claim(&key, 1)).await.assert_api_problem(409, "claim-lost");
        let next = api.granted(&key, 2).await;
        assert_eq!(next["attempt"], attempt);
        // Now it has another owner, whom the former one cannot disturb.
        for path in ["claims/complete", "claims/renew", "claims/hold", "claims/release"] {
            let answer = api.call(path, json!({ "claim": claim_text })).await;
            answer.assert_api_problem(409, "claim-lost");
        }
        let done = api.call("claims/complete", json!({ "claim": next["claim"] })).await;
        assert_eq!(done.json()["outcome"], "completed");
    }
    let claim_text = api.granted("held", 1).await["claim"].clone();
    let hold = json!({ "claim": claim_text, "reason": "the bank did not answer" });
    for _ in 0..2 {
        assert_eq!(api.call("claims/hold", hold.clone()).await.json(), json!({"outcome": "held"}));
    }
    api.call("claims", claim("held", 2)).await.assert_api_problem(423, "outcome-unknown");
    let late = api.call("claims/complete", json!({ "claim": claim_text })).await;
    assert_eq!(late.json()["retained"], true);
}

#[tokio::test]
async fn a_claim_is_of_use_only_unaltered_and_to_its_own_client() {
    let api = api().await;
    let text = api.granted("k", 1).await["claim"].as_str().unwrap().to_owned();
    let mut altered = text.clone();
    let last = altered.pop().unwrap();
    altered.push(if last == 'A' { 'B' } else { 'A' });
    let of_orders = json!({ "scope": "orders", "key": "k", "attempt_id": attempt_id(1) });
    let of_orders = api.call("claims", of_orders).await.json()["claim"].clone();
    for path in ["complete", "renew", "release", "hold"] {
        let path = format!("claims/{path}");
        for bad in [&*altered, "", "sc1.", &text[4..], "sc1.AAAA"] {
            let answer = api.call(&path, json!({ "claim": bad })).await;
            answer.assert_api_problem(400, "claim-malformed");
        }
        let of_orders = json!({ "claim": of_orders }).to_string();
        let answer = api.call_as("INVOICING", &path, of_orders).await;
        answer.assert_api_problem(403, "scope-forbidden");
        let of_another = json!({ "claim": text }).to_string();
        let answer = api.call_as("INVOICING", &path, of_another).await;
        answer.assert_api_problem(403, "caller-unidentified");
    }
    // No character can be changed, left out or added.
    for at in 0..=text.len() {
        let (head, tail) = text.split_at(at);
        let rest = tail.get(1..).unwrap_or_default();
        let other = if tail.starts_with('A') { 'B' } else { 'A' };
        for bad in
            [format!("{head}{other}{rest}"), format!("{head}{rest}"), format!("{head}A{tail}")]
        {
            if bad == text {
                continue;
            }
            let answer = api.call("claims/release", json!({ "claim": bad })).await;
            answer.assert_api_problem(400, "claim-malformed");
        }
    }
    let renewed = api.call("claims/renew", json!({ "claim": text })).await;
    assert_eq!(renewed.status, 200, "nothing has ended it");
}

#[tokio::test]
async fn keys_of_different_callers_never_meet() {
    let api = api().await;
    let named = |caller: &str| with(claim("k", 1), json!({ "caller": caller })).to_string();
    let mut fences = BTreeSet::new();
    let senders = [
        ("JOBS", claim("k", 1).to_string()),
        ("JOBS", named("jobs")),
        ("INVOICING", claim("k", 1).to_string()),
        ("PLATFORM", named("tenant-2")),
        ("PLATFORM", claim("k", 1).to_string()),
    ];
    for (sender, body) in senders {
        let granted = api.call_as(sender, "claims", body).await.json();
        fences.insert(granted["fence"].as_u64().unwrap());
    }
    assert_eq!(fences.len(), 4, "the first two are one caller");
    for (sender, caller) in [("JOBS", "tenant-1"), ("INVOICING", "jobs"), ("PLATFORM", "a\nb")] {
        let answer = api.call_as(sender, "claims", named(caller)).await;
        answer.assert_api_problem(403, "caller-unidentified");
    }
    let id = requests::record_id("invoices", "app:tenant-2", "k").unwrap();
    assert!(api.semel.store().get(&id).await.unwrap().is_some());
}

#[tokio::test]
async fn a_scope_limits_what_a_claim_may_choose() {
    let api = api().await;
    let small = |more: Value| with(claim("k", 1), with(json!({ "scope": "small" }), more));
    for (more, message) in [
        (json!({ "lease": "6s" }), "at most 5s"),
        (json!({ "retention": "2h" }), "at most 1h"),
        (json!({ "wait": "61s" }), "at most 1m"),
        (json!({ "on_unknown": "fail" }), "the scope sets"),
    ] {
        let answer = api.call("claims", small(more)).await;
        answer.assert_api_problem(422, "limit-exceeded");
        assert!(answer.json()["detail"].as_str().unwrap().contains(message), "{}", answer.json());
    }
    for more in [json!({ "lease": "1ms" }), json!({ "lease": "5" }), json!({ "retention": "0s" })] {
        api.call("claims", small(more)).await.assert_api_problem(400, "request-malformed");
    }
    let shorter = json!({ "lease": "2s", "retention": "1m", "on_unknown": "hold" });
    assert_eq!(api.call("claims", small(shorter)).await.json()["lease_ms"], 2000);
    let claimed = api.call("claims", with(small(json!({})), json!({ "key": "big" }))).await.json();
    assert_eq!(claimed["lease_ms"], 5000);
    let long = json!({ "claim": claimed["claim"], "lease": "6s" });
    api.call("claims/renew", long).await.assert_api_problem(422, "limit-exceeded");
    let big = json!({ "claim": claimed["claim"], "result": { "body": "x".repeat(63) } });
    for _ in 0..2 {
        let answer = api.call("claims/complete", big.clone()).await.json();
        assert_eq!(answer, json!({ "outcome": "completed", "retained": false }));
    }
    let replay = api.call("claims", with(small(json!({})), json!({ "key": "big" }))).await.json();
    assert_eq!(replay, json!({ "outcome": "replay", "retained": false }));
}

#[tokio::test]
async fn a_claim_that_cannot_be_meant_is_refused() {
    let api = api().await;
    let scopes = [("payments", 403, "scope-forbidden"), ("Bad!", 400, "request-malformed")];
    for (scope, status, slug) in
        scopes.into_iter().chain([("orders~observed", 403, "scope-forbidden")])
    {
        let body = with(claim("k", 1), json!({ "scope": scope }));
        api.call("claims", body).await.assert_api_problem(status, slug);
    }
    api.call("claims", claim("", 1)).await.assert_api_problem(400, "key-malformed");
    for more in [
        json!({ "attempt_id": "7" }),
        json!({ "fingerprint": "7" }),
        json!({ "payload": 1, "fingerprint": "a".repeat(64) }),
        json!({ "surprise": 1 }),
        json!({ "op": "claim" }),
        json!({ "on_unknown": "guess" }),
    ] {
        api.call("claims", with(claim("k", 1), more))
            .await
            .assert_api_problem(400, "request-malformed");
    }
    for body in ["", "[]", "{", "{\"scope\":\"a\",\"scope\":\"b\"}"] {
        api.call_as("JOBS", "claims", body).await.assert_api_problem(400, "request-malformed");
    }
    // An array is no object, even if its elements are those of the members.
    let id = attempt_id(1);
    let listed = format!("[null,\"invoices\",\"k\",\"{id}\"]");
    api.call_as("JOBS", "claims", listed).await.assert_api_problem(400, "request-malformed");
    let twice = r#","payload":{"a":1,"a":2}}"#;
    let body = claim("k", 1).to_string().replace('}', twice);
    api.call_as("JOBS", "claims", body).await.assert_api_problem(400, "request-malformed");
    let large = format!("\"{}\"", "x".repeat(8 << 20));
    api.call_as("JOBS", "claims/complete", large).await.assert_api_problem(413, "body-too-large");
    let request = http::Request::post("/v1/claims").header("host", "localhost");
    let request = request.header("authorization", format!("Bearer {}", secret_in("JOBS")));
    let answer = api.ask(request.body(claim("k", 1).to_string().into()).unwrap()).await;
    answer.assert_api_problem(415, "media-type-unsupported");
    assert!(api.granted("k", 1).await["fence"].is_u64(), "nothing was claimed before");
}

#[tokio::test]
async fn a_payload_is_compared_by_its_meaning() {
    let api = api().await;
    let body = |payload: &str| claim("k", 1).to_string().replace('}', &format!(",{payload}}}"));
    let first = body(r#""payload":{"a":1.0,"b":[null,"é"]}"#);
    let fence = api.call_as("JOBS", "claims", first).await.json()["fence"].clone();
    let same = body("\"payload\": {\"b\" : [null, \"\\u00e9\"], \"a\":1}");
    assert_eq!(api.call_as("JOBS", "claims", same).await.json()["fence"], fence);
    for other in [r#""payload":{"a":1.1,"b":[null,"é"]}"#, r#""payload":null"#, r#""about":"x""#] {
        let answer = api.call_as("JOBS", "claims", body(other)).await;
        answer.assert_api_problem(422, "key-reused");
    }
    // As `once` in Rust has it, and as a client has it that computes the hash itself.
    let fingerprint = semel::once::fingerprint(&json!({ "b": [null, "é"], "a": 1 })).unwrap();
    let digits = data_encoding::HEXLOWER.encode(&fingerprint.as_bytes()[1..]);
    let hashed = body(&format!("\"fingerprint\":\"{digits}\""));
    assert_eq!(api.call_as("JOBS", "claims", hashed).await.json()["fence"], fence);
}

#[tokio::test]
async fn a_waiting_claim_gets_the_result() {
    let api = api().await;
    let granted = api.granted("k", 1).await;
    let waiting = with(claim("k", 2), json!({ "wait": "30s" }));
    let (replay, _) = tokio::join!(api.call("claims", waiting), async {
        until(|| api.semel.waiting() == 1).await;
        let result = json!({ "claim": granted["claim"], "result": { "body": 7 } });
        api.call("claims/complete", result).await
    });
    assert_eq!(replay.json()["result"]["body"], 7);
}

#[tokio::test]
async fn waiting_claims_leave_connections_for_other_calls() {
    let api = api().await;
    let granted = api.granted("k", 1).await;
    let claims = async {
        let attempts = 2..2 + u8::try_from(listen::CONNECTIONS_MAX).unwrap();
        let mut asked = Vec::new();
        for attempt in attempts {
            let waiting = with(claim("k", attempt), json!({ "wait": "30s" }));
            asked.push(Box::pin(api.call("claims", waiting)));
        }
        crate::service::join_all(asked).await
    };
    let (answers, _) = tokio::join!(claims, async {
        until(|| api.semel.waiting() == listen::CONNECTIONS_MAX / 2).await;
        // More connections than are left: one after the other replaces an idle one.
        for _ in 0..listen::CONNECTIONS_MAX {
            assert_eq!(api.get("/healthz").await.status, 200);
        }
        let result = json!({ "claim": granted["claim"], "result": { "body": 7 } });
        api.call("claims/complete", result).await
    });
    let replayed = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(replayed, listen::CONNECTIONS_MAX / 2);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        answer.assert_api_problem(409, "in-progress");
    }
}

#[tokio::test]
async fn a_batch_answers_each_operation_in_order() {
    let api = api().await;
    let mut operations = Vec::new();
    for number in 0..498 {
        operations.push(with(claim(&format!("k{number}"), 1), json!({ "op": "claim" })));
    }
    operations.push(json!({ "op": "complete", "claim": "sc1.AAAA" }));
    operations.push(json!({ "op": "dance" }));
    let claimed = api.call("batch", json!(operations)).await;
    let claimed = claimed.json();
    let claimed = claimed.as_array().unwrap();
    assert_eq!(claimed.len(), 500);
    let mut ends = Vec::new();
    for (number, answer) in claimed.iter().take(498).enumerate() {
        assert_eq!(
            (&answer["status"], &answer["body"]["outcome"]),
            (&json!(200), &json!("execute"))
        );
        let result = json!({ "body": number });
        ends.push(json!({ "op": "complete", "claim": answer["body"]["claim"], "result": result }));
    }
    assert_eq!(
        (&claimed[498]["status"], &claimed[498]["should_retry"]),
        (&json!(400), &json!(false))
    );
    assert_eq!(claimed[499]["body"]["type"], "urn:semel:problem:request-malformed");
    assert!(api.call("batch", json!(ends)).await.json().as_array().unwrap().iter().all(|answer| {
        *answer == json!({ "status": 200, "body": { "outcome": "completed", "retained": true } })
    }));
    let busy = api.granted("busy", 1).await;
    assert!(busy["fence"].is_u64());
    let mixed = json!([
        with(claim("k7", 2), json!({ "op": "claim" })),
        with(claim("busy", 2), json!({ "op": "claim", "wait": "30s" })),
        { "op": "release", "claim": busy["claim"] },
    ]);
    let mixed = api.call("batch", mixed).await.json();
    assert_eq!(mixed[0]["body"]["result"]["body"], 7);
    assert_eq!(
        (&mixed[1]["should_retry"], &mixed[1]["retry_after_ms"]),
        (&json!(true), &json!(1000))
    );
    assert_eq!(mixed[2]["body"]["outcome"], "released");
    operations.push(json!({ "op": "claim" }));
    api.call("batch", json!(operations)).await.assert_api_problem(400, "request-malformed");
    api.call("batch", json!({ "op": "claim" })).await.assert_api_problem(400, "request-malformed");
    assert_eq!(api.call("batch", json!([])).await.json(), json!([]));
}

#[tokio::test]
async fn the_answer_to_a_batch_of_replays_has_a_limit() {
    let api = api().await;
    let granted = api.granted("k", 1).await;
    let result = json!({ "body": "x".repeat(1_000_000) });
    api.call("claims/complete", json!({ "claim": granted["claim"], "result": result })).await;
    let mut left: Vec<u8> = (2..42).collect();
    let mut batches = 0;
    while !left.is_empty() {
        let claims =
            left.iter().map(|attempt| with(claim("k", *attempt), json!({ "op": "claim" })));
        let answer = api.call("batch", claims.collect()).await;
        assert!(answer.body.len() < 17 << 20, "{} bytes", answer.body.len());
        let answers = answer.json();
        let refused = left.iter().zip(answers.as_array().unwrap());
        left = refused
            .filter(|(_, answer)| answer["body"]["outcome"] != "replay")
            .map(|(attempt, answer)| {
                assert_eq!(answer["body"]["type"], "urn:semel:problem:too-many-in-flight");
                assert_eq!(
                    (&answer["status"], &answer["should_retry"]),
                    (&json!(503), &json!(true))
                );
                *attempt
            })
            .collect();
        batches += 1;
    }
    assert_eq!(batches, 3, "16 of 40 fit into an answer");
}

#[tokio::test]
async fn without_its_store_the_api_asks_for_the_same_call_again() {
    let store = FlakyStore::new(MemoryStore::new());
    let api = TestApi::configured(store.clone(), SOURCE).await;
    let granted = api.granted("k", 1).await;
    store.set_all(StoreCondition::ReplyLost);
    for (path, body) in [
        ("claims", claim("other", 1)),
        ("claims/renew", json!({ "claim": granted["claim"] })),
        ("claims/complete", json!({ "claim": granted["claim"] })),
    ] {
        let answer = api.call(path, body).await;
        answer.assert_api_problem(503, "store-unavailable");
        assert!(answer.json()["detail"].as_str().unwrap().contains("same call again"));
    }
    store.set_all(StoreCondition::Available);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.granted("other", 1).await["attempt"], 1);
    let done = api.call("claims/complete", json!({ "claim": granted["claim"] })).await;
    assert_eq!(done.json()["outcome"], "completed");
}

#[tokio::test]
async fn a_claim_whose_reply_came_after_its_lease_holds_nothing() {
    let api = api().await;
    let short = |attempt| with(claim("k", attempt), json!({ "lease": "100ms" }));
    let lost = api.call("claims", short(1)).await.json();
    // Only time ends a lease.
    tokio::time::sleep(Duration::from_millis(150)).await;
    api.call("claims", short(2)).await.assert_api_problem(423, "outcome-unknown");
    let late = api.call("claims", short(1)).await.json();
    assert_eq!((&late["fence"], &late["lease_ms"]), (&lost["fence"], &json!(0)), "{late}");
    let renewed = api.call("claims/renew", json!({ "claim": late["claim"] })).await;
    renewed.assert_api_problem(409, "claim-lost");
    let released = json!({ "claim": late["claim"], "counted": false });
    assert_eq!(api.call("claims/release", released).await.status, 200);
    assert_eq!(api.granted("k", 2).await["attempt"], 1);
}

#[tokio::test]
async fn a_draining_server_answers_with_what_the_store_grants() {
    let store = FlakyStore::new(MemoryStore::new());
    let api = TestApi::configured(store.clone(), SOURCE).await;
    store.set(StoreCall::Claim, StoreCondition::ReplyDelayed);
    let (granted, ()) = tokio::join!(api.granted("k", 1), async {
        until(|| store.count(StoreCall::Claim) == 1).await;
        api.draining.send_replace(true);
        // Only time can show that the claim is not answered now.
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.set(StoreCall::Claim, StoreCondition::Available);
    });
    let done = api.call("claims/complete", json!({ "claim": granted["claim"] })).await;
    assert_eq!(done.status, 200);
}

#[tokio::test]
async fn a_draining_server_ends_claims_and_grants_none() {
    let api = api().await;
    let granted = api.granted("k", 1).await;
    let waiting = with(claim("k", 2), json!({ "wait": "1m" }));
    let (waited, ()) = tokio::join!(api.call("claims", waiting), async {
        until(|| api.semel.waiting() == 1).await;
        api.draining.send_replace(true);
    });
    waited.assert_api_problem(503, "draining");
    assert_eq!(waited.header("x-should-retry"), Some("true"));
    until(|| api.semel.waiting() == 0).await;
    api.call("claims", claim("other", 1)).await.assert_api_problem(503, "draining");
    let done = api.call("claims/complete", json!({ "claim": granted["claim"] })).await;
    assert_eq!(done.status, 200);
}
