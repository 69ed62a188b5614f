//! Every endpoint by every role.

use std::collections::BTreeSet;

use super::*;

const SOURCE: &str = r#"
[[api.token]]
name = "jobs"
role = "app"
secret_env = ["APP", "APP_BEFORE"]

[[api.token]]
name = "support"
role = "viewer"
secret_env = "VIEWER"

[[api.token]]
name = "oncall"
role = "operator"
secret_env = "OPERATOR"

[[api.token]]
name = "scraper"
role = "metrics"
secret_env = "METRICS"
"#;

/// The variables of the tokens, and what is no token.
const SENDERS: [&str; 7] = ["APP", "APP_BEFORE", "VIEWER", "OPERATOR", "METRICS", "WRONG", ""];

/// Who may send a request; the others of `SENDERS` get 401 without a token and 403 with one.
fn endpoints() -> Vec<(http::Method, &'static str, &'static [&'static str])> {
    let (get, post) = (http::Method::GET, http::Method::POST);
    let everyone: &[&str] = &SENDERS;
    let (app, operator): (&[&str], &[&str]) = (&["APP", "APP_BEFORE"], &["OPERATOR"]);
    let (readers, scrapers): (&[&str], &[&str]) =
        (&["VIEWER", "OPERATOR"], &["VIEWER", "OPERATOR", "METRICS"]);
    vec![
        (get.clone(), "/healthz", everyone),
        (get.clone(), "/readyz", everyone),
        (get.clone(), "/openapi.json", everyone),
        (get.clone(), "/docs", everyone),
        (get.clone(), "/metrics", scrapers),
        (get.clone(), "/v1/records", readers),
        (get, "/v1/record?scope=payments&caller=shop-7&key=k", readers),
        (post.clone(), "/v1/resolve", operator),
        (post.clone(), "/v1/resolve-many", operator),
        (post.clone(), "/v1/delete", operator),
        (post.clone(), "/v1/sweep", operator),
        (post.clone(), "/v1/reload", operator),
        (post.clone(), "/v1/claims", app),
        (post.clone(), "/v1/claims/complete", app),
        (post.clone(), "/v1/claims/renew", app),
        (post.clone(), "/v1/claims/release", app),
        (post.clone(), "/v1/claims/hold", app),
        (post, "/v1/batch", app),
    ]
}

#[tokio::test]
async fn each_role_may_do_what_the_table_says_and_nothing_else() {
    let source = format!("{SOURCE}\n[gateway]\nupstream = \"http://127.0.0.1:1\"\n");
    let api = TestApi::configured(MemoryStore::new(), &source).await;
    api.held("k").await;
    let mut wrong = Vec::new();
    for (method, path, allowed) in endpoints() {
        for sender in SENDERS {
            let mut request = http::Request::builder()
                .method(method.clone())
                .uri(path)
                .header("host", "localhost")
                .header("content-type", "application/json");
            if !sender.is_empty() {
                let token = secret_in(sender);
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let answer = api.ask(request.body(Full::default()).unwrap()).await;
            let expected = match sender {
                _ if allowed.contains(&sender) => None,
                "" | "WRONG" => Some(401),
                _ => Some(403),
            };
            let status = answer.status.as_u16();
            let refused = [401, 403].contains(&status).then_some(status);
            if refused != expected || status == 500 || status == 404 {
                wrong.push(format!("{method} {path} by {sender:?}: {}", answer.status));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The table has every endpoint that is described, and no other.
    let path = |path: &str| path.split('?').next().unwrap().to_owned();
    let listed: BTreeSet<String> = endpoints().iter().map(|(_, it, _)| path(it)).collect();
    let described = openapi::ENDPOINTS.iter().map(|endpoint| endpoint.path.to_owned());
    assert_eq!(listed, described.collect());
}

#[tokio::test]
async fn only_an_operator_sees_answers() {
    let source = format!("{SOURCE}\n[gateway]\nupstream = \"http://127.0.0.1:1\"\n");
    let api = TestApi::configured(MemoryStore::new(), &source).await;
    let fence = api.held("k").await;
    api.complete("k", fence, semel::core::Answer::encode(200, &[], &[], b"the-secret-answer"))
        .await;
    for (sender, shown) in [("VIEWER", false), ("OPERATOR", true)] {
        let request = http::Request::get("/v1/record?scope=payments&caller=shop-7&key=k")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", secret_in(sender)));
        let answer = api.ask(request.body(Full::default()).unwrap()).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert_eq!(
            (answer.status.as_u16(), text.contains("the-secret-answer")),
            (200, shown),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_scheme_other_than_bearer_is_no_token() {
    let source = format!("{SOURCE}\n[gateway]\nupstream = \"http://127.0.0.1:1\"\n");
    let api = TestApi::configured(MemoryStore::new(), &source).await;
    for value in [format!("Basic {}", secret_in("VIEWER")), secret_in("VIEWER"), String::new()] {
        let request = http::Request::get("/v1/records").header("host", "localhost");
        let request = request.header("authorization", value).body(Full::default()).unwrap();
        api.ask(request).await.assert_api_problem(401, "token-missing");
    }
}
