//! Which requests could bypass a strict route by their spelling.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use semel_config::Overrides;

const SIGNED: &str = "scope = \"hooks\"\nsignature = { scheme = \"stripe\", secret_env = \"S\" }\n";
const KEYED: &str = "scope = \"keyed\"\nkey = { header = \"Idempotency-Key\", required = true }\n\
                     caller = \"anonymous\"\n";
const OPTIONAL: &str = "scope = \"optional\"\ncaller = \"anonymous\"\n";
const UNGUARDED: &str = "guard = false\n";

/// Paths that an upstream may read as `/v/pay`.
const PATHS: &str = "/(v|V|%76|%2576|x)(/|%2f|;a/|\\\\|//|/\\./|/\\.\\./){1,3}\
                     (pay|PAY|p%61y)(/|;b|%00|%2F)?";

/// Routes of a gateway with their settings.
struct Routes {
    config: Config,
    strict: StrictRoutes,
}

impl Routes {
    fn new(routes: &[(&str, &str)]) -> Self {
        let mut text = "gateway.upstream = \"http://api\"\n".to_owned();
        for (matches, settings) in routes {
            text += &format!("[[route]]\nmatch = \"{matches}\"\n{settings}");
        }
        let env = |_: &str| Some("whsec_a+secret+of+a+sender/012".to_owned());
        let config = Config::read(Some(Path::new("a")), &text, &Overrides::default(), &env);
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let strict = StrictRoutes::new(&config, config.gateway.upstream.as_ref().unwrap());
        Self { config, strict }
    }

    fn taken(&self, method: &Method, host: &str, path: &str) -> Option<usize> {
        let path = normal_path(path);
        self.config.routes.iter().position(|route| route.matches.takes(method, Some(host), &path))
    }

    fn second_reading(&self, method: &str, host: &str, path: &str) -> Option<SecondReading> {
        let method: Method = method.parse().unwrap();
        let taken = self.taken(&method, host, path);
        self.strict.second_reading(&method, Some(host), path, taken)
    }

    fn post(&self, path: &str) -> Option<SecondReading> {
        self.second_reading("POST", "api.example", path)
    }
}

#[test]
fn a_spelling_of_a_strict_path_is_refused() {
    for settings in [SIGNED, KEYED] {
        let routes = Routes::new(&[("POST /webhooks/stripe", settings)]);
        for path in [
            "/webhooks%2Fstripe",
            "/webhooks\\stripe",
            "/webhooks/stripe;x",
            "/Webhooks/stripe",
            "/webhooks/stripe%0a",
            "/x/..;/webhooks/stripe",
            "//x/webhooks/stripe",
            "/webhooks/stripe.json",
            "/webhooks//../stripe",
        ] {
            assert_eq!(routes.post(path), Some(SecondReading::Path), "{path}");
            assert_eq!(
                routes.second_reading("GET", "a", path),
                None,
                "the route takes no GET of {path}"
            );
        }
        for path in ["/webhooks/stripe", "/webhooks//stripe", "/x/../webhooks/stripe/"] {
            assert_eq!(routes.post(path), None, "{path} matches the route");
        }
    }
}

#[test]
fn a_path_that_no_strict_route_matches_in_any_reading_passes() {
    let routes = Routes::new(&[("POST /webhooks/stripe", SIGNED), ("POST /v1/pay/*", KEYED)]);
    for path in [
        "/",
        "/webhooks/github",
        "/Webhooks/GitHub",
        "/files/a%2Fb%2Fc",
        "/files/My%20Report%2Fv1;x=1.pdf",
        "/files/../x",
        "/a//b",
        "/caf%C3%A9",
        "/v1/pay/ch_1%2Frefund/x",
        "/v2/pay/ch_1",
    ] {
        assert_eq!(routes.post(path), None, "{path}");
    }
    // The same route matches every reading.
    let routes = Routes::new(&[("POST /v1/**", KEYED)]);
    for path in ["/v1/files/a%2Fb", "/v1/a;b/C.json", "/v1/x%00"] {
        assert_eq!(routes.post(path), None, "{path}");
    }
    let routes = Routes::new(&[("POST /v1/pay", OPTIONAL)]);
    assert_eq!(routes.post("/v1%2Fpay"), None, "no route is strict");
}

#[test]
fn a_spelling_that_matches_a_less_strict_route_is_refused() {
    for rest in [OPTIONAL, UNGUARDED, KEYED] {
        let routes = Routes::new(&[("POST /webhooks/stripe", SIGNED), ("* /**", rest)]);
        assert_eq!(routes.post("/webhooks%2Fstripe"), Some(SecondReading::Path), "{rest}");
        assert_eq!(routes.post("/other%2Fstripe"), None, "{rest}");
    }
    let other = SIGNED.replace("hooks", "others");
    let routes = Routes::new(&[("/a/**", SIGNED), ("/b/**", &other)]);
    let another = routes.post("/a/..%2Fb/x");
    assert_eq!(another, Some(SecondReading::Path), "a signature is valid for one route only");
    assert_eq!(routes.post("/a/b%2Fx"), None);
    let routes = Routes::new(&[("POST /v1/open/**", UNGUARDED), ("POST /v1/**", KEYED)]);
    assert_eq!(routes.post("/v1/open/..%2Fpay"), Some(SecondReading::Path));
    for path in ["/v1/open/a%2Fb", "/V1/Open/x", "/v1%2Fopen/x"] {
        assert_eq!(routes.post(path), None, "{path}: in every reading the open route is first");
    }
}

#[test]
fn a_path_that_a_route_names_exactly_passes() {
    let routes =
        [("POST /export", KEYED), ("POST /export.csv", UNGUARDED), ("* /Export", UNGUARDED)];
    let routes = Routes::new(&routes);
    assert_eq!(routes.post("/export.csv"), None);
    assert_eq!(routes.post("/Export"), None);
    assert_eq!(routes.post("/export.txt"), Some(SecondReading::Path));
    assert_eq!(routes.post("/export%2Ecsv"), Some(SecondReading::Path));
    assert_eq!(routes.post("/export/../Export"), Some(SecondReading::Path));
}

#[test]
fn a_plain_path_that_reads_as_an_unusual_strict_path_is_refused() {
    for (matches, path) in [
        ("/Webhooks/Stripe", "/webhooks/stripe"),
        ("/webhooks%2Fstripe", "/webhooks/stripe"),
        ("/hooks;v=1/stripe", "/hooks/stripe"),
        ("/v1/charges%3Acapture", "/v1/charges:capture"),
        ("/caf\u{e9}", "/CAF%C3%89"),
    ] {
        let routes = Routes::new(&[(matches, SIGNED)]);
        assert_eq!(routes.post(path), Some(SecondReading::Path), "{matches}");
    }
}

#[test]
fn a_method_in_another_case_is_refused() {
    for settings in [SIGNED, KEYED] {
        let routes = Routes::new(&[("POST /hook", settings), ("* /**", UNGUARDED)]);
        for method in ["post", "Post", "pOST"] {
            assert_eq!(
                routes.second_reading(method, "a", "/hook"),
                Some(SecondReading::Method),
                "{method}"
            );
            assert_eq!(routes.second_reading(method, "a", "/other"), None);
        }
        assert_eq!(routes.second_reading("PUT", "a", "/hook"), None);
        assert_eq!(routes.second_reading("PUT", "a", "/Hook"), None);
    }
    let routes = Routes::new(&[("* /pay", KEYED)]);
    assert_eq!(
        routes.second_reading("post", "a", "/pay"),
        Some(SecondReading::Method),
        "it would not be guarded"
    );
    assert_eq!(routes.second_reading("get", "a", "/pay"), None);
    let routes = Routes::new(&[("/hook", SIGNED)]);
    assert_eq!(routes.second_reading("post", "a", "/hook"), None, "every method is verified");
}

#[test]
fn a_host_that_no_route_names_is_refused_at_a_strict_path() {
    let routes = Routes::new(&[
        ("POST api.example/hook", SIGNED),
        ("POST open.example/**", UNGUARDED),
        ("POST /**", OPTIONAL),
    ]);
    for host in ["", "evil.example", "127.0.0.1", "[::1]:80", "api%2Eexample", "x.api.example"] {
        assert_eq!(
            routes.second_reading("POST", host, "/hook"),
            Some(SecondReading::Host),
            "{host}"
        );
        assert_eq!(routes.second_reading("POST", host, "/other"), None, "{host}");
    }
    for host in ["api.example", "API.example.", "api.example..", "api.example:80"] {
        assert_eq!(routes.second_reading("POST", host, "/hook"), None, "{host} is the route's");
        assert_eq!(
            routes.second_reading("POST", host, "/hook%2f"),
            Some(SecondReading::Path),
            "{host}"
        );
    }
    assert_eq!(
        routes.second_reading("POST", "open.example", "/hook"),
        None,
        "a route names this host"
    );
    let apart = SIGNED.to_owned() + "upstream = \"http://elsewhere\"\n";
    let routes = Routes::new(&[("POST api.example/hook", &apart)]);
    assert_eq!(
        routes.second_reading("POST", "b.example", "/hook"),
        None,
        "it has another upstream"
    );
}

#[test]
fn a_signed_route_for_every_host_takes_its_path_beside_one_for_a_host() {
    let other = SIGNED.replace("hooks", "others");
    let routes = [("POST eu.example/hook", SIGNED), ("POST /hook", other.as_str())];
    let routes = Routes::new(&routes);
    for host in ["eu.example", "other.example"] {
        assert_eq!(
            routes.second_reading("POST", host, "/hook"),
            None,
            "{host} has a route that verifies it"
        );
    }
    let spelt = routes.second_reading("POST", "other.example", "/Hook");
    assert_eq!(spelt, Some(SecondReading::Path));
    // A key is less than a signature, and a route for many paths does not mean this one.
    let routes = Routes::new(&[("POST eu.example/hook", SIGNED), ("POST /hook", KEYED)]);
    assert_eq!(routes.second_reading("POST", "other.example", "/hook"), Some(SecondReading::Host));
    let routes = Routes::new(&[("POST eu.example/hook", SIGNED), ("POST /**", other.as_str())]);
    assert_eq!(routes.second_reading("POST", "other.example", "/hook"), Some(SecondReading::Host));
}

#[test]
fn a_route_in_observe_mode_requires_nothing() {
    let observed = KEYED.to_owned() + "mode = \"observe\"\n";
    let routes = Routes::new(&[("POST /pay", &observed)]);
    assert_eq!(routes.post("/%2Fpay"), None);
}

#[test]
fn too_many_readings_are_refused_where_a_route_is_strict() {
    let path = format!("/%{}2Fx", "25".repeat(300));
    let routes = Routes::new(&[("POST /pay", KEYED)]);
    assert_eq!(routes.post(&path), Some(SecondReading::TooMany));
    assert_eq!(routes.second_reading("GET", "a", &path), None);
    assert_eq!(Routes::new(&[("POST /pay", OPTIONAL)]).post(&path), None);
}

proptest! {
    /// For every path: a strict route matches it, or it is refused, or an upstream that decodes it
    /// once, folds its case and cuts parameters does not get the strict path.
    #[test]
    fn no_spelling_bypasses_a_strict_path(path in PATHS) {
        let routes = Routes::new(&[("POST /v/pay", SIGNED), ("POST /**", OPTIONAL)]);
        let is_refused = routes.post(&path).is_some();
        let is_taken = routes.taken(&Method::POST, "api.example", &path) == Some(0);
        let decoded = path.replace("%2576", "v").replace("%76", "v").replace("%61", "a");
        let decoded = decoded.replace("%2f", "/").replace("%2F", "/").replace("%00", "");
        let cut = decoded.replace(";a", "").replace(";b", "").replace('\\', "/");
        let read = normal_path(&cut).to_ascii_lowercase();
        if read.trim_end_matches('/') == "/v/pay" {
            prop_assert!(is_refused || is_taken, "{} reads as {}", path, read);
        }
    }
}
