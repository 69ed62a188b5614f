//! What good configurations mean.

use super::*;

fn no_env(_: &str) -> Option<String> {
    None
}

fn read(source: &str) -> Config {
    Config::read(Some(Path::new("conf/semel.toml")), source, &Overrides::default(), &no_env)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_example_of_the_design_is_read() {
    let config = read(
        r#"
store = "sqlite:semel.db"

[gateway]
listen = "0.0.0.0:8080"
upstream = "http://127.0.0.1:3000"

[api]
listen = "127.0.0.1:8081"

[defaults]
caller = ["authorization", "anonymous"]

[[route]]
match = "POST /v1/payments/**"
scope = "payments"
key = { header = "Idempotency-Key", required = true }
caller = [{ header = "X-Merchant-Id" }]
fingerprint = { except = ["/sent_at", "/trace_id"] }
retention = "24h"
on_unknown = "hold"

[[route]]
match = "POST /webhooks/stripe"
scope = "webhooks.stripe"
key = { json = "/id", required = true }
caller = ["anonymous"]
keep = "success"
retention = "7d"
"#,
    );
    assert_eq!(config.store, StoreUrl::Sqlite("conf/semel.db".into()));
    assert_eq!(config.routes.len(), 2);
}
