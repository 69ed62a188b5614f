//! Verifies the published examples of each scheme, and refuses invalid signatures.

use http::HeaderName;

use super::*;

/// One delivery as it was sent: headers, body, and when.
struct Delivery {
    headers: Vec<(&'static str, String)>,
    body: &'static str,
    at: u64,
}

impl Delivery {
    fn new(headers: &[(&'static str, &str)], body: &'static str, at: u64) -> Self {
        let owned = |(name, value): &(&'static str, &str)| (*name, (*value).to_owned());
        Self { headers: headers.iter().map(owned).collect(), body, at }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    /// The same with another value in this header.
    fn with(&self, name: &str, value: &str) -> Self {
        let mut headers = self.headers.clone();
        headers.iter_mut().filter(|(it, _)| *it == name).for_each(|it| it.1 = value.to_owned());
        Self { headers, ..*self }
    }

    fn without(&self, name: &str) -> Self {
        let headers = self.headers.iter().filter(|(it, _)| *it != name).cloned().collect();
        Self { headers, ..*self }
    }

    /// What comes of it so many seconds after it was sent.
    fn verified_after(&self, signature: &Signature, seconds: i64) -> Result<(), String> {
        let now = Duration::from_secs(self.at.saturating_add_signed(seconds));
        let signature = signature.clone().clock(move || SystemTime::UNIX_EPOCH + now);
        let verified = signature.verify(&self.headers(), self.body.as_bytes());
        verified.map_err(|invalid| invalid.to_string())
    }

    fn verified(&self, signature: &Signature) -> Result<(), String> {
        self.verified_after(signature, 0)
    }

    #[track_caller]
    fn is_refused(&self, signature: &Signature, detail: &str) {
        let said = self.verified(signature).unwrap_err();
        assert!(said.contains(detail), "{said}");
    }
}

const WEBHOOK_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_WEBHOOK_SECRET: &str = "whsec_plJ3nmyCDGBKInavdOK15jsl";

/// The example that the libraries of Standard Webhooks test with.
fn standard() -> Delivery {
    let headers = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ];
    Delivery::new(&headers, r#"{"test": 2432232314}"#, 1_614_265_330)
}

/// The example of Svix's documentation.
fn svix() -> Delivery {
    let headers = [
        ("svix-id", "msg_loFOjxBNrRLzqYUf"),
        ("svix-timestamp", "1731705121"),
        ("svix-signature", "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="),
    ];
    Delivery::new(&headers, r#"{"event_type":"ping","data":{"success":true}}"#, 1_731_705_121)
}

const STRIPE_SECRET: &str = "whsec_test_secret";
const STRIPE_V1: &str = "c2f890decbc5ede7c5060bb9a6d31e0626a4342bacb9aeae2adb1bcea72f9812";

/// Secret and event of Stripe's libraries, signed by another program as its documentation says.
fn stripe() -> Delivery {
    let header = format!("t=1492774577,v1={STRIPE_V1},v0=6ffbb59b2300aae63f272406069a9788");
    let body = "{\n  \"id\": \"evt_test_webhook\",\n  \"object\": \"event\"\n}";
    Delivery::new(&[("stripe-signature", &header)], body, 1_492_774_577)
}

const GITHUB_SECRET: &str = "It's a Secret to Everybody";

/// The example of GitHub's documentation.
fn github() -> Delivery {
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    Delivery::new(&[("x-hub-signature-256", signature)], "Hello, World!", 1_700_000_000)
}

const SLACK_SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

/// The example of Slack's documentation.
fn slack() -> (Delivery, HmacScheme) {
    let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let headers = [("x-slack-signature", signature), ("x-slack-request-timestamp", "1531420618")];
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow\
                &channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner\
                &command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com\
                %2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN\
                &trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let scheme = HmacScheme::new(HeaderName::from_static("x-slack-signature"))
        .prefix("v0=")
        .timestamp(HeaderName::from_static("x-slack-request-timestamp"))
        .signed("v0:{timestamp}:{body}");
    (Delivery::new(&headers, body, 1_531_420_618), scheme)
}

/// Each example, what makes its signature of secrets, its secret and another.
type Make = Box<dyn Fn(&[&str]) -> Signature>;

fn examples() -> Vec<(Delivery, Make, &'static str, &'static str)> {
    let (slack, scheme) = slack();
    let slack_by: Make = Box::new(move |all| Signature::hmac(scheme.clone(), all).unwrap());
    let webhook: Make = Box::new(|all| Signature::standard_webhooks(all).unwrap());
    let svix_by: Make = Box::new(|all| Signature::svix(all).unwrap());
    let stripe_by: Make = Box::new(|all| Signature::stripe(all).unwrap());
    let github_by: Make = Box::new(|all| Signature::github(all).unwrap());
    let other = "0123456789abcdef0123456789abcdef";
    vec![
        (standard(), webhook, WEBHOOK_SECRET, OTHER_WEBHOOK_SECRET),
        (svix(), svix_by, OTHER_WEBHOOK_SECRET, WEBHOOK_SECRET),
        (stripe(), stripe_by, STRIPE_SECRET, other),
        (github(), github_by, GITHUB_SECRET, other),
        (slack, slack_by, SLACK_SECRET, other),
    ]
}

#[test]
fn the_examples_of_the_publishers_verify() {
    for (delivery, make, secret, _) in examples() {
        delivery.verified(&make(&[secret])).unwrap();
    }
}

#[test]
fn a_body_that_was_changed_does_not_verify() {
    for (delivery, make, secret, _) in examples() {
        let changed = Delivery { body: "{}", ..delivery };
        changed.is_refused(&make(&[secret]), "fits the body and a secret of this route");
    }
}

#[test]
fn while_a_secret_is_replaced_the_old_and_the_new_one_count() {
    for (delivery, make, secret, other) in examples() {
        for both in [[secret, other], [other, secret]] {
            delivery.verified(&make(&both)).unwrap();
        }
        delivery.is_refused(&make(&[other]), "fits the body and a secret of this route");
    }
}

#[test]
fn a_time_too_far_from_now_is_refused_in_both_directions() {
    for (delivery, make, secret, _) in examples() {
        let signature = make(&[secret]);
        for seconds in [-300, 300] {
            delivery.verified_after(&signature, seconds).unwrap();
        }
        if delivery.headers.iter().any(|(name, _)| *name == "x-hub-signature-256") {
            // It has no time.
            delivery.verified_after(&signature, 1_000_000).unwrap();
            continue;
        }
        let old = delivery.verified_after(&signature, 301).unwrap_err();
        assert!(old.contains("the signature is 301 seconds old, and at most 300"), "{old}");
        let early = delivery.verified_after(&signature, -301).unwrap_err();
        assert!(early.contains("301 seconds from now"), "{early}");
        let patient = signature.tolerance(Duration::from_secs(3600));
        delivery.verified_after(&patient, 3600).unwrap();
        assert!(delivery.verified_after(&patient, 3601).is_err());
    }
}

#[test]
fn the_time_is_signed_where_there_is_one() {
    let signature = Signature::standard_webhooks([WEBHOOK_SECRET]).unwrap();
    let later = standard().with("webhook-timestamp", "1614265331");
    later.is_refused(&signature, "fits the body");
    let other_id = standard().with("webhook-id", "msg_other");
    other_id.is_refused(&signature, "fits the body");
    let stripe_by = Signature::stripe([STRIPE_SECRET]).unwrap();
    let moved = format!("t=1492774578,v1={STRIPE_V1}");
    stripe().with("stripe-signature", &moved).is_refused(&stripe_by, "fits the body");
    let (delivery, scheme) = slack();
    let slack_by = Signature::hmac(scheme, [SLACK_SECRET]).unwrap();
    let later = delivery.with("x-slack-request-timestamp", "1531420619");
    later.is_refused(&slack_by, "fits the body");
}

#[test]
fn each_header_must_be_there_once() {
    for (delivery, make, secret, _) in examples() {
        let signature = make(&[secret]);
        for (name, value) in &delivery.headers {
            let missing = format!("the header {name} is missing");
            delivery.without(name).is_refused(&signature, &missing);
            let mut twice = Delivery { headers: delivery.headers.clone(), ..delivery };
            twice.headers.push((*name, value.clone()));
            twice.is_refused(&signature, &format!("the header {name} was sent more than once"));
        }
    }
}

#[test]
fn unreadable_input_is_malformed() {
    for (delivery, make, secret, _) in examples() {
        let signature = make(&[secret]);
        for (name, _) in &delivery.headers {
            if *name == "webhook-id" || *name == "svix-id" {
                let dotted = delivery.with(name, "msg.1");
                dotted.is_refused(&signature, &format!("the header {name} is malformed"));
                continue;
            }
            for garbage in ["", "x", "-1", "+1", "1e9", "99999999999999999999999", "v1=,t=", "=,,"]
            {
                let malformed = format!("the header {name} is malformed");
                delivery.with(name, garbage).is_refused(&signature, &malformed);
            }
        }
    }
}

#[test]
fn of_several_signatures_one_must_fit_and_others_are_passed_over() {
    let webhook = Signature::standard_webhooks([WEBHOOK_SECRET]).unwrap();
    let right = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let line = |text: String| standard().with("webhook-signature", &text);
    for text in [
        format!("v1,AAAA {right}"),
        format!("v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJa {right}"),
        format!("v1,??? v2,x {right} v1,AAAA"),
    ] {
        line(text).verified(&webhook).unwrap();
    }
    line(right.replace("v1,", "v2,")).is_refused(&webhook, "is malformed; send v1,");
    let many = format!("{} {right}", ["v1,AAAA"; SIGNATURES].join(" "));
    line(many).is_refused(&webhook, "fits the body");

    let stripe_by = Signature::stripe([STRIPE_SECRET]).unwrap();
    let line = |text: String| stripe().with("stripe-signature", &text);
    line(format!("t=1492774577,v1=00,v1={STRIPE_V1}")).verified(&stripe_by).unwrap();
    line(format!("v1={STRIPE_V1}, t=1492774577")).verified(&stripe_by).unwrap();
    line(format!("t=1492774577,v0={STRIPE_V1}")).is_refused(&stripe_by, "is malformed; send t=");
    line(format!("t=1,t=1492774577,v1={STRIPE_V1}")).is_refused(&stripe_by, "is malformed");
}

const SIGNATURES: usize = presented::SIGNATURES_MAX;

#[test]
fn other_senders_sign_with_another_hash_or_write_it_as_base64() {
    let name = || HeaderName::from_static("x-signature");
    let base64 = HmacScheme::new(name()).encoding(Encoding::Base64);
    let signature = Signature::hmac(base64, ["hush-hush-hush-hush"]).unwrap();
    let sent = |value: &str| Delivery::new(&[("x-signature", value)], r#"{"id":1}"#, 0);
    sent(BASE64_OF_IT).verified(&signature).unwrap();
    sent("AAAA").is_refused(&signature, "fits the body");
    sent("!").is_refused(&signature, "malformed; send the signature as base64");
    let long = HmacScheme::new(name()).algorithm(HmacAlgorithm::Sha512);
    let signature = Signature::hmac(long, ["sk_test_0123456789abcdef"]).unwrap();
    let body = r#"{"event":"charge.success"}"#;
    let sent = |value: &str| Delivery::new(&[("x-signature", value)], body, 0);
    sent(SHA512_OF_IT).verified(&signature).unwrap();
    sent(&SHA512_OF_IT.to_uppercase()).verified(&signature).unwrap();
    sent(&SHA512_OF_IT[..64]).is_refused(&signature, "fits the body");
}

const BASE64_OF_IT: &str = "gqb/mZI8OCf3/j3Ur1xqzHGfmqHHhNnpOakaVHyc9dw=";
const SHA512_OF_IT: &str = "02e12cc3edaf22f22f19a1e4503974ef7c315afe63f38ceb635218c57882a22e\
                            0c0ca9077685690aea9b2d06bd3dcd1979a8ab173baea04587a9f1866c87e46b";

#[test]
fn a_scheme_must_be_consistent() {
    let scheme = || HmacScheme::new(HeaderName::from_static("x-signature"));
    let time = || HeaderName::from_static("x-time");
    let error = |scheme| Signature::hmac(scheme, [GITHUB_SECRET]).map(drop).unwrap_err();
    assert_eq!(error(scheme().signed("none")), SignatureError::TemplateBodyCount);
    assert_eq!(error(scheme().signed("{body}{body}")), SignatureError::TemplateBodyCount);
    assert_eq!(error(scheme().signed("{id}.{body}")), SignatureError::UnknownPlaceholder);
    assert_eq!(error(scheme().timestamp(time())), SignatureError::TimestampMismatch);
    let unnamed = scheme().signed("{timestamp}.{body}");
    assert_eq!(error(unnamed), SignatureError::TimestampMismatch);
}

#[test]
fn an_invalid_secret_is_refused_and_never_printed() {
    let error = |secrets: &[&str]| Signature::standard_webhooks(secrets).map(drop).unwrap_err();
    assert_eq!(error(&[]), SignatureError::NoSecret);
    assert_eq!(error(&["whsec_hunter2!"]), SignatureError::NotBase64);
    assert_eq!(error(&["whsec_aHVudGVyMg=="]), SignatureError::ShortSecret { length: 7 });
    assert_eq!(error(&[WEBHOOK_SECRET, "whpk_aHVudGVyMg=="]), SignatureError::Asymmetric);
    let short = Signature::github(["hunter2"]).map(drop).unwrap_err();
    assert!(!short.to_string().contains("hunter2"));
    assert!(Signature::standard_webhooks(["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).is_ok());
    for (_, make, secret, other) in examples() {
        let shown = format!("{:?}", make(&[secret, other]));
        assert!(!shown.contains(secret) && !shown.contains(other), "{shown}");
        assert!(shown.contains("secrets: 2"), "{shown}");
    }
}

#[test]
fn no_refusal_says_what_would_be_right() {
    let signature = Signature::github([GITHUB_SECRET]).unwrap();
    let forged = github().with("x-hub-signature-256", &format!("sha256={}", "0".repeat(64)));
    assert!(!forged.verified(&signature).unwrap_err().contains("757107ea"));
}
