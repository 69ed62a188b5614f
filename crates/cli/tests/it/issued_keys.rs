//! Keys that the gateway issues.

use http::Request;
use http_body_util::Full;

use crate::{
    common::{ClientRequest, Gateway, ORDER, Setup, Upstream, charge},
    remembered::with_secrets,
};

const ROUTES: &str = r#"
[[route]]
match = "POST /charges"
scope = "payments"
key = { token = "required" }
caller = ["authorization", "anonymous"]
issued_keys = { path = "/keys/payments", lifetime = "10m" }

[[route]]
match = "POST /refunds"
scope = "refunds"
key = { token = "accepted", required = true }
issued_keys = { path = "/keys/refunds" }

[[route]]
match = "POST /keys/**"
scope = "other"
key = { required = true }
"#;

fn as_bearer(token: &str, mut request: ClientRequest) -> ClientRequest {
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

async fn key(gateway: &Gateway, path: &str, bearer: &str) -> String {
    let request = Request::post(path).body(Full::default()).unwrap();
    let answer = gateway.send(as_bearer(bearer, request)).await;
    assert_eq!(answer.status.as_u16(), 201, "{answer:?}");
    answer.json()["token"].as_str().unwrap().to_owned()
}

fn post(path: &str, key: &str) -> ClientRequest {
    let mut request = charge(key, ORDER);
    *request.uri_mut() = path.parse().unwrap();
    request
}

#[tokio::test]
async fn a_key_is_issued_for_one_route_and_one_caller() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).tables(ROUTES).start().await;
    let payment = key(&gateway, "/keys/payments", "zoe").await;
    let refund = key(&gateway, "/keys/refunds", "zoe").await;
    let pay = |bearer, path, key: &str| gateway.send(as_bearer(bearer, post(path, key)));
    let first = pay("zoe", "/charges", &payment).await;
    assert_eq!(first.status.as_u16(), 201);
    pay("zoe", "/charges", &payment).await.assert_replay_of(&first);
    for (bearer, path, key) in [
        ("tom", "/charges", &*payment),
        ("zoe", "/charges", &refund),
        ("zoe", "/refunds", &payment),
        ("zoe", "/charges", "order-7"),
        ("zoe", "/refunds", "st1.order-7"),
    ] {
        pay(bearer, path, key).await.assert_problem(422, "token-invalid");
    }
    assert_eq!(pay("zoe", "/refunds", &refund).await.status.as_u16(), 201);
    assert_eq!(pay("zoe", "/refunds", "order-7").await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 3);
    // A caller without a credential has no key of its own.
    let anonymous = gateway.send(Request::post("/keys/payments").body(Full::default()).unwrap());
    anonymous.await.assert_problem(403, "caller-unidentified");
    // Only POST asks for a key.
    let get = gateway.send(Request::get("/keys/payments").body(Full::default()).unwrap()).await;
    assert_eq!(get.status.as_u16(), 201, "passed on");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_key_is_valid_on_another_gateway_and_until_its_secret_is_retired() {
    let upstream = Upstream::plain().await;
    let base = Setup::new(&upstream.url()).tables(ROUTES);
    let gateway = with_secrets(&base, "ONE", None).start().await;
    let used = key(&gateway, "/keys/payments", "zoe").await;
    let unused = key(&gateway, "/keys/payments", "zoe").await;
    let pay = |key: &str| as_bearer("zoe", charge(key, ORDER));
    let first = gateway.send(pay(&used)).await;
    assert_eq!(first.status.as_u16(), 201);
    gateway.assert_clean_shutdown().await;
    // The caller has another name under the new secret, and its keys are valid nevertheless.
    let gateway = with_secrets(&base, "TWO", Some("ONE")).start().await;
    gateway.send(pay(&used)).await.assert_replay_of(&first);
    assert_eq!(gateway.send(pay(&unused)).await.status.as_u16(), 201);
    let unused = key(&gateway, "/keys/payments", "zoe").await;
    gateway.assert_clean_shutdown().await;
    assert_eq!(upstream.request_count(), 2);
    // A secret that the gateway does not know issued these.
    let gateway = with_secrets(&Setup::new(&upstream.url()).tables(ROUTES), "THREE", None);
    let gateway = gateway.start().await;
    for key in [&used, &unused] {
        gateway.send(pay(key)).await.assert_problem(422, "token-invalid");
    }
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}
