//! The schema: created concurrently, by another role, by a newer program.

use std::sync::Arc;

use semel_core::{Store, StoreErrorKind};
use semel_postgres::Options;
use semel_testkit::{
    fixture::Fixture as _,
    servers::{self, PgBouncer},
};

use crate::{
    fixture::{Access, Pg, connect, unique_name},
    harness::{claim, granted},
};

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_processes_create_the_tables_once() {
    let db = Pg::without_store(Access::Owner).await;
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let options = db.options.clone();
            tokio::spawn(async move { options.connect().await })
        })
        .collect();
    let migrating: Vec<_> = (0..4)
        .map(|_| {
            let options = db.options.clone();
            tokio::spawn(async move { options.migrate().await })
        })
        .collect();
    let mut made = 0;
    for migrated in migrating {
        let migrated = migrated.await.unwrap().unwrap();
        assert_eq!(migrated.to, 3);
        made += u32::from(migrated.from == 0);
    }
    assert!(made <= 1, "{made} processes created the tables");
    for (number, opened) in opening.into_iter().enumerate() {
        let store: Arc<dyn Store> = Arc::new(opened.await.unwrap().unwrap());
        granted(&store, &claim(&format!("key-{number}"))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waited_for_a_migration_sees_the_tables() {
    // A single session, which has cached that the tables do not exist.
    let pooler = PgBouncer::start_with(servers::postgres(), &[("default_pool_size", "1")]);
    let options = |schema: &str| {
        Options::parse(&format!("{}?schema={schema}", pooler.url("postgres"))).unwrap()
    };
    options(&unique_name("before")).migrate().await.unwrap();
    let options = options(&unique_name("waited"));
    let script = options.migrations();
    let (made, _) = script.split_once("COMMIT;").unwrap();
    let admin = connect(&servers::postgres().url("postgres")).await;
    admin.batch_execute(made).await.unwrap();
    let (_, lock) = made.split_once("pg_advisory_xact_lock(").unwrap();
    let (lock, _) = lock.split_once(')').unwrap();
    let late = tokio::spawn(async move { options.connect().await });
    servers::postgres().wait_for(&format!(
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
         AND (classid::bigint << 32) + objid::bigint = {lock}"
    ));
    admin.batch_execute("COMMIT").await.unwrap();
    late.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_one_version_newer_is_used_if_it_allows_that() {
    let db = Pg::new(Access::Owner).await;
    let newer = format!("UPDATE {}.kit_meta SET version = 4", db.schema);
    db.admin.batch_execute(&newer).await.unwrap();
    let store = db.another().await;
    granted(&store, &claim("rolling")).await;
    let migrated = db.options.migrate().await.unwrap();
    assert_eq!((migrated.from, migrated.to), (4, 4), "there is no downgrade");
    let too_new = format!("UPDATE {}.kit_meta SET oldest = 4", db.schema);
    db.admin.batch_execute(&too_new).await.unwrap();
    let refused = db.options.connect().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Newer);
    assert_eq!(db.options.migrate().await.unwrap_err().kind(), StoreErrorKind::Newer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_create_the_tables_gets_an_error_that_names_the_migrate_command() {
    let db = Pg::without_store(Access::Owner).await;
    let off = db.options.clone().migrating(false).connect().await.unwrap_err();
    assert!(off.to_string().contains("semel migrate"), "{off}");
    let role = unique_name("unprivileged");
    let schema = &db.schema;
    let setup = format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}");
    db.admin.batch_execute(&setup).await.unwrap();
    let base = servers::postgres().url_as(&role, "postgres");
    for schema in [schema.as_str(), "nowhere"] {
        let url = format!("{base}?schema={schema}");
        let refused = Options::parse(&url).unwrap().connect().await.unwrap_err();
        assert!(refused.to_string().contains("semel migrate"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_schema_is_created() {
    let schema = unique_name("Made");
    let url = format!("{}?schema={schema}&prefix=", servers::postgres().url("postgres"));
    let options = Options::parse(&url).unwrap();
    let store: Arc<dyn Store> = Arc::new(options.connect().await.unwrap());
    granted(&store, &claim("key")).await;
    let migrated = options.migrate().await.unwrap();
    assert_eq!((migrated.from, migrated.to), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_in_one_schema_with_different_prefixes_are_independent() {
    let schema = unique_name("shared");
    let base = servers::postgres().url("postgres");
    let claim = claim("key");
    for prefix in ["a_", "b_"] {
        let options = Options::parse(&format!("{base}?schema={schema}&prefix={prefix}")).unwrap();
        let store: Arc<dyn Store> = Arc::new(options.connect().await.unwrap());
        assert_eq!(granted(&store, &claim).await.attempt, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_cannot_be_made_durable_are_refused() {
    let db = Pg::new(Access::Owner).await;
    let database = servers::postgres().fresh_database();
    let off = format!("ALTER DATABASE {database} SET synchronous_commit = off");
    db.admin.batch_execute(&off).await.unwrap();
    let pooler = PgBouncer::start(servers::postgres());
    let refused = Options::parse(&pooler.url(&database)).unwrap().connect().await.unwrap_err();
    assert!(refused.to_string().contains("SET synchronous_commit = on"), "{refused}");
    let direct = Options::parse(&servers::postgres().url(&database)).unwrap();
    direct.connect().await.unwrap();
}

#[tokio::test]
async fn find_stores_finds_the_store_and_others_in_the_database() {
    let server = servers::postgres();
    let database = server.fresh_database();
    let at = |parameters: &str| {
        let url = format!("{}?{parameters}", server.url(&database));
        Options::parse(&url).unwrap()
    };
    let (money, prefixed) = (at("schema=money"), at("schema=money&prefix=other_"));
    let empty = money.find_stores().await.unwrap();
    assert_eq!((empty.store, empty.others), (None, Vec::new()));
    server.sql(&database, "CREATE TABLE product_meta (version integer, store text)");
    money.migrate().await.unwrap();
    let store = money.connect().await.unwrap();
    let present = money.find_stores().await.unwrap();
    let found = present.store.unwrap();
    assert_eq!((Some(found.id), present.others), (store.identity().await.unwrap(), vec![]));
    let age = found.created_at.elapsed().unwrap_or_default();
    assert!(age < std::time::Duration::from_secs(3600), "{age:?}");
    let others = prefixed.find_stores().await.unwrap();
    assert_eq!((others.store, others.others), (None, vec!["money.semel_meta".to_owned()]));
    // A misspelled schema: the store in `money` is reported.
    assert_eq!(at("schema=mony").find_stores().await.unwrap().others, ["money.semel_meta"]);
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname IN ('mony', 'money')";
    assert_eq!(server.sql(&database, tables), "4", "no table was created");
}
