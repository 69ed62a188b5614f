//! Whether a request carries a credential of any kind.

use http::{HeaderName, request::Parts};

/// Headers that say who sent a request, in the order of the alphabet.
const CREDENTIALS: [&str; 38] = [
    "api-key",
    "apikey",
    "authorization",
    "cf-access-jwt-assertion",
    "client-cert",
    "cookie",
    "dpop",
    "ocp-apim-subscription-key",
    "private-token",
    "proxy-authorization",
    "signature",
    "ssl-client-cert",
    "x-access-token",
    "x-amz-security-token",
    "x-amzn-mtls-clientcert",
    "x-amzn-mtls-clientcert-leaf",
    "x-amzn-oidc-data",
    "x-api-key",
    "x-api-token",
    "x-apikey",
    "x-auth-key",
    "x-auth-request-user",
    "x-auth-token",
    "x-authorization",
    "x-client-cert",
    "x-csrf-token",
    "x-csrftoken",
    "x-forwarded-client-cert",
    "x-forwarded-user",
    "x-functions-key",
    "x-goog-api-key",
    "x-goog-iap-jwt-assertion",
    "x-id-token",
    "x-remote-user",
    "x-session-id",
    "x-session-token",
    "x-ssl-client-cert",
    "x-xsrf-token",
];

/// Members of a query that do.
const IN_QUERY: [&str; 4] = ["access_token", "api_key", "apikey", "x-amz-signature"];

/// The name of the header, or of the member of the query, that carries a credential. `named` are
/// the headers that the other rules of the route take for one.
pub(super) fn credential<'a>(parts: &'a Parts, named: &[HeaderName]) -> Option<&'a str> {
    let is_credential = |name: &&HeaderName| {
        CREDENTIALS.binary_search(&name.as_str()).is_ok() || named.contains(name)
    };
    let header = parts.headers.keys().find(is_credential).map(HeaderName::as_str);
    header.or_else(|| parts.uri.query().and_then(in_query))
}

fn in_query(query: &str) -> Option<&str> {
    let names = query.split('&').filter_map(|pair| pair.split('=').next());
    let is_credential = |name: &str| IN_QUERY.iter().any(|known| name.eq_ignore_ascii_case(known));
    names.into_iter().find(|name| is_credential(name))
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
        credential(&parts, &named).map(str::to_owned)
    }

    #[test]
    fn the_list_is_in_order_so_that_it_can_be_searched() {
        assert!(CREDENTIALS.is_sorted());
        for name in CREDENTIALS {
            assert_eq!(found("/", Some(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_header_that_another_rule_names_is_a_credential() {
        assert_eq!(found("/", Some("x-merchant-id")).as_deref(), Some("x-merchant-id"));
        assert_eq!(found("/", Some("x-other")), None);
    }

    #[test]
    fn a_credential_in_the_query_is_one_too() {
        assert_eq!(found("/a?b=1&access_token=x", None).as_deref(), Some("access_token"));
        assert_eq!(found("/a?API_KEY=x", None).as_deref(), Some("API_KEY"));
        assert_eq!(found("/a?b=access_token", None), None);
    }
}
