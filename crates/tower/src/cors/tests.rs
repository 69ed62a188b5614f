//! Tests of origins and of the headers of one response.

use super::*;

const SHOP: &str = "https://shop.example";

fn origin(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).unwrap()
}

fn shop() -> Cors {
    Cors::new([SHOP.parse().unwrap()])
}

/// The headers that a rule leaves of a response with these.
fn applied(cors: &Cors, sent: Option<&str>, response: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in response {
        headers.append(HeaderName::try_from(*name).unwrap(), origin(value));
    }
    cors.apply(sent.map(origin).as_ref(), &mut headers);
    headers
}

#[test]
fn an_origin_is_written_as_browsers_send_it() {
    for text in [SHOP, "http://localhost:5173", "https://[::1]:8443", "capacitor://localhost"] {
        assert_eq!(text.parse::<AllowedOrigin>().unwrap().to_string(), text);
    }
    let upper: AllowedOrigin = "HTTPS://Shop.Example".parse().unwrap();
    assert_eq!(upper.to_string(), SHOP);
    for (text, error) in [
        ("null", AllowedOriginError::Null),
        ("https://shop.example:443", AllowedOriginError::DefaultPort),
        ("http://shop.example:80", AllowedOriginError::DefaultPort),
        ("https://shop.example/", AllowedOriginError::Syntax),
        ("https://shop.example/a", AllowedOriginError::Syntax),
        ("https://shop.example?a", AllowedOriginError::Syntax),
        ("https://me@shop.example", AllowedOriginError::Syntax),
        ("https://*.example", AllowedOriginError::Syntax),
        ("https://", AllowedOriginError::Syntax),
        ("shop.example", AllowedOriginError::Syntax),
        ("*", AllowedOriginError::Syntax),
        ("", AllowedOriginError::Syntax),
    ] {
        assert_eq!(text.parse::<AllowedOrigin>(), Err(error), "{text}");
    }
}

#[test]
fn an_origin_that_is_not_listed_is_never_reflected() {
    let both = [shop(), Cors::with_credentials([SHOP.parse().unwrap()])];
    for cors in both {
        for other in [
            "null",
            "https://shop.example.attacker.example",
            "https://attackershop.example",
            "http://shop.example",
            "https://shop.example:8443",
            "https://shop.example/",
            "*",
        ] {
            let headers = applied(&cors, Some(other), &[("access-control-allow-origin", other)]);
            assert_eq!(headers.len(), 1, "{headers:?}");
            assert_eq!(headers["vary"], "origin");
        }
    }
}

#[test]
fn the_headers_of_the_service_are_replaced() {
    let service = [
        ("access-control-allow-origin", "https://other.example"),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", "x-secret"),
        ("content-type", "text/plain"),
    ];
    let headers = applied(&shop(), Some(SHOP), &service);
    assert_eq!(headers["access-control-allow-origin"], SHOP);
    assert!(!headers.contains_key("access-control-allow-credentials"));
    let exposed = headers["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.contains("idempotent-replayed") && !exposed.contains("x-secret"), "{exposed}");
    assert_eq!(headers["content-type"], "text/plain");
    let headers = applied(&shop(), None, &service);
    assert_eq!(headers.len(), 2, "{headers:?}");
}

#[test]
fn credentials_need_a_listed_origin() {
    let cors = Cors::with_credentials([SHOP.parse().unwrap()]);
    let headers = applied(&cors, Some(SHOP), &[]);
    assert_eq!(headers["access-control-allow-credentials"], "true");
    let headers = applied(&Cors::any_origin(), Some(SHOP), &[]);
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert!(!headers.contains_key("access-control-allow-credentials"));
    assert!(!headers.contains_key("vary"));
}

#[test]
fn vary_names_the_origin_once() {
    for (vary, lines) in [("accept, Origin", 1), ("*", 1), ("accept", 2), ("x-origin", 2)] {
        let headers = applied(&shop(), Some(SHOP), &[("vary", vary)]);
        assert_eq!(headers.get_all("vary").iter().count(), lines, "{vary}");
    }
}

#[test]
fn a_preflight_from_another_origin_gets_no_permission() {
    let preflight = |sent: &str| {
        let mut request = HeaderMap::new();
        request.insert(header::ORIGIN, origin(sent));
        let read = [HeaderName::from_static("idempotency-key"), header::AUTHORIZATION];
        shop().preflight::<Body<()>>(&request, &[Method::POST], read)
    };
    let allowed = preflight(SHOP);
    assert_eq!(allowed.status(), StatusCode::NO_CONTENT);
    let text = |name: &str| allowed.headers()[name].to_str().unwrap();
    assert_eq!(text("access-control-allow-origin"), SHOP);
    assert_eq!(text("access-control-allow-methods"), "POST, GET, HEAD");
    let headers = "content-type, authorization, idempotency-key";
    assert_eq!(text("access-control-allow-headers"), headers);
    assert_eq!(text("access-control-max-age"), "600");
    let refused = preflight("https://other.example");
    assert_eq!(refused.headers().len(), 1, "{:?}", refused.headers());
    assert_eq!(refused.headers()["vary"], "origin");
}

#[test]
fn only_options_with_an_origin_and_a_method_is_a_preflight() {
    let mut headers = HeaderMap::new();
    assert_eq!(preflighted_method(&Method::OPTIONS, &headers), None);
    headers.insert(header::ORIGIN, origin(SHOP));
    assert_eq!(preflighted_method(&Method::OPTIONS, &headers), None);
    headers.insert(header::ACCESS_CONTROL_REQUEST_METHOD, origin("PUT"));
    assert_eq!(preflighted_method(&Method::OPTIONS, &headers), Some(Method::PUT));
    assert_eq!(preflighted_method(&Method::POST, &headers), None);
}

#[test]
fn a_page_may_read_the_retry_header_of_the_dialect() {
    let mut request = HeaderMap::new();
    request.insert(header::ORIGIN, origin(SHOP));
    for (dialect, count) in [(Dialect::IETF, 1), (Dialect::ADYEN, 2)] {
        let mut headers = HeaderMap::new();
        ResponseCors::new(&Arc::new(shop()), &dialect, &request).apply(&mut headers);
        let exposed = headers.get_all(header::ACCESS_CONTROL_EXPOSE_HEADERS);
        assert_eq!(exposed.iter().count(), count, "{headers:?}");
        assert_eq!(exposed.iter().any(|line| line == "transient-error"), count == 2);
        // Nothing is exposed to another origin.
        let mut headers = HeaderMap::new();
        ResponseCors::new(&Arc::new(shop()), &dialect, &HeaderMap::new()).apply(&mut headers);
        assert!(!headers.contains_key(header::ACCESS_CONTROL_EXPOSE_HEADERS));
    }
}
