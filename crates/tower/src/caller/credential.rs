//! Whether a request carries a credential of any kind, told by the names of what it carries.

use http::{HeaderName, request::Parts};

/// What a header or a member of a query says about who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// It proves it, so it must not be stored in clear.
    Secret,
    /// It names it.
    Name,
}

/// What a header of this name, in lower case, says about who sent a request, if anything.
pub(super) fn header(name: &str) -> Option<Says> {
    if is_harmless(name) {
        return None;
    }
    match name {
        // What belongs to the signature of a webhook (`stripe-signature`…) is none: it is about the
        // message, and whoever sends webhooks has no other caller to be.
        "paypal-auth-algo" | "paypal-auth-version" | "paypal-cert-url" => None,
        "signature" | "signature-input" | "x-amzn-oidc-data" => Some(Says::Secret),
        "remote-user"
        | "x-amzn-oidc-identity"
        | "x-forwarded-email"
        | "x-forwarded-groups"
        | "x-forwarded-preferred-username"
        | "x-forwarded-user"
        | "x-remote-user" => Some(Says::Name),
        name => says(name),
    }
}

/// The name of the header, or of the member of the query, that carries a credential. `named` are
/// the headers that the other rules of the route take for one; `keys` are those where the route
/// finds its key.
pub(super) fn carried<'a>(
    parts: &'a Parts,
    named: &[HeaderName],
    keys: &[HeaderName],
) -> Option<&'a str> {
    let is_credential = |name: &&HeaderName| {
        named.contains(name) || (header(name.as_str()).is_some() && !keys.contains(name))
    };
    let in_header = parts.headers.keys().find(is_credential).map(HeaderName::as_str);
    in_header.or_else(|| parts.uri.query().and_then(in_query))
}

fn in_query(query: &str) -> Option<&str> {
    let names = query.split('&').filter_map(|pair| pair.split('=').next());
    names.into_iter().find(|name| {
        let name = dashed(&decoded(name));
        let signed = || name.split('-').any(|part| matches!(part, "sig" | "signature" | "hmac"));
        !is_harmless(&name) && (says(&name).is_some() || signed())
    })
}

/// The key of an operation, and what browsers say by themselves, are called keys and prove nothing.
fn is_harmless(name: &str) -> bool {
    name.starts_with("sec-") || name.split('-').any(|part| part == "idempotency")
}

/// What the parts of a name say.
fn says(name: &str) -> Option<Says> {
    let parts = || name.split(['-', '_', '.']);
    let is_secret = |part: &str| {
        matches!(
            part,
            "accesstoken"
                | "apikey"
                | "authorization"
                | "authtoken"
                | "cookie"
                | "credential"
                | "credentials"
                | "csrftoken"
                | "dpop"
                | "jwt"
                | "key"
                | "passwd"
                | "password"
                | "secret"
                | "session"
                | "sessionid"
                | "token"
                | "xsrftoken"
        )
    };
    let is_name =
        |part: &str| matches!(part, "auth" | "authenticated" | "cert" | "clientcert" | "principal");
    if parts().any(is_secret) || name.ends_with("auth") {
        Some(Says::Secret)
    } else {
        parts().any(is_name).then_some(Says::Name)
    }
}

/// A name in lower case, with `-` between its parts: `apiKey` and `api_key` are `api-key`.
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

/// Undoes percent-encoding; an escape that is none stays as it is.
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
        carried(&parts, &named, &keys).map(str::to_owned)
    }

    #[test]
    fn a_secret_is_told_by_the_parts_of_its_name() {
        for name in [
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
            "x-webhook-secret",
            "x-xsrf-token",
            "x_api_key",
        ] {
            assert_eq!(header(name), Some(Says::Secret), "{name}");
            assert_eq!(found("/", Some(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_name_that_a_proxy_sets_is_no_secret_and_not_anonymous_either() {
        for name in [
            "client-cert",
            "ssl-client-cert",
            "x-amzn-mtls-clientcert",
            "x-amzn-mtls-clientcert-leaf",
            "x-amzn-oidc-identity",
            "x-auth-request-email",
            "x-auth-request-user",
            "x-client-cert",
            "x-forwarded-client-cert",
            "x-forwarded-email",
            "x-forwarded-user",
            "x-goog-authenticated-user-id",
            "x-ms-client-principal",
            "x-ms-client-principal-name",
            "x-remote-user",
            "x-ssl-client-cert",
        ] {
            assert_eq!(header(name), Some(Says::Name), "{name}");
            assert_eq!(found("/", Some(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_proves_nothing_is_no_credential() {
        for name in [
            "accept",
            "authority",
            "content-type",
            "idempotency-key",
            "origin",
            "paypal-auth-algo",
            "paypal-cert-url",
            "sec-fetch-user",
            "sec-websocket-key",
            "stripe-signature",
            "traceparent",
            "user-agent",
            "x-forwarded-for",
            "x-hub-signature-256",
            "x-idempotency-key",
            "x-monkey",
            "x-order-key",
            "x-request-id",
        ] {
            assert_eq!(found("/", Some(name)), None, "{name}");
        }
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
            "API_KEY",
            "api-key",
            "api%5Fkey",
            "api%5fkey",
            "apikey",
            "apiKey",
            "auth",
            "client_secret",
            "%6Bey",
            "key",
            "sig",
            "sessionToken",
            "token",
            "X-Amz-Signature",
        ] {
            let uri = format!("/a?b=1&{name}=x");
            assert_eq!(found(&uri, None).as_deref(), Some(name));
        }
        for query in ["b=access_token", "idempotency_key=x", "monkey=1", "page=2", "%=1&%4=2&%zz"] {
            assert_eq!(found(&format!("/a?{query}"), None), None, "{query}");
        }
    }
}
