//! Pages of other origins, and the path under which a caller looks its operation up.

use http::{HeaderValue, Request};
use serde_json::Value;

use crate::common::{
    ClientRequest, Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge, get, send,
};

const SHOP: &str = "https://shop.example";
const ADMIN: &str = "https://admin.example";
const CORS: &str = "cors = { origins = [\"https://shop.example\", \"https://admin.example\"], \
                    credentials = true, expose = [\"X-Charge\"] }";

fn with(mut request: ClientRequest, name: &'static str, value: &str) -> ClientRequest {
    request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
    request
}

fn from(origin: &str, request: ClientRequest) -> ClientRequest {
    with(request, "origin", origin)
}

fn preflight(origin: &str, path: &str, method: &str) -> ClientRequest {
    let request = Request::options(path).body(http_body_util::Full::default()).unwrap();
    from(origin, with(request, "access-control-request-method", method))
}

fn allowed(answer: &TestResponse) -> Option<&str> {
    answer.header("access-control-allow-origin")
}

/// An upstream that sets headers for one origin, whatever it is asked.
async fn upstream() -> Upstream {
    Upstream::start(|seen| Reply::created(seen).header("access-control-allow-origin", SHOP)).await
}

/// Guards `POST /charges` only, so that other methods of the path are the upstream's.
fn setup(upstream: &Upstream, lines: &str) -> Setup {
    Setup::new(&upstream.url())
        .tables(format!("[[route]]\nmatch = \"POST /charges\"\nscope = \"payments\"\n{lines}\n"))
}

#[tokio::test]
async fn preflights_are_answered_by_the_gateway_and_replays_fit_the_origin_that_asks_now() {
    let upstream = upstream().await;
    let lines = format!("{CORS}\nkey = {{ header = \"Idempotency-Key\", required = true }}");
    let gateway = setup(&upstream, &lines).start().await;
    let permitted = gateway.send(preflight(SHOP, "/charges", "POST")).await;
    assert_eq!((permitted.status.as_u16(), allowed(&permitted)), (204, Some(SHOP)));
    let headers = permitted.header("access-control-allow-headers").unwrap();
    assert!(headers.contains("idempotency-key"), "{headers}");
    let other = gateway.send(preflight("https://other.example", "/charges", "POST")).await;
    assert_eq!((other.status.as_u16(), allowed(&other)), (204, None));
    assert_eq!(upstream.request_count(), 0);
    // No route takes this method, so the upstream decides.
    assert_eq!(gateway.send(preflight(ADMIN, "/charges", "PUT")).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 1);

    let first = gateway.send(from(ADMIN, charge("k", ORDER))).await;
    assert_eq!(allowed(&first), Some(ADMIN));
    let exposed = first.header("access-control-expose-headers").unwrap();
    for name in ["idempotent-replayed", "idempotency-expires", "x-charge"] {
        assert!(exposed.split(", ").any(|listed| listed == name), "{name}: {exposed}");
    }
    gateway.send(from(ADMIN, charge("k", ORDER))).await.assert_replay_of(&first);
    let again = gateway.send(from(SHOP, charge("k", ORDER))).await;
    assert!(again.is_replayed());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!((allowed(&again), again.header("vary")), (Some(SHOP), Some("origin")));
    let other = gateway.send(from("https://other.example", charge("k", ORDER))).await;
    assert_eq!((other.is_replayed(), allowed(&other)), (true, None));
    assert_eq!(upstream.request_count(), 2);
    let missing = Request::post("/charges").body(ORDER.into()).unwrap();
    let missing = gateway.send(from(SHOP, missing)).await;
    missing.assert_problem(400, "key-missing");
    assert_eq!(allowed(&missing), Some(SHOP));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_page_can_read_that_the_upstream_cannot_be_reached() {
    let upstream = upstream().await;
    let gateway = setup(&upstream, CORS).start().await;
    upstream.stop().await;
    for request in [charge("k", ORDER), Request::post("/charges").body(ORDER.into()).unwrap()] {
        let answer = gateway.send(from(ADMIN, request)).await;
        answer.assert_problem(502, "upstream-unreachable");
        assert_eq!(allowed(&answer), Some(ADMIN));
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn without_a_rule_the_upstream_answers_preflights() {
    let upstream = upstream().await;
    let gateway = setup(&upstream, "").start().await;
    let answer = gateway.send(preflight(ADMIN, "/charges", "POST")).await;
    assert_eq!((answer.status.as_u16(), allowed(&answer)), (201, Some(SHOP)));
    assert_eq!(upstream.requests()[0].method, http::Method::OPTIONS);
    gateway.assert_clean_shutdown().await;
}

async fn look_up(gateway: &Gateway, token: &str, path: &str) -> (u16, Value) {
    let request = with(from(SHOP, get(path)), "authorization", &format!("Bearer {token}"));
    let answer = send(gateway.address(), request).await;
    assert_eq!(allowed(&answer), Some(SHOP));
    (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap())
}

#[tokio::test]
async fn a_caller_looks_up_its_own_operation_and_no_other() {
    let upstream = upstream().await;
    let lines = format!("{CORS}\nlookup = \"/idempotency/{{scope}}/{{key}}\"");
    let gateway = setup(&upstream, &lines).start().await;
    let path = "/idempotency/payments/a%2Fb";
    assert_eq!(look_up(&gateway, "sk_1", path).await.0, 404);
    let first = gateway.send(with(charge("a/b", ORDER), "authorization", "Bearer sk_1")).await;
    let (status, found) = look_up(&gateway, "sk_1", path).await;
    assert_eq!((status, found["state"].as_str()), (200, Some("completed")));
    assert_eq!(found["answer"]["body"].as_str(), Some(first.text()));
    let absent = (404, serde_json::json!({ "state": "absent" }));
    assert_eq!(look_up(&gateway, "sk_2", path).await, absent);
    gateway.send(get(path)).await.assert_problem(403, "caller-unidentified");
    let permitted = gateway.send(preflight(SHOP, path, "GET")).await;
    assert_eq!((permitted.status.as_u16(), allowed(&permitted)), (204, Some(SHOP)));
    assert_eq!(upstream.request_count(), 1);
    gateway.send(get("/idempotency/other/k")).await;
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}
