//! What is different through a pooler, where no session can be set up.

use semel_postgres::Options;

use crate::{
    bench::soon,
    common::{Pg, Way, pooler},
};

/// A store of its own role through the pooler, which the fixture's own is not.
fn as_role(bench: &Pg) -> Options {
    let (role, schema) = (&bench.role, &bench.schema);
    let url = format!(
        "postgres://{role}@127.0.0.1:{}/postgres?schema={schema}&prefix=kit_",
        pooler().port()
    );
    Options::parse(&url).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_whose_commits_do_not_wait_is_refused() {
    for commit in ["off", "local"] {
        let bench = Pg::without_store(Way::Owner).await;
        let set = format!("ALTER ROLE {} SET synchronous_commit = {commit}", bench.role);
        bench.admin.batch_execute(&set).await.unwrap();
        let error = soon(as_role(&bench).connect()).await.unwrap_err().to_string();
        let advice = format!("ALTER ROLE \"{}\" SET synchronous_commit = on", bench.role);
        assert!(error.contains(&advice), "{commit}: {error}");
        soon(bench.options.connect()).await.unwrap();
    }
}
