//! Many records: found by filters, and resolved at once.

use super::*;

#[tokio::test]
async fn records_are_found_by_every_filter() {
    let api = TestApi::new(None).await;
    let record = |scope, caller| requests::record_id(scope, caller, "k").unwrap();
    api.held_as(&record("payments", "shop-7"), Reason::Answered(503)).await;
    api.held_as(&record("payments", ""), Reason::LeaseExpired).await;
    api.held_as(&record("signup", "shop-7"), Reason::text("ledger closed")).await;
    let found = async |query: &str| -> Vec<String> {
        let page = api.get(&format!("/v1/records?{query}")).await.json();
        assert!(page["examined"].is_u64(), "{page}");
        let name = |line: &Value| format!("{}/{}", line["scope"], line["caller"]).replace('"', "");
        page["records"].as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(found("key=k").await, ["payments/shop-7", "payments/", "signup/shop-7"]);
    assert_eq!(found("key=k&caller=").await, ["payments/"]);
    assert_eq!(found("key=k&caller=shop-7&scope=signup").await, ["signup/shop-7"]);
    assert_eq!(found("reason=answered").await, ["payments/shop-7"]);
    assert_eq!(found("reason=ledger%20c").await, ["signup/shop-7"]);
    assert_eq!(found("since=1h&state=held").await.len(), 3);
    assert_eq!(found("until=1h").await.len(), 0);
    assert_eq!(found("since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z").await.len(), 0);
    assert_eq!(found("since=2020-01-01T00:00:00%2B01:00").await.len(), 3);
    assert_eq!(found("lapsed=true").await.len(), 0);
    let page = api.get("/v1/records?key=k&scope=signup").await.json();
    let line = &page["records"][0];
    assert_eq!(line["about"], "POST api.example.com/v1/charges");
    assert_eq!((&line["node"], &line["reason_label"]), (&"gateway-1".into(), &"text".into()));
    for time in ["claimed_at", "ended_at"] {
        let at: jiff::Timestamp = line[time].as_str().unwrap().parse().unwrap();
        let age = jiff::Timestamp::now().duration_since(at);
        assert!((0..60).contains(&age.as_secs()), "{line}");
    }
}

#[tokio::test]
async fn many_records_are_resolved_and_those_that_changed_are_left_alone() {
    let api = TestApi::new(Some(TOKEN)).await;
    let mut records = Vec::new();
    for key in ["a", "b", "c", "gone"] {
        let fence = api.held(key).await;
        records.push(json!({
            "scope": "payments", "caller": "shop-7", "key": key, "fence": fence.get(),
        }));
        match key {
            "b" => api.complete(key, fence, semel::core::Answer::failed()).await,
            "gone" => {
                let seen = semel::core::Resolution::Deleted(semel::core::StateName::Held);
                api.semel.store().resolve(&id(key), fence, &seen).await.unwrap();
            }
            _ => {}
        }
    }
    let request =
        json!({ "records": records, "to": "released", "why": "rolled back", "who": "zoe" });
    let done = api.post("/v1/resolve-many", request).await;
    let stale = |key| json!({ "scope": "payments", "caller": "shop-7", "key": key });
    let expected = json!({ "processed": 4, "applied": 2, "stale": [stale("b"), stale("gone")] });
    assert_eq!((done.status.as_u16(), done.json()), (200, expected));
    for key in ["a", "c"] {
        let seen = api.seen(key).await.unwrap();
        assert!(matches!(seen.state, StateView::Released { .. }), "{seen:?}");
    }
    assert!(matches!(api.seen("b").await.unwrap().state, StateView::Completed { .. }));
    let audit = api.audit();
    assert_eq!(audit.lines().count(), 8, "two lines for each");
    assert_eq!(audit.matches(r#""result":"applied""#).count(), 2);
    assert_eq!(audit.matches(r#""result":"failed: "#).count(), 2);
}

#[tokio::test]
async fn many_records_must_be_named_each_with_its_fence_and_not_too_many() {
    let api = TestApi::new(Some(TOKEN)).await;
    let fence = api.held("k").await.get();
    let record = |key: &str, fence: u64| {
        let mut record = json!({ "scope": "payments", "caller": "shop-7" });
        (record["key"], record["fence"]) = (key.into(), fence.into());
        record
    };
    let request = |records: Vec<Value>| json!({ "records": records, "to": "released", "why": "x" });
    for (wrong, why) in [
        (request(vec![]), "nothing is named"),
        (request(vec![record("k", fence); requests::MANY_MAX + 1]), "too many"),
        (request(vec![record("k", fence), record("k", 0)]), "one has no fence"),
        (request(vec![record("k", fence), record("a b", 1)]), "one is no key"),
        (with(request(vec![record("k", fence)]), json!({ "why": "" })), "no reason"),
        (with(request(vec![record("k", fence)]), json!({ "to": "completed" })), "no answer"),
        (with(request(vec![record("k", fence)]), json!({ "preview": true })), "unknown field"),
    ] {
        let answer = api.post("/v1/resolve-many", wrong).await;
        assert_eq!(answer.status, 400, "{why}");
        answer.assert_api_problem(400, "request-malformed");
    }
    assert_eq!(api.seen("k").await.unwrap().state, StateView::Held);
    assert_eq!(api.audit(), "");
}

#[tokio::test]
async fn a_partial_result_is_returned_when_the_store_fails() {
    let store = FlakyStore::new(MemoryStore::new());
    let api = TestApi::on(store.clone(), Some(TOKEN)).await;
    let mut records = Vec::new();
    for key in ["a", "b"] {
        let fence = api.held(key).await.get();
        let (scope, caller, key) = ("payments".into(), "shop-7".into(), key.into());
        records.push(requests::SeenRecord { scope, caller, key, fence });
    }
    let request = |records: &[requests::SeenRecord]| requests::ResolveManyRequest {
        records: records.to_vec(),
        to: requests::ResolvedState::Released,
        answer: None,
        why: "x".to_owned(),
        who: String::new(),
    };
    let audit = AuditLog::at(api.folder.path().join("audit.jsonl"));
    let resolve = async |records: &[requests::SeenRecord], weather| {
        let after_first = |_| store.set_all(weather);
        let who = "zoe".to_owned();
        actions::resolve_many(&store, &audit, request(records), who, None, after_first).await
    };
    let done = resolve(&records, StoreCondition::Unavailable).await.unwrap();
    assert_eq!((done.processed, done.applied), (1, 1));
    let refused = resolve(&records[1..], StoreCondition::Unavailable).await;
    assert!(matches!(refused, Err(actions::ActionError::Store(_))), "{refused:?}");
    store.set_all(StoreCondition::Available);
    assert_eq!(resolve(&records[1..], StoreCondition::Available).await.unwrap().applied, 1);
}

#[tokio::test]
async fn resolving_many_ends_in_time_and_says_how_far_it_came() {
    let api = TestApi::new(Some(TOKEN)).await;
    let mut records = Vec::new();
    for key in ["a", "b"] {
        let fence = api.held(key).await.get();
        let (scope, caller, key) = ("payments".into(), "shop-7".into(), key.into());
        records.push(requests::SeenRecord { scope, caller, key, fence });
    }
    let (to, why, who) = (requests::ResolvedState::Released, "x".to_owned(), String::new());
    let request = requests::ResolveManyRequest { records, to, answer: None, why, who };
    let audit = AuditLog::at(api.folder.path().join("audit.jsonl"));
    let (store, limit) = (api.semel.store(), Some(Duration::ZERO));
    let done = actions::resolve_many(&**store, &audit, request, String::new(), limit, |_| {}).await;
    assert_eq!(done.unwrap().processed, 1);
}
