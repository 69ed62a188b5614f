//! Detects credentials and names by the names of headers and query parameters.
//!
//! The list of names cannot be complete. So an unknown name with a typical ending (`…token`,
//! `…key`), or with a word such as `user` or `tenant`, counts too: refusing an anonymous request
//! costs its operator one setting, and accepting another as anonymous gives one user the answer of
//! another.

use http::{HeaderName, request::Parts};

/// What a header or a query parameter reveals about the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CredentialKind {
    /// It proves the caller, so it must not be stored in plain text.
    Secret,
    /// It names the caller.
    Name,
}

/// Where a request carries a credential or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CredentialLocation<'a> {
    Header(&'a HeaderName),
    /// A query parameter, as it is written there.
    Query(&'a str),
}

/// Names that most requests carry and that reveal nothing. To look for words in each of them costs
/// more than the rest of a request's checks.
const USUAL: [&str; 32] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "expect",
    "host",
    "idempotency-key",
    "origin",
    "pragma",
    "priority",
    "referer",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "te",
    "traceparent",
    "transfer-encoding",
    "user-agent",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

/// What a header of this lower-case name reveals about the caller, if anything.
pub(super) fn header(name: &str) -> Option<CredentialKind> {
    if USUAL.contains(&name) { None } else { by_words(name) }
}

fn by_words(name: &str) -> Option<CredentialKind> {
    match name {
        // Browsers, a test client and a platform set the first four by themselves. Headers of a
        // webhook's signature (such as `stripe-signature`, which is covered by its words) concern
        // the message, and a webhook sender has no other caller.
        "postman-token"
        | "sec-fetch-user"
        | "sec-websocket-key"
        | "x-appengine-user-ip"
        | "paypal-auth-algo"
        | "paypal-auth-version"
        | "paypal-cert-url" => None,
        "sid" | "signature" | "signature-input" | "x-amzn-oidc-data" | "x-sid" => {
            Some(CredentialKind::Secret)
        }
        "remote-groups" | "remote-name" | "x-forwarded-groups" => Some(CredentialKind::Name),
        name => {
            kind_of_name(name).or_else(|| is_set_by_proxy(name).then_some(CredentialKind::Name))
        }
    }
}

/// The first header, or else the first query parameter, that reveals the caller. `named` are the
/// headers that the other rules of the route read; `read` are those that the route reads for its
/// key or its fingerprint.
pub(super) fn find<'a>(
    parts: &'a Parts,
    named: &[HeaderName],
    read: &[HeaderName],
) -> Option<CredentialLocation<'a>> {
    let is_credential = |name: &&HeaderName| {
        named.contains(name) || (header(name.as_str()).is_some() && !read.contains(name))
    };
    let in_header = parts.headers.keys().find(is_credential).map(CredentialLocation::Header);
    in_header.or_else(|| parts.uri.query().and_then(in_query).map(CredentialLocation::Query))
}

/// Some servers separate query parameters by `;`.
fn in_query(query: &str) -> Option<&str> {
    let names = query.split(['&', ';']).filter_map(|pair| pair.split('=').next());
    names.into_iter().find(|name| {
        let name = dashed(&decoded(name));
        let signed = || name.split('-').any(|part| matches!(part, "sig" | "signature" | "hmac"));
        let is_login = || matches!(&*name, "code" | "sid" | "ticket");
        kind_of_name(&name).is_some() || (!is_of_key(&name) && (signed() || is_login()))
    })
}

/// What the words of a name reveal.
fn kind_of_name(name: &str) -> Option<CredentialKind> {
    if is_of_key(name) {
        return None;
    }
    // `User-Agent`, `X-Amz-User-Agent`: a program, not its user.
    let (before, after) = name.split_once("user-agent").unwrap_or((name, ""));
    let words = || words(before).chain(words(after)).filter(|word| !is_ordinary(word));
    if words().any(is_secret) || name.ends_with("auth") {
        Some(CredentialKind::Secret)
    } else if words().any(is_name) || name.ends_with("client-id") {
        Some(CredentialKind::Name)
    } else {
        None
    }
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(['-', '_', '.'])
}

/// An idempotency key is called a key or a token, and proves nothing.
fn is_of_key(name: &str) -> bool {
    words(name).any(|word| word.starts_with("idempoten"))
}

/// Ordinary words and program names that would be misread.
fn is_ordinary(word: &str) -> bool {
    const WORDS: [&str; 8] =
        ["donkey", "hockey", "monkey", "obsession", "possession", "trouser", "turkey", "useragent"];
    WORDS.contains(&word.strip_suffix('s').unwrap_or(word))
}

/// Whether a word is, or ends in, a word for a secret. Words are often run together:
/// `trackertoken`.
fn is_secret(word: &str) -> bool {
    const ENDS: [&str; 9] =
        ["authorization", "jwt", "key", "keyid", "passwd", "password", "pwd", "secret", "token"];
    const WITHIN: [&str; 4] = ["cookie", "credential", "session", "tokenid"];
    const BEGINS: [&str; 3] = ["jwt", "saml", "sess"];

    let one = word.strip_suffix('s').unwrap_or(word);
    ENDS.iter().any(|end| one.ends_with(end))
        || WITHIN.iter().any(|within| word.contains(within))
        || BEGINS.iter().any(|begin| word.starts_with(begin))
        || word.ends_with("sessid")
        || matches!(word, "assertion" | "bearer" | "dpop" | "pass" | "passcode" | "passphrase")
}

/// Whether a word names an identity.
fn is_name(word: &str) -> bool {
    const WITHIN: [&str; 7] =
        ["account", "clientcert", "consumer", "customer", "merchant", "tenant", "user"];

    WITHIN.iter().any(|within| word.contains(within))
        || word.starts_with("authent")
        || word.ends_with("clientid")
        || matches!(
            word,
            "auth"
                | "cert"
                | "certificate"
                | "dn"
                | "identity"
                | "impersonate"
                | "login"
                | "oidc"
                | "principal"
        )
}

/// Whether authenticating proxies use such a header for the caller. In a query these words are
/// ordinary.
fn is_set_by_proxy(name: &str) -> bool {
    let is_tls = |word| matches!(word, "mtls" | "ssl" | "tls");
    let of_certificate = words(name).zip(words(name).skip(1));
    words(name).any(|word| matches!(word, "claim" | "claims"))
        || words(name).last() == Some("email")
        || of_certificate.into_iter().any(|(tls, client)| is_tls(tls) && client == "client")
}

/// A name in lower case, with `-` between its words: `apiKey` and `api_key` are `api-key`.
fn dashed(name: &str) -> String {
    let mut dashed = String::with_capacity(name.len());
    let mut after_lower = false;
    for character in name.chars() {
        if !character.is_ascii_alphanumeric() || (after_lower && character.is_ascii_uppercase()) {
            dashed.push('-');
        }
        if character.is_ascii_alphanumeric() {
            dashed.push(character.to_ascii_lowercase());
        }
        after_lower = character.is_ascii_lowercase();
    }
    dashed
}

/// Decodes percent-encoding; an invalid escape stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => str::from_utf8(&[*high, *low])
                .ok()
                .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn found(uri: &str, header: Option<&'static str>) -> Option<String> {
        let mut request = Request::builder().uri(uri).header("accept", "*/*");
        if let Some(name) = header {
            request = request.header(name, "x");
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let named = [HeaderName::from_static("x-merchant-id")];
        let keys = [HeaderName::from_static("x-order-key")];
        find(&parts, &named, &keys).map(|found| match found {
            CredentialLocation::Header(name) => name.as_str().to_owned(),
            CredentialLocation::Query(name) => name.to_owned(),
        })
    }

    #[test]
    fn usual_names_reveal_nothing_by_their_words_either() {
        for name in USUAL {
            assert_eq!(by_words(name), None, "{name}");
        }
    }

    #[test]
    fn a_secret_is_recognised_by_the_parts_of_its_name() {
        for name in [
            "accesskey",
            "api-key",
            "apikey",
            "authorization",
            "cf-access-jwt-assertion",
            "cookie",
            "dpop",
            "ocp-apim-subscription-key",
            "private-token",
            "proxy-authorization",
            "signature",
            "signature-input",
            "x-access-token",
            "x-acme-token",
            "x-amz-security-token",
            "x-amzn-oidc-accesstoken",
            "x-amzn-oidc-data",
            "x-api-key",
            "x-api-token",
            "x-apikey",
            "x-apitoken",
            "x-appkey",
            "x-auth",
            "x-auth-key",
            "x-auth-request-access-token",
            "x-auth-token",
            "x-authorization",
            "x-csrf-token",
            "x-csrftoken",
            "x-functions-key",
            "x-goog-api-key",
            "x-goog-iap-jwt-assertion",
            "x-id-token",
            "x-session-id",
            "x-session-token",
            "x-sessiontoken",
            "x-trackertoken",
            "x-usertoken",
            "x-webhook-secret",
            "x-xsrf-token",
            "x_api_key",
        ] {
            assert_eq!(header(name), Some(CredentialKind::Secret), "{name}");
            assert_eq!(found("/", Some(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_name_that_a_proxy_sets_is_no_secret_and_not_anonymous_either() {
        for name in [
            "client-cert",
            "iv-user",
            "oam_remote_user",
            "oidc_claim_sub",
            "remote-email",
            "remote-groups",
            "remote-name",
            "remote-user",
            "sm_user",
            "ssl-client-cert",
            "ssl_client_s_dn",
            "stripe-account",
            "tailscale-user-login",
            "x-account",
            "x-amzn-mtls-clientcert",
            "x-amzn-mtls-clientcert-leaf",
            "x-amzn-oidc-identity",
            "x-auth-request-email",
            "x-auth-request-user",
            "x-apigateway-api-userinfo",
            "x-authentik-groups",
            "x-authentik-username",
            "x-client-cert",
            "x-client-certificate",
            "x-client-dn",
            "x-consumer-custom-id",
            "x-consumer-id",
            "x-consumer-username",
            "x-customer-id",
            "x-endpoint-api-userinfo",
            "x-forwarded-client-cert",
            "x-forwarded-email",
            "x-forwarded-groups",
            "x-forwarded-preferred-username",
            "x-forwarded-tls-client-cert-info",
            "x-forwarded-user",
            "x-goog-authenticated-user-id",
            "x-ms-client-principal",
            "x-ms-client-principal-name",
            "x-ibm-client-id",
            "x-pomerium-claim-email",
            "x-remote-user",
            "x-ssl-client-cert",
            "x-ssl-client-s-dn",
            "x-ssl-client-serial",
            "x-tenant-id",
            "x-user-id",
            "x-vouch-idp-claims-sub",
            "x-vouch-user",
            "x-webauth-user",
        ] {
            assert_eq!(header(name), Some(CredentialKind::Name), "{name}");
            assert_eq!(found("/", Some(name)).as_deref(), Some(name));
        }
    }

    /// Headers that browsers, libraries, proxies and webhook senders set by themselves.
    const HARMLESS: &str = "accept accept-charset accept-datetime accept-encoding accept-language \
         access-control-request-headers access-control-request-method age alt-used \
         amz-sdk-invocation-id amz-sdk-request authority baggage cache-control cdn-loop \
         cf-connecting-ip cf-ipcountry cf-ray cf-visitor client-version connect-time connection \
         content-disposition content-encoding content-language content-length content-md5 \
         content-type date device-memory digest dnt downlink early-data ect expect from \
         grpc-accept-encoding grpc-encoding grpc-timeout host http2-settings hx-current-url \
         hx-request hx-target i-twilio-idempotency-token idempotence-key idempotency-key \
         idempotencykey if-match if-modified-since if-none-match if-range if-unmodified-since \
         keep-alive last-event-id link max-forwards newrelic origin paypal-auth-algo \
         paypal-auth-version paypal-cert-url paypal-request-id paypal-transmission-id \
         paypal-transmission-sig postman-token pragma prefer priority proxy-connection purpose \
         range referer repr-digest rtt save-data sec-ch-prefers-color-scheme sec-ch-ua \
         sec-ch-ua-arch sec-ch-ua-full-version-list sec-ch-ua-mobile sec-ch-ua-model \
         sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-site \
         sec-fetch-storage-access sec-fetch-user sec-gpc sec-purpose sec-websocket-extensions \
         sec-websocket-key sec-websocket-protocol sec-websocket-version sentry-trace \
         service-worker stripe-signature stripe-version svix-id svix-signature svix-timestamp \
         te traceparent tracestate trailer transfer-encoding uber-trace-id upgrade \
         upgrade-insecure-requests user-agent via viewport-width want-digest warning webhook-id \
         webhook-signature webhook-timestamp x-amz-content-sha256 x-amz-date x-amz-user-agent \
         x-amzn-trace-id x-api-version x-appengine-country x-appengine-user-ip x-arr-ssl \
         x-b3-sampled x-b3-spanid x-b3-traceid x-client-version x-cloud-trace-context \
         x-correlation-id x-datadog-trace-id x-envoy-attempt-count x-forwarded x-forwarded-for \
         x-forwarded-host x-forwarded-port x-forwarded-prefix x-forwarded-proto \
         x-forwarded-server x-github-delivery x-github-event x-goog-api-client x-grpc-web \
         x-http-method-override x-hub-signature x-hub-signature-256 x-idempotency-key x-inertia \
         x-line-signature x-monkey x-ms-useragent x-order-key x-original-url x-real-ip \
         x-request-id x-request-start x-requested-with x-shopify-hmac-sha256 \
         x-shopify-shop-domain x-shopify-topic x-signature x-slack-request-timestamp \
         x-slack-signature x-stainless-arch x-stainless-lang x-stainless-retry-count \
         x-stainless-runtime x-stripe-client-telemetry x-stripe-client-user-agent x-timestamp \
         x-twilio-email-event-webhook-signature x-twilio-signature x-ua-compatible x-user-agent \
         x-vercel-id x-wc-webhook-delivery-id";

    #[test]
    fn a_header_that_proves_nothing_is_no_credential() {
        assert!(HARMLESS.split(' ').count() >= 80);
        for name in HARMLESS.split(' ') {
            assert_eq!(found("/", Some(name)), None, "{name}");
        }
    }

    #[test]
    fn a_header_that_the_route_reads_for_its_key_or_fingerprint_is_no_credential() {
        assert_eq!(header("x-order-key"), Some(CredentialKind::Secret));
        assert_eq!(found("/", Some("x-order-key")), None);
    }

    #[test]
    fn a_header_that_another_rule_names_is_a_credential() {
        assert_eq!(found("/", Some("x-merchant-id")).as_deref(), Some("x-merchant-id"));
        assert_eq!(found("/", Some("x-other")), None);
    }

    #[test]
    fn a_credential_in_the_query_is_one_too_however_it_is_written() {
        for name in [
            "access_token",
            "accesskey",
            "API_KEY",
            "api-key",
            "api%5Fkey",
            "api%5fkey",
            "apikey",
            "apiKey",
            "auth",
            "ASP.NET_SessionId",
            "client_id",
            "client_secret",
            "code",
            "jsessionid",
            "%6Bey",
            "key",
            "pass",
            "PHPSESSID",
            "pwd",
            "SAMLResponse",
            "sessionToken",
            "sid",
            "sig",
            "tenant",
            "ticket",
            "token",
            "user%5Bid%5D",
            "userId",
            "X-Amz-Signature",
        ] {
            for separator in ['&', ';'] {
                let uri = format!("/a?b=1{separator}{name}=x");
                assert_eq!(found(&uri, None).as_deref(), Some(name));
            }
        }
        let harmless = ["b=access_token", "idempotency_key=x", "idempotencyKey=x", "monkeys=1"];
        let more = ["page=2", "%=1&%4=2&%zz", "zip_code=1", "passengers=2", "keyword=a", "a;b;;"];
        for query in harmless.into_iter().chain(more).chain(["claim=7", "email=a", "discount=1"]) {
            assert_eq!(found(&format!("/a?{query}"), None), None, "{query}");
        }
    }
}
