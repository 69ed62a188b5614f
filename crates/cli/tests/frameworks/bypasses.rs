//! No spelling of a request gets around a route with a signature.
//!
//! Each test sends every spelling of a webhook, unsigned, through gateways with three kinds of
//! configuration to a real service, and counts how often its handler ran. Some of them run where
//! they are sent to the service itself.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{
    gateway::Gateway,
    http::exchange,
    spellings::{self, HOST, Spelling},
    webhook_services::{Stack, WebhookService},
};

const SIGNED: &str = "scope = \"webhooks\"\n\
     signature = { scheme = \"stripe\", secret_env = \"SEMEL_TEST_WEBHOOK_SECRET\" }\n";
const SECRET: &str = "whsec_a_secret_of_the_tests";

#[test]
fn flask_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::FlaskOnWsgiref);
}

#[test]
fn django_on_wsgiref_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::DjangoOnWsgiref);
}

#[test]
fn django_on_uvicorn_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::DjangoOnUvicorn);
}

#[test]
fn fastapi_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::FastApiOnUvicorn);
}

#[test]
fn gos_serve_mux_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::GoServeMux);
}

#[test]
fn express_4_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::Express4);
}

#[test]
fn express_5_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::Express5);
}

#[test]
fn a_handler_that_express_mounts_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::Express5Mounted);
}

#[test]
fn a_node_server_that_parses_urls_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::NodeUrl);
}

#[test]
fn an_exact_location_of_nginx_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::NginxLocation);
}

#[test]
fn tomcat_runs_no_unsigned_webhook() {
    runs_no_unsigned_webhook(Stack::Tomcat);
}

/// The route as the guide writes it; with a method, before routes that take everything else; at one
/// host. A mounted handler takes the paths below, and so must its route.
fn configurations(stack: Stack) -> [String; 3] {
    let below = if stack == Stack::Express5Mounted { "/**" } else { "" };
    let signed =
        |place: &str| format!("[[route]]\nmatch = \"{place}/webhooks/stripe{below}\"\n{SIGNED}");
    let rest = "[[route]]\nmatch = \"POST /**\"\nscope = \"rest\"\ncaller = \"anonymous\"\n\
                [[route]]\nmatch = \"* /**\"\nguard = false\n";
    [signed(""), signed("POST ") + rest, signed(&format!("POST {HOST}"))]
}

fn runs_no_unsigned_webhook(stack: Stack) {
    let Some(service) = WebhookService::start(stack) else { return };
    let spellings = spellings::all();
    for spelling in &spellings {
        exchange(service.address(), &request(spelling, None));
    }
    let direct = service.hits();
    assert!(direct > 3, "{stack:?} takes some of the spellings for the same: {direct}");
    let mut passed = 0;
    for (number, routes) in configurations(stack).iter().enumerate() {
        let upstream = format!("[gateway]\nupstream = \"http://{}\"\n", service.address());
        let gateway = Gateway::configured(&format!("{upstream}{routes}"));
        let before = service.hits();
        let answers = spellings
            .iter()
            .map(|spelling| (spelling, exchange(gateway.address(), &request(spelling, None))));
        let ok: Vec<_> = answers.filter(|(_, answer)| answer.starts_with("HTTP/1.1 200")).collect();
        let hits = service.hits();
        if hits != before {
            let ok = ok.iter().map(|(spelling, _)| text(spelling));
            println!("{stack:?}, configuration {number}: {:#?}", ok.collect::<Vec<_>>());
        }
        passed += hits - before;
        let plain = Spelling { method: "POST", target: "/webhooks/stripe".to_owned(), host: HOST };
        let forged = exchange(gateway.address(), &request(&plain, None));
        assert!(forged.starts_with("HTTP/1.1 401 "), "{stack:?}: {forged}");
        assert_eq!(service.hits(), hits);
        let signed = exchange(gateway.address(), &request(&plain, Some(number)));
        assert!(signed.starts_with("HTTP/1.1 200 "), "{stack:?}: {signed}");
        assert_eq!(service.hits(), hits + 1, "{stack:?}: a webhook that is signed runs");
    }
    println!(
        "{stack:?} takes {direct} of {} spellings; behind three gateways {} ran unsigned",
        spellings.len(),
        passed
    );
    assert_eq!(passed, 0, "{stack:?} ran webhooks that are not signed");
}

fn text(spelling: &Spelling) -> String {
    format!("{} {} at {:?}", spelling.method, spelling.target, spelling.host)
}

/// An event, signed if it has a number.
fn request(spelling: &Spelling, event: Option<usize>) -> Vec<u8> {
    let Spelling { method, target, host } = spelling;
    let body = format!(r#"{{"id":"evt_{}"}}"#, event.unwrap_or_default());
    let signature = event.map(|_| {
        let now = jiff::Timestamp::now().as_second();
        let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        let mac = mac.chain_update(format!("{now}.{body}")).finalize().into_bytes();
        let mac = data_encoding::HEXLOWER.encode(&mac);
        format!("Stripe-Signature: t={now},v1={mac}\r\n")
    });
    let signature = signature.unwrap_or_default();
    format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{signature}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
