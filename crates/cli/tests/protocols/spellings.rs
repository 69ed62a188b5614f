//! Requests that are spelt so that a strict route does not take them, and requests that no route
//! takes, by HTTP/1.1 and HTTP/2.

use std::fs;

use http::Request;
use serde_json::Value;

use crate::{
    client::Client,
    common::{Gateway, Setup, TestResponse, Upstream, text},
};

const ROUTES: &str = "[[route]]\nmatch = \"/webhooks/stripe\"\nscope = \"webhooks\"\n\
     signature = { scheme = \"stripe\", secret_file = \"webhook.secret\" }\n\
     [[route]]\nmatch = \"POST /v1/pay\"\nscope = \"pay\"\nkey = { required = true }\n\
     [[route]]\nmatch = \"POST other.example/v1/refund\"\nscope = \"refund\"\n\
     key = { required = true }\n";

fn setup(upstream: &Upstream, routes: &str) -> Setup {
    let setup = Setup::at(upstream.address()).tables(routes);
    fs::write(setup.folder().join("webhook.secret"), "whsec_a_secret_of_the_tests").unwrap();
    setup
}

/// One request on a connection of its own: a refused one may close it.
async fn ask(gateway: &Gateway, http2: bool, method: &str, path: &str) -> TestResponse {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("idempotency-key", "a-key").body(text("{\"id\":\"evt_1\"}"));
    Client::connect(gateway.address(), http2).await.ask(request.unwrap()).await
}

fn detail(answer: &TestResponse) -> String {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    problem["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn no_spelling_gets_around_a_strict_route() {
    let upstream = Upstream::counting().await;
    let rest = "[[route]]\nmatch = \"* /**\"\nguard = false\n";
    for routes in [ROUTES.to_owned(), ROUTES.to_owned() + rest] {
        let gateway = setup(&upstream, &routes).start().await;
        for http2 in [false, true] {
            for (method, path, reason) in [
                ("POST", "/webhooks%2Fstripe", "The path can be read"),
                ("POST", "/webhooks%252fstripe", "The path can be read"),
                ("PUT", "/webhooks\\stripe", "The path can be read"),
                ("POST", "/webhooks/stripe;x", "The path can be read"),
                ("POST", "/x/..;/webhooks/stripe", "The path can be read"),
                ("POST", "/Webhooks/stripe", "The path can be read"),
                ("POST", "/webhooks/stripe%0a", "The path can be read"),
                ("POST", "/v1%2Fpay", "The path can be read"),
                ("POST", "/v1/pay%00", "The path can be read"),
                ("POST", "/v1/PAY", "The path can be read"),
                ("post", "/v1/pay", "The method is not in capitals"),
                ("POST", "/v1/refund", "at another host"),
            ] {
                let answer = ask(&gateway, http2, method, path).await;
                assert_eq!(answer.status, 400, "{method} {path}: {answer:?}");
                assert!(detail(&answer).contains(reason), "{method} {path}: {answer:?}");
            }
            let unsigned = ask(&gateway, http2, "post", "/webhooks/stripe").await;
            assert_eq!(unsigned.status, 401, "every method is verified: {unsigned:?}");
        }
    }
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn other_paths_pass_as_they_are() {
    let upstream = Upstream::counting().await;
    let gateway = setup(&upstream, ROUTES).start().await;
    let paths = ["/files/a%2Fb;c.pdf", "/V1/Pays", "/v1/pay/x%2f1", "/a/../b", "/webhooks.stripe"];
    for http2 in [false, true] {
        for path in paths {
            assert_eq!(ask(&gateway, http2, "POST", path).await.status, 200, "{path}");
        }
        assert_eq!(ask(&gateway, http2, "GET", "/v1%2Fpay").await.status, 200, "no route for GET");
    }
    assert_eq!(upstream.request_count(), 2 * (paths.len() + 1));
}

#[tokio::test]
async fn a_request_that_matches_no_route_can_be_refused() {
    let upstream = Upstream::counting().await;
    let routes = ROUTES.to_owned() + "[[route]]\nmatch = \"GET /open/**\"\nguard = false\n";
    let gateway = setup(&upstream, &routes).gateway("unmatched = \"refuse\"").start().await;
    for http2 in [false, true] {
        let mut client = Client::connect(gateway.address(), http2).await;
        for (path, status) in [("/open/x", 200), ("/v1/pay", 404), ("/", 404), ("/open", 200)] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, status, "one connection serves them all: {path}");
            if status == 404 {
                assert!(detail(&answer).contains("No route"), "{answer:?}");
            }
        }
        assert_eq!(ask(&gateway, http2, "POST", "/other").await.status, 404);
        assert_eq!(ask(&gateway, http2, "POST", "/v1%2Fpay").await.status, 400);
    }
    assert_eq!(upstream.request_count(), 4);
}
