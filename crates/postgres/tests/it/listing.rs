//! Listings by key, time and state use indexes, and list each record once.

use std::{sync::Arc, time::Duration};

use semel_core::{
    Claim, Finish, ListQuery, OnUnknown, Reason, RecordId, Release, Resolution, StateName, Store,
};
use semel_testkit::{fixture::Fixture as _, torture, with};

use crate::{
    fixture::{Access, Pg},
    harness::{answer, claim, granted, rival},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Every record of a query, in pages of this size, and how many rows were examined.
async fn listed(store: &Arc<dyn Store>, query: &ListQuery, limit: u32) -> (Vec<RecordId>, u64) {
    let mut query = with(query.clone(), |it| it.limit = limit);
    let (mut all, mut examined) = (Vec::new(), 0);
    loop {
        let page = store.list(&query).await.unwrap();
        all.extend(page.items.into_iter().map(|line| line.id));
        examined += page.examined;
        query.after = page.next;
        if query.after.is_none() {
            all.sort();
            return (all, examined);
        }
    }
}

/// Creates records in all states, some of each every ten minutes.
async fn create_records(db: &Pg) -> Vec<RecordId> {
    let (store, mut all) = (db.store(), Vec::new());
    let lasting =
        |key: String, minutes: u32| with(claim(&key), |it| it.retention = minutes * MINUTE);
    let mut late = Vec::new();
    for round in 0..6 {
        let of = |what: &str, minutes: u32| lasting(format!("{what}-{round}"), minutes);
        let finish = async |claim: &Claim, finish: Finish| {
            let fence = granted(&store, claim).await.fence;
            store.finish(&claim.id, claim.claimant(fence), &finish).await.unwrap();
        };
        let refused = Reason::Answered(429);
        finish(&of("done", 600), Finish::complete(answer("a"))).await;
        finish(&of("refused", 600), Finish::release(Release::Refused, refused.clone())).await;
        finish(&of("rerun", 45), Finish::release(Release::Rerun, refused.clone())).await;
        finish(&of("forgotten", 600), Finish::forget(refused.clone())).await;
        finish(&of("held", 600), Finish::hold(refused)).await;
        let running = with(of("running", 600), |it| it.on_unknown = OnUnknown::Rerun);
        granted(&store, &running).await;
        let slow = of("slow", 100);
        late.push((slow.clone(), granted(&store, &slow).await.fence));
        let resolved = of("resolved", 600);
        let fence = granted(&store, &resolved).await.fence;
        let hold = Finish::hold(Reason::Panicked);
        store.finish(&resolved.id, resolved.claimant(fence), &hold).await.unwrap();
        store.resolve(&resolved.id, fence, &Resolution::Completed(answer("b"))).await.unwrap();
        // A released key that runs again is found by its new claim.
        let again = of("again", 600);
        finish(&again, Finish::release(Release::Rerun, Reason::Answered(500))).await;
        let taken = rival(&again);
        finish(&taken, Finish::complete(answer("c"))).await;
        for what in [
            "done",
            "refused",
            "rerun",
            "forgotten",
            "held",
            "running",
            "slow",
            "resolved",
            "again",
        ] {
            all.push(of(what, 1).id);
        }
        db.advance(10 * MINUTE).await;
        store.reap(100).await.unwrap();
    }
    // Executions that took more than half of their retention restart it.
    for (slow, fence) in late {
        let complete = Finish::complete(answer("d"));
        store.finish(&slow.id, slow.claimant(fence), &complete).await.unwrap();
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn records_in_all_states_are_found_by_time_and_state() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let all = create_records(&db).await;
        let store = db.store();
        let mut queries = Vec::new();
        for (age_min, age_max) in
            [(0, Some(0)), (0, Some(10)), (0, Some(35)), (20, Some(40)), (10, None), (0, Some(90))]
        {
            for state in [None, Some(StateName::Completed), Some(StateName::Released)] {
                queries.push(with(ListQuery::new(), |it| {
                    it.age_min = age_min * MINUTE;
                    it.age_max = age_max.map(|minutes: u32| minutes * MINUTE);
                    it.state = state;
                }));
            }
        }
        queries.push(with(ListQuery::new(), |it| it.state = Some(StateName::Released)));
        for query in queries {
            let mut wanted = Vec::new();
            for id in &all {
                if let Some(seen) = store.get(id).await.unwrap()
                    && query.takes(&semel_core::Summary::new(id.clone(), seen))
                {
                    wanted.push(id.clone());
                }
            }
            wanted.sort();
            for limit in [1, 3, 0] {
                let (found, _) = listed(&store, &query, limit).await;
                assert_eq!(found, wanted, "{access:?}, in pages of {limit}: {query:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_by_key_time_or_state_examines_only_its_records() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let day = with(claim("old"), |it| it.retention = 24 * 60 * MINUTE);
    granted(&store, &day).await;
    db.fill(5000, &Default::default()).await;
    db.advance(60 * MINUTE).await;
    let young = with(claim("young"), |it| it.retention = 24 * 60 * MINUTE);
    let fence = granted(&store, &young).await.fence;
    let release = Finish::release(Release::Rerun, Reason::Answered(500));
    store.finish(&young.id, young.claimant(fence), &release).await.unwrap();
    let changes: [&dyn Fn(&mut ListQuery); 3] =
        [&|it| it.age_max = Some(MINUTE), &|it| it.state = Some(StateName::Released), &|it| {
            it.key = Some(young.id.key.clone())
        }];
    for change in changes {
        let query = with(ListQuery::new(), |it| change(it));
        let (found, examined) = listed(&store, &query, 0).await;
        assert_eq!(found, std::slice::from_ref(&young.id), "{query:?}");
        assert_eq!(examined, 1, "{query:?}");
    }
}

/// A cursor holds eight bytes of a digest, and four of them are the same for all records of a key.
#[tokio::test(flavor = "multi_thread")]
async fn records_with_the_same_cursor_are_all_listed() {
    let db = Pg::new(Access::Owner).await;
    let (store, schema) = (db.store(), &db.schema);
    let hot = claim("hot");
    granted(&store, &hot).await;
    let twins = format!(
        "INSERT INTO {schema}.kit_records SELECT (r).* FROM (
             SELECT jsonb_populate_record(r, jsonb_build_object(
                 'digest', left(digest::text, 24) || lpad(n::text, 12, '0'),
                 'caller', 'merchant-' || n
             )) AS r
             FROM {schema}.kit_records AS r, generate_series(1, 9) AS n
         ) AS twins"
    );
    db.admin.batch_execute(&twins).await.unwrap();
    for key in [None, Some(hot.id.key.clone())] {
        let query = with(ListQuery::new(), |it| it.key = key);
        for limit in [1, 4, 0] {
            let (found, _) = listed(&store, &query, limit).await;
            assert_eq!(found.len(), 10, "in pages of {limit}: {query:?}");
        }
    }
}

/// The long edition has five million records: what a search of the dashboard takes.
#[tokio::test(flavor = "multi_thread")]
async fn torture_a_search_among_many_records_examines_what_it_finds_and_is_fast() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let day = |key: &str| with(claim(key), |it| it.retention = 24 * 60 * MINUTE);
    granted(&store, &day("old")).await;
    db.fill(if torture() { 5_000_000 } else { 20_000 }, &Default::default()).await;
    let analyze = format!("ANALYZE {}.kit_records", db.schema);
    db.admin.batch_execute(&analyze).await.unwrap();
    db.advance(60 * MINUTE).await;
    let young = day("young");
    let fence = granted(&store, &young).await.fence;
    let hold = Finish::hold(Reason::Answered(503));
    store.finish(&young.id, young.claimant(fence), &hold).await.unwrap();
    let changes: [&dyn Fn(&mut ListQuery); 3] =
        [&|it| it.key = Some(young.id.key.clone()), &|it| it.age_max = Some(MINUTE), &|it| {
            it.state = Some(StateName::Held)
        }];
    for change in changes {
        let query = with(ListQuery::new(), |it| change(it));
        let mut took = Vec::new();
        for _ in 0..21 {
            let began = tokio::time::Instant::now();
            let page = store.list(&query).await.unwrap();
            took.push(began.elapsed());
            // The lease of the old record has expired, so it is held too.
            let wanted = if query.state.is_some() { (2, 2) } else { (1, 1) };
            assert_eq!((page.items.len(), page.examined), wanted, "{query:?}");
        }
        took.sort();
        assert!(took[10] < Duration::from_millis(100), "{query:?}: {took:?}");
    }
}
