//! Valid configurations.

use http::{HeaderName, Method};
use semel::core::{
    BodyRule, FingerprintHeader, HostRule, Keep, OnStoreDown, OnUnknown, Policy, QueryRule,
    StatusList, canonical::Selection,
};
use semel_tower::{CaptureSource, RecordContent};

use super::*;
use crate::{
    AboutSource, CallerPart, CallerRule, Guard, HmacRule, KeyLocation, Mode, Protocol, Required,
    SignatureScheme, Upstream, WebhookSecretSource,
};

fn env(name: &str) -> Option<String> {
    match name {
        "SEMEL_SECRET" => Some("a secret of the callers".to_owned()),
        "SEMEL_OPERATOR_TOKEN" => Some("a-token-of-an-operator".to_owned()),
        "HOOK_SECRET" | "NEXT_HOOK_SECRET" | "STRIPE_WEBHOOK_SECRET" => {
            Some("whsec_a+secret+of+a+sender/012".to_owned())
        }
        _ => None,
    }
}

fn read_with(source: &str, typed: &Overrides) -> Config {
    Config::read(Some(Path::new("conf/semel.toml")), source, typed, &env)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn read(source: &str) -> Config {
    read_with(source, &Overrides::default())
}

/// The guard of the only route of a configuration with these defaults.
fn guard(defaults: &str) -> Guard {
    let source = format!("gateway.upstream = \"http://a\"\n[defaults]\n{defaults}");
    let mut config = read(&source);
    assert_eq!(config.routes.len(), 1);
    config.routes.remove(0).guard.unwrap()
}

fn header(name: &'static str) -> KeyLocation {
    KeyLocation::Header(HeaderName::from_static(name))
}

#[test]
fn only_the_upstream_is_required() {
    let typed =
        Overrides { upstream: Some("http://127.0.0.1:3000".into()), ..Overrides::default() };
    let config = Config::load(None, &typed, &env).unwrap();
    assert_eq!(config.store, StoreUrl::Sqlite("semel.db".into()));
    assert_eq!(config.gateway.listen, ["127.0.0.1:8080".parse().unwrap()]);
    let upstream = config.gateway.upstream.as_ref().unwrap();
    assert_eq!(**upstream, Upstream::at("http://127.0.0.1:3000").unwrap());
    assert!(config.gateway.threads > 0 && !config.gateway.trust_forwarded);
    assert_eq!(config.gateway.drain, Duration::from_secs(65));
    let api = config.api.unwrap();
    assert_eq!(api.listen, "127.0.0.1:8081".parse().unwrap());
    assert_eq!((api.operator_token, api.audit), (None, "semel.db.audit.jsonl".into()));
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.sweep_every, Duration::from_secs(900));
    assert_eq!((config.secret, config.secret_value), (SecretSource::BesideStore, None));
    let [route] = &config.routes[..] else { panic!("{:?}", config.routes) };
    assert_eq!(route.matches.to_string(), "POST,PATCH /**");
    assert!(Arc::ptr_eq(&route.upstream, upstream));
    let guard = route.guard.as_ref().unwrap();
    assert_eq!(guard.scope.as_str(), "default");
    assert_eq!((&guard.key[..], guard.required), (&[header("idempotency-key")][..], Required::No));
    assert_eq!(guard.callers, [CallerRule::Authorization]);
    assert_eq!(guard.policy, Policy::default());
    assert!(guard.keep_headers.is_empty());
}

#[test]
fn the_example_of_the_design_is_read() {
    let config = read(include_str!("../../tests/files/good/design.toml"));
    assert!(matches!(config.store, StoreUrl::Postgres(_)));
    let [payments, webhooks] = &config.routes[..] else { panic!("{:?}", config.routes) };
    assert!(payments.matches.takes(&Method::POST, None, "/v1/payments/7"));
    let payments = payments.guard.as_ref().unwrap();
    assert_eq!(payments.required, Required::Yes);
    assert_eq!(payments.callers, [CallerRule::Header(HeaderName::from_static("x-merchant-id"))]);
    let Selection::Except(except) = &payments.fingerprint.as_ref().unwrap().selection else {
        panic!()
    };
    assert_eq!(except.len(), 2);
    let webhooks = webhooks.guard.as_ref().unwrap();
    assert!(matches!(&webhooks.key[..], [KeyLocation::Json(id)] if id[0].as_str() == "/id"));
    assert_eq!(webhooks.callers, [CallerRule::Anonymous]);
    assert_eq!(webhooks.policy.keep, Keep::Success);
    assert_eq!(webhooks.policy.retention, Duration::from_secs(7 * 86_400));
    assert_eq!(webhooks.signature.as_ref().unwrap().scheme, SignatureScheme::Stripe);
}

#[test]
fn a_key_is_written_in_many_ways() {
    let key = |text: &str| {
        let guard = guard(&format!("key = {text}"));
        (guard.key, guard.required)
    };
    let usual = || header("idempotency-key");
    let id = || KeyLocation::Json(vec!["/id".parse().unwrap()]);
    assert_eq!(key("\"X-Key\""), (vec![header("x-key")], Required::No));
    assert_eq!(key("{ required = true }"), (vec![usual()], Required::Yes));
    assert_eq!(key("{ json = \"/id\", required = \"warn\" }"), (vec![id()], Required::Warn));
    let several = vec![header("x-key"), id()];
    assert_eq!(key("[\"X-Key\", { json = \"/id\" }]"), (several.clone(), Required::No));
    let any = "{ any = [{ header = \"X-Key\" }, { json = \"/id\" }], required = true }";
    assert_eq!(key(any), (several, Required::Yes));
    let members = ["/contest", "/user"].map(|text| text.parse().unwrap()).to_vec();
    let members = KeyLocation::Json(members);
    let text = "{ json = [\"/contest\", \"/user\"], required = true }";
    assert_eq!(key(text), (vec![members.clone()], Required::Yes));
    let mixed = "[\"X-Key\", { json = [\"/contest\", \"/user\"] }]";
    assert_eq!(key(mixed), (vec![header("x-key"), members], Required::No));
}

#[test]
fn caller_rules_keep_the_order_of_the_list() {
    let name = HeaderName::from_static;
    let list = "caller = [{ cookie = \"sid\" }, { credential = \"X-Api-Key\" }, \"anonymous\"]";
    let rules = [
        CallerRule::Cookie("sid".into()),
        CallerRule::CredentialHeader(name("x-api-key")),
        CallerRule::Anonymous,
    ];
    assert_eq!(guard(list).callers, rules);
    assert_eq!(guard("caller = \"anonymous\"").callers, [CallerRule::Anonymous]);
    let one = guard("caller = { header = \"X-Merchant\" }").callers;
    assert_eq!(one, [CallerRule::Header(name("x-merchant"))]);
    assert_eq!(guard("caller = \"host\"").callers, [CallerRule::Host]);
}

#[test]
fn several_rules_may_name_a_caller_together() {
    let part = |rule, optional| CallerPart { rule, optional };
    let account = CallerRule::Header(HeaderName::from_static("stripe-account"));
    let text = "caller = { all = [\"authorization\", \"host\", \
                { header = \"Stripe-Account\", optional = true }] }";
    let all = CallerRule::All(vec![
        part(CallerRule::Authorization, false),
        part(CallerRule::Host, false),
        part(account, true),
    ]);
    assert_eq!(guard(text).callers, [all]);
    let text = "caller = { all = [{ authorization = true }, { host = true, optional = true }] }";
    let all = [part(CallerRule::Authorization, false), part(CallerRule::Host, true)];
    assert_eq!(guard(text).callers, [CallerRule::All(all.to_vec())]);
}

#[test]
fn a_fingerprint_counts_the_host_only_if_the_upstream_receives_it() {
    let rule = guard("fingerprint = { headers = [\"Stripe-Account\"] }").fingerprint.unwrap();
    assert_eq!(rule.headers, [FingerprintHeader::new("stripe-account").unwrap()]);
    assert_eq!(rule.host, HostRule::Count);
    let host = |lines: &str| guard(lines).fingerprint.unwrap().host;
    assert_eq!(host("fingerprint = { host = \"ignore\" }"), HostRule::Ignore);
    assert_eq!(host("upstream = { host = \"upstream\" }"), HostRule::Ignore);
    assert_eq!(host("upstream = { host = \"client\" }"), HostRule::Count);
}

#[test]
fn about_and_capture_are_read() {
    let usual = guard("");
    assert_eq!((usual.about, usual.capture), (AboutSource::Request, Vec::new()));
    let guard = guard(
        "about = \"route\"\n\
         capture = { order = \"/order_id\", shop = { header = \"X-Shop\" } }",
    );
    let order = CaptureSource::Json("/order_id".parse().unwrap());
    let shop = CaptureSource::Header(HeaderName::from_static("x-shop"));
    let captures = [("order".to_owned(), order), ("shop".to_owned(), shop)];
    assert_eq!((guard.about, guard.capture), (AboutSource::Route, captures.to_vec()));
}

#[test]
fn every_setting_of_a_policy_is_taken() {
    let guard = guard(
        "retention = \"7d\"\nlease = \"5s\"\nwait = \"0s\"\non_unknown = \"hold\"\n\
         hold_for = \"3d\"\nkeep = [200, 201]\nforget = [400, 422]\nrelease = [503]\n\
         on_store_down = \"pass\"\nstore_timeout = \"500ms\"\nrequest_max = \"2MiB\"\n\
         response_max = \"3KiB\"\nkeep_headers = [\"X-Charge\"]\nrecord = \"status\"\n\
         fingerprint = { only = [\"/amount\"], query = \"ignore\" }",
    );
    let expected = Policy {
        retention: Duration::from_secs(7 * 86_400),
        lease: Duration::from_secs(5),
        wait: Duration::ZERO,
        on_unknown: OnUnknown::Hold,
        hold_for: Some(Duration::from_secs(3 * 86_400)),
        keep: Keep::Statuses(semel::core::StatusSet::new([200, 201])),
        forget: StatusList::explicit([400, 422]),
        release: StatusList::explicit([503]),
        on_store_down: OnStoreDown::Pass,
        store_timeout: Duration::from_millis(500),
        request_bytes_max: 2 << 20,
        response_bytes_max: 3 << 10,
    };
    assert_eq!(guard.policy, expected);
    assert_eq!(guard.keep_headers, [HeaderName::from_static("x-charge")]);
    assert_eq!(guard.record, RecordContent::Status);
    let fingerprint = guard.fingerprint.unwrap();
    assert_eq!(fingerprint.query, QueryRule::Ignore);
    assert!(matches!(fingerprint.selection, Selection::Only(only) if only.len() == 1));
}

#[test]
fn an_explicit_keep_applies_to_keys_from_the_body() {
    for key in ["{ json = \"/id\" }", "[\"Idempotency-Key\", { json = \"/id\" }]"] {
        let kept = |more: &str| {
            let guard = guard(&format!("key = {key}\n{more}"));
            (guard.policy.keep, guard.keep_under_body_keys)
        };
        assert_eq!(kept(""), (Keep::Deterministic, false), "{key}");
        let listed = Keep::Statuses(semel::core::StatusSet::new([200, 402]));
        assert_eq!(kept("keep = [200, 402]"), (listed, true), "{key}");
    }
}

#[test]
fn a_route_inherits_unset_settings() {
    let config = read(
        "gateway.upstream = \"http://a\"\n\
         [defaults]\nkey = { header = \"X-Key\", required = true }\n\
         wait = \"1s\"\nrelease = [404, 503]\nkeep = \"success\"\n\
         [[route]]\nmatch = \"/a\"\nscope = \"s\"\nkey = { required = \"warn\" }\nwait = \"2s\"\n\
         [[route]]\nmatch = \"/b\"\nscope = \"s\"\nkey = { json = \"/id\" }\n\
         [[route]]\nmatch = \"/c\"\nscope = \"s\"\nkeep = \"all\"",
    );
    let guards: Vec<&Guard> = config.routes.iter().flat_map(|route| &route.guard).collect();
    let [a, b, c] = guards[..] else { panic!("{guards:?}") };
    assert_eq!((&a.key[..], a.required), (&[header("x-key")][..], Required::Warn));
    assert_eq!(a.policy.wait, Duration::from_secs(2));
    assert_eq!(b.required, Required::Yes, "one `required` for all");
    assert!(matches!(b.key[..], [KeyLocation::Json(_)]));
    assert_eq!(b.policy.wait, Duration::from_secs(1));
    assert_eq!(b.policy.release, StatusList::explicit([404, 503]));
    assert_eq!(c.policy.keep, Keep::All);
    assert_eq!(c.policy.release, b.policy.release, "`all` is less what is released");
}

#[test]
fn a_status_in_two_lists_belongs_to_the_more_specific_one() {
    let config = read(
        "gateway.upstream = \"http://a\"\n\
         [defaults]\nkeep = [200, 404]\nforget = [409, 422]\nrelease = [429, 503]\n\
         [[route]]\nmatch = \"/a\"\nscope = \"s\"\nkeep = [200, 422, 503]\n\
         [[route]]\nmatch = \"/b\"\nscope = \"s\"\nrelease = [404, 409]\n\
         [[route]]\nmatch = \"/c\"\nscope = \"s\"\nforget = \"default\"\nrelease = \"default\"\n\
         [[route]]\nmatch = \"/d\"\nscope = \"s\"",
    );
    let policies: Vec<&Policy> =
        config.routes.iter().flat_map(|route| &route.guard).map(|guard| &guard.policy).collect();
    let [a, b, c, d] = policies[..] else { panic!("{policies:?}") };
    let keep = |codes: &[u16]| Keep::Statuses(semel::core::StatusSet::new(codes.iter().copied()));
    assert_eq!((&a.keep, &a.forget), (&keep(&[200, 422, 503]), &StatusList::explicit([409])));
    assert_eq!(a.release, StatusList::explicit([429]));
    assert_eq!((&b.keep, &b.forget), (&keep(&[200]), &StatusList::explicit([422])));
    assert_eq!(b.release, StatusList::explicit([404, 409]));
    assert_eq!((&c.forget, &c.release), (&StatusList::Default, &StatusList::Default));
    assert_eq!((&d.keep, &d.forget), (&keep(&[200, 404]), &StatusList::explicit([409, 422])));
    assert!(policies.iter().all(|policy| policy.contradiction().is_none()));
}

#[test]
fn a_list_may_be_longer_than_the_default_one() {
    let policy = guard("release = [\"default\", 500]\nforget = [\"default\", 429]").policy;
    assert_eq!(policy.release, StatusList::explicit([401, 403, 405, 425, 500, 501]));
    assert_eq!(policy.forget, StatusList::explicit([307, 308, 421, 429]));
    let policy = guard("release = [\"default\", 500]\nkeep = [200, 403]").policy;
    assert_eq!(policy.release, StatusList::explicit([401, 405, 425, 429, 500, 501]));
}

#[test]
fn the_record_setting_is_read() {
    assert_eq!(guard("").record, RecordContent::Full);
    assert_eq!(guard("record = \"full\"").record, RecordContent::Full);
    let redacted = RecordContent::Redacted(vec!["/card/number".parse().unwrap()]);
    assert_eq!(guard("record = { redact = [\"/card/number\"] }").record, redacted);
    assert_eq!(guard("record.redact = [\"/card/number\"]").record, redacted);
}

#[test]
fn hold_for_applies_to_routes_that_hold() {
    let usual = guard("").policy;
    assert_eq!((usual.on_unknown, usual.hold_for), (OnUnknown::Hold, None));
    assert_eq!(usual.store_timeout, Duration::from_secs(2));
    // The setting is for those routes that hold.
    let config = read(
        "gateway.upstream = \"http://a\"\n[defaults]\nhold_for = \"7d\"\n\
         [[route]]\nmatch = \"/a\"\nscope = \"s\"\non_unknown = \"fail\"\n\
         [[route]]\nmatch = \"/b\"\nscope = \"s\"",
    );
    let held: Vec<Option<Duration>> = config
        .routes
        .iter()
        .flat_map(|route| &route.guard)
        .map(|guard| guard.policy.hold_for)
        .collect();
    assert_eq!(held, [None, Some(Duration::from_secs(7 * 86_400))]);
}

#[test]
fn an_upstream_is_changed_or_replaced_and_equal_ones_are_one() {
    let config = read(
        "[gateway]\nupstream = { url = \"https://a/base/\", protocol = \"http2\", ca = \"ca.pem\", \
         host = \"upstream\", connect_timeout = \"1s\", timeout = \"2s\", pool_idle = \"0s\", \
         pool_max = 3 }\n\
         [[route]]\nmatch = \"/a\"\nscope = \"s\"\nupstream_timeout = \"5s\"\n\
         [[route]]\nmatch = \"/b\"\nscope = \"s\"\nupstream = { timeout = \"5s\" }\n\
         [[route]]\nmatch = \"/c\"\nguard = false\nupstream = \"http://b\"\n\
         [[route]]\nmatch = \"/d\"\nscope = \"s\"",
    );
    let gateway = Upstream {
        tls: true,
        authority: "a".parse().unwrap(),
        prefix: "/base".into(),
        protocol: Protocol::Http2,
        ca: Some("conf/ca.pem".into()),
        sends_upstream_host: true,
        connect_timeout: Duration::from_secs(1),
        timeout: Duration::from_secs(2),
        pool_idle: Duration::ZERO,
        pool_max: 3,
    };
    let upstream = config.gateway.upstream.as_ref().unwrap();
    assert_eq!(**upstream, gateway);
    let [a, b, c, d] = &config.routes[..] else { panic!("{:?}", config.routes) };
    assert_eq!(*a.upstream, Upstream { timeout: Duration::from_secs(5), ..gateway });
    assert!(Arc::ptr_eq(&a.upstream, &b.upstream));
    assert_eq!(*c.upstream, Upstream::at("http://b").unwrap());
    assert!(c.guard.is_none());
    assert!(Arc::ptr_eq(&d.upstream, upstream));
}

#[test]
fn paths_of_a_file_begin_in_its_folder_and_those_of_the_command_line_do_not() {
    let source = "store = \"sqlite:a.db\"\nsecret_file = \"/etc/secret\"\n\
                  gateway.upstream = \"http://a\"\n\
                  gateway.tls = { certificate = \"c.pem\", key = \"k.pem\" }\napi.audit = \"log\"";
    let config = read(source);
    assert_eq!(config.store, StoreUrl::Sqlite("conf/a.db".into()));
    assert_eq!(config.secret, SecretSource::File("/etc/secret".into()));
    let tls = Tls {
        certificate: "conf/c.pem".into(),
        key: "conf/k.pem".into(),
        client_ca: None,
        client_auth: crate::ClientAuth::Optional,
    };
    assert_eq!(config.gateway.tls, Some(tls));
    assert_eq!(config.api.unwrap().audit, PathBuf::from("conf/log"));
    let typed = Overrides { store: Some("sqlite:b.db".into()), ..Overrides::default() };
    assert_eq!(read_with(source, &typed).store, StoreUrl::Sqlite("b.db".into()));
}

#[test]
fn the_command_line_overrides_the_file() {
    let typed = Overrides {
        upstream: Some("http://b:2".into()),
        caller: vec!["header=X-Merchant".into(), "cookie=sid".into()],
        listen: Some("127.0.0.1:1, [::1]:1".into()),
        api: Some("off".into()),
        store: Some("postgres://semel@db/semel".into()),
        cache: Some("redis://cache".into()),
    };
    let config = read_with(
        "store = \"sqlite:a.db\"\nsecret_env = \"SEMEL_SECRET\"\n\
         [gateway]\nlisten = \"127.0.0.1:3\"\n\
         upstream = { url = \"http://a:1\", timeout = \"7s\" }\n\
         [defaults]\ncaller = \"anonymous\"\n\
         [[route]]\nmatch = \"/a\"\nscope = \"s\"\n\
         [[route]]\nmatch = \"/b\"\nscope = \"s\"\ncaller = \"authorization\"",
        &typed,
    );
    let StoreUrl::Postgres(server) = &config.store else { panic!("{:?}", config.store) };
    assert_eq!(server.to_string(), "postgres://semel@db/semel");
    assert_eq!(config.cache.unwrap().0.to_string(), "redis://cache");
    assert!(config.api.is_none());
    assert_eq!(config.gateway.listen.len(), 2);
    let upstream = config.gateway.upstream.as_ref().unwrap();
    assert_eq!(upstream.url(), "http://b:2");
    assert_eq!(upstream.timeout, Duration::from_secs(7), "how, not where");
    let callers: Vec<_> = config.routes.iter().flat_map(|route| &route.guard).collect();
    let merchant = CallerRule::Header(HeaderName::from_static("x-merchant"));
    assert_eq!(callers[0].callers, [merchant, CallerRule::Cookie("sid".into())]);
    assert_eq!(callers[1].callers, [CallerRule::Authorization], "a route takes precedence");
}

#[test]
fn errors_on_the_command_line_name_the_flag() {
    let typed = Overrides {
        upstream: Some("user:hunter2@a".into()),
        caller: vec!["authorisation".into(), "header=Cookie".into()],
        listen: Some("8080".into()),
        api: Some("of".into()),
        store: Some("sqlite".into()),
        cache: Some("cache".into()),
    };
    let error = Config::load(None, &typed, &env).unwrap_err().to_string();
    assert_eq!(
        error,
        "--upstream: a URL with a password would be logged; leave it out\n\
         --listen: this is not an IP address with a port; did you mean `127.0.0.1:8080`?\n\
         --api: this is not an IP address with a port\n\
         --store: a store is `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `memory:`, or \
         `env:NAME` for the variable that holds one of these\n\
         --cache: a cache is `redis://HOST`, `rediss://HOST`, or `env:NAME` for the variable that \
         holds one of these\n\
         --caller: this must be `authorization`, `anonymous`, `host`, `header=NAME`, \
         `credential=NAME` or `cookie=NAME`; did you mean `authorization`?\n\
         --caller: the header cookie is a secret and would be stored in clear; use \
         `credential` or `cookie`, which hash it\n\
         run `semel config default` for every setting with its default"
    );
}

#[test]
fn secrets_are_read_and_never_printed() {
    let config = read(
        "secret_env = \"SEMEL_SECRET\"\ngateway.upstream = \"http://a\"\n\
         api.operator_token_env = \"SEMEL_OPERATOR_TOKEN\"",
    );
    assert_eq!(config.secret_value.as_ref().unwrap().0, "a secret of the callers");
    let token = &config.api.as_ref().unwrap().operator_token;
    assert_eq!(token.as_ref().unwrap().0, "a-token-of-an-operator");
    for text in [format!("{config:?}"), config.to_toml()] {
        assert!(!text.contains("a secret of") && !text.contains("a-token-of"), "{text}");
        assert!(text.contains("SEMEL_SECRET") && text.contains("SEMEL_OPERATOR_TOKEN"), "{text}");
    }
}

#[test]
fn a_missing_file_is_reported_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.toml");
    let error = Config::load(Some(&path), &Overrides::default(), &env).unwrap_err().to_string();
    let expected = format!("{}: the file cannot be read: ", path.display());
    assert!(error.starts_with(&expected), "{error}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(from in 0..2000_usize, length in 0..40_usize, text in "\\PC{0,8}") {
        let typed = Overrides::default();
        let mut source = include_str!("../../tests/files/good/full.toml").to_owned();
        let end = source.len();
        source.replace_range(from.min(end)..from.saturating_add(length).min(end), &text);
        if let Err(error) = Config::read(Some(Path::new("a")), &source, &typed, &env) {
            let error = error.to_string();
            proptest::prop_assert!(error.ends_with("every setting with its default"), "{error}");
        }
    }
}

/// The guard of a route with these lines, under these defaults.
fn signed(defaults: &str, lines: &str) -> Guard {
    let source = format!(
        "gateway.upstream = \"http://a\"\n[defaults]\n{defaults}\n[[route]]\n\
         match = \"POST /hook\"\nscope = \"hook\"\n{lines}"
    );
    read(&source).routes.remove(0).guard.unwrap()
}

#[test]
fn a_signature_sets_the_defaults_of_an_inbox() {
    let week = Duration::from_secs(7 * 86_400);
    for (scheme, key) in [
        ("standard-webhooks", header("webhook-id")),
        ("svix", header("svix-id")),
        ("stripe", KeyLocation::Json(vec!["/id".parse().unwrap()])),
        ("github", header("x-github-delivery")),
    ] {
        let line = format!("signature = {{ scheme = \"{scheme}\", secret_env = \"HOOK_SECRET\" }}");
        // What a route itself says is nearer than the defaults.
        let other = "key = \"X-Key\"\nkeep = \"all\"\nretention = \"1h\"\non_unknown = \"hold\"";
        for defaults in ["", other] {
            let guard = signed(defaults, &line);
            assert_eq!((&guard.key[..], guard.required), (&[key.clone()][..], Required::Yes));
            assert_eq!(guard.callers, [CallerRule::Anonymous], "{scheme}");
            assert_eq!((guard.policy.retention, guard.policy.keep), (week, Keep::Success));
            assert_eq!(guard.policy.on_unknown, OnUnknown::Rerun, "{scheme}");
            // GitHub does not sign the id of a delivery.
            let signed = if scheme == "github" { BodyRule::Selected } else { BodyRule::Ignore };
            let fingerprint = guard.fingerprint.unwrap();
            assert_eq!((fingerprint.body, fingerprint.query), (signed, QueryRule::Ignore));
            let tolerance = (scheme != "github").then_some(Duration::from_secs(300));
            assert_eq!(guard.signature.unwrap().tolerance, tolerance);
        }
    }
}

#[test]
fn a_route_can_override_the_defaults_of_its_signature() {
    let guard = signed(
        "",
        "signature = { scheme = \"stripe\", secret_env = \"HOOK_SECRET\", tolerance = \"1m\" }\n\
         key = { json = \"/event\", required = false }\ncaller = { header = \"X-Tenant\" }\n\
         retention = \"1d\"\nkeep = \"deterministic\"\non_unknown = \"hold\"\n\
         fingerprint = { query = \"ignore\" }",
    );
    assert_eq!(guard.key, [KeyLocation::Json(vec!["/event".parse().unwrap()])]);
    assert_eq!(guard.required, Required::No);
    assert_eq!(guard.callers, [CallerRule::Header(HeaderName::from_static("x-tenant"))]);
    assert_eq!(guard.policy.retention, Duration::from_secs(86_400));
    assert_eq!(guard.policy.on_unknown, OnUnknown::Hold);
    assert_eq!(guard.policy.keep, Keep::Deterministic, "a signed key in the body is proof enough");
    assert_eq!(guard.fingerprint.unwrap().body, BodyRule::Selected);
    assert_eq!(guard.signature.unwrap().tolerance, Some(Duration::from_secs(60)));
}

#[test]
fn other_defaults_override_those_of_a_signature_in_the_defaults() {
    let line = "signature = { scheme = \"stripe\", secret_env = \"HOOK_SECRET\" }";
    let guard = signed(&format!("{line}\nretention = \"1h\"\nkey = \"X-Event\""), "");
    assert_eq!((guard.key, guard.required), (vec![header("x-event")], Required::Yes));
    assert_eq!(guard.policy.retention, Duration::from_secs(3600));
    assert_eq!(guard.callers, [CallerRule::Anonymous]);
}

#[test]
fn a_route_with_a_signature_guards_whatever_the_defaults_say() {
    let line = "signature = { scheme = \"stripe\", secret_env = \"HOOK_SECRET\" }";
    assert_eq!(signed("mode = \"observe\"", line).mode, Mode::Guard);
    assert_eq!(signed(&format!("mode = \"observe\"\n{line}"), "").mode, Mode::Guard);
    assert_eq!(signed("mode = \"observe\"", "").mode, Mode::Observe);
}

#[test]
fn a_route_with_a_signature_takes_all_methods_unless_it_names_some() {
    let line = "signature = { scheme = \"stripe\", secret_env = \"HOOK_SECRET\" }";
    let methods = |matches: &str, line: &str| {
        let route = format!("[[route]]\nmatch = \"{matches}\"\nscope = \"hook\"\n{line}");
        let mut config = read(&format!("gateway.upstream = \"http://a\"\n{route}"));
        config.routes.remove(0).matches.methods
    };
    assert!(methods("/hook", line).is_empty());
    assert_eq!(methods("POST /hook", line), [Method::POST]);
    assert_eq!(methods("/hook", ""), [Method::POST, Method::PATCH]);
}

#[test]
fn the_body_is_compared_if_the_key_may_be_unsigned() {
    let hmac = "signature = { scheme = \"hmac\", header = \"X-S\", secret_env = \"HOOK_SECRET\" }";
    let body = |key: &str| signed("", &format!("{key}\n{hmac}")).fingerprint.unwrap().body;
    assert_eq!(body("key = \"X-Event-Id\""), BodyRule::Selected);
    assert_eq!(body("key = { json = \"/id\" }"), BodyRule::Ignore);
    assert_eq!(body("key = { any = [{ json = \"/id\" }, \"X-Id\"] }"), BodyRule::Selected);
}

#[test]
fn a_scheme_of_its_own_is_described() {
    let guard = signed(
        "",
        "key = { cloudevents = true }\n[route.signature]\nscheme = \"hmac\"\n\
         secret_env = [\"HOOK_SECRET\", \"NEXT_HOOK_SECRET\"]\nsecret_file = \"hook.secret\"\n\
         header = \"X-Signature\"\nprefix = \"v0=\"\ntimestamp = \"X-Time\"\n\
         signed = \"v0:{timestamp}:{body}\"",
    );
    assert_eq!((guard.key, guard.fingerprint), (vec![KeyLocation::CloudEvent], None));
    let rule = guard.signature.unwrap();
    let SignatureScheme::Hmac(HmacRule { header, prefix, timestamp, .. }) = &rule.scheme else {
        panic!("{rule:?}")
    };
    assert_eq!((header.as_str(), prefix.as_str()), ("x-signature", "v0="));
    assert_eq!(timestamp.as_ref().unwrap().as_str(), "x-time");
    let [one, two, WebhookSecretSource::File(path)] = &rule.secrets[..] else { panic!("{rule:?}") };
    assert!(
        matches!((one, two), (WebhookSecretSource::Env(one, _), WebhookSecretSource::Env(two, _))
        if one == "HOOK_SECRET" && two == "NEXT_HOOK_SECRET")
    );
    assert_eq!(path, Path::new("conf/hook.secret"));
    assert!(!format!("{rule:?}").contains("sender"), "a secret is not printed");
}
