//! Examples of fingerprints, and test vectors from another implementation.

use proptest::prelude::*;

use super::{
    BodyError, BodyKind, BodyRule, FINGERPRINT_BYTES, Fingerprint, FingerprintError,
    FingerprintHeader, FingerprintInput, FingerprintRule, HostRule, QueryRule,
};
use crate::canonical::{Pointer, Selection};
use crate::multipart::MultipartError;

fn of(content_type: &str, body: &str, rule: &FingerprintRule) -> Result<Fingerprint, BodyError> {
    let kind = BodyKind::of(Some(content_type.as_bytes()), body.is_empty());
    let body = body.as_bytes();
    Fingerprint::of(&FingerprintInput { kind, body, ..FingerprintInput::new("POST", "/p") }, rule)
}

fn whole(content_type: &str, body: &str) -> Fingerprint {
    of(content_type, body, &FingerprintRule::default()).unwrap()
}

fn target(method: &str, path: &str, query: Option<&str>, rule: QueryRule) -> Fingerprint {
    let rule = FingerprintRule { query: rule, ..FingerprintRule::default() };
    Fingerprint::of(&FingerprintInput { query, ..FingerprintInput::new(method, path) }, &rule)
        .unwrap()
}

fn header(name: &str) -> FingerprintHeader {
    FingerprintHeader::new(name).unwrap()
}

#[test]
fn fingerprints_equal_the_test_vectors() {
    // Another program computed the vectors from the module documentation. If this fails, stored
    // fingerprints no longer match: raise the version instead.
    let hex = |fingerprint: Fingerprint| -> String {
        fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let json = {
        let kind = BodyKind::Json;
        let body = br#"{"b":[1.50,"\u00e9"],"a":100}"#;
        FingerprintInput {
            query: Some("x=1"),
            kind,
            body,
            ..FingerprintInput::new("POST", "/charges")
        }
    };
    assert_eq!(
        hex(Fingerprint::of(&json, &FingerprintRule::default()).unwrap()),
        "029b8a6e05e4aaf4867d92de90c5d36bfc16670fc26583ee686b744591ee638ad9"
    );
    let headers: [(&str, &[u8]); 4] = [
        ("stripe-account", b" acct_1"),
        ("x-other", b"1"),
        ("x-empty", b""),
        ("stripe-account", b"acct_2\t"),
    ];
    let hosted = FingerprintInput { host: Some("shop-a.example"), headers: &headers, ..json };
    let listed = ["X-Empty", "Stripe-Account", "X-Absent"].map(header).to_vec();
    let rule = FingerprintRule { headers: listed, ..FingerprintRule::default() };
    assert_eq!(
        hex(Fingerprint::of(&hosted, &rule).unwrap()),
        "02d8aad092898b9e8c9b1305cd5c50797e025119e5f9d09823f6bcd5591273d5c8"
    );
    assert_eq!(
        hex(whole("application/x-www-form-urlencoded", "a=1+2&b")),
        "02ef51cb6fb226a4cb0994a320d6c589799e28ee25bcc82933284de21575ff7d00"
    );
    assert_eq!(
        hex(whole("application/x-www-form-urlencoded", "a=%zz+")),
        "02ba2371994ddb42ce51ec33ee620722904d9ef862bcce59505b6e268620e87982"
    );
    let multipart = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n";
    assert_eq!(
        hex(whole("multipart/form-data; boundary=x", multipart)),
        "024cd2591512f72d71dff4b80d084bf015548d48271cf4a8777e4feacd126178fc"
    );
    let ignored = FingerprintRule { body: BodyRule::Ignore, ..FingerprintRule::default() };
    assert_eq!(
        hex(of("text/plain", "whatever", &ignored).unwrap()),
        "021ab3d9a4f5ea8e585c9d0eeea269cf5fffcbf55ad930481c1f40a745c332df54"
    );
    assert_eq!(
        hex(Fingerprint::of_parts("email", &[b"a", b""])),
        "021c834dcc61e6d3e00d2f0646ebe46cfa798a23e4a7f728fbd889c4d7f9ec632e"
    );
}

#[test]
fn equivalent_encodings_have_the_same_fingerprint() {
    let json = whole("application/json", r#"{"a":1,"b":[2]}"#);
    assert_eq!(whole("application/json; charset=utf-8", r#"{ "b":[2.0], "\u0061":1 }"#), json);
    assert_eq!(whole("APPLICATION/JSON", r#"{"a":1,"b":[2]}"#), json);
    let form = "application/x-www-form-urlencoded";
    assert_eq!(whole(form, "a=1+2"), whole(form, "a=1%202"));
    let multipart = |boundary: &str| {
        let body = format!("--{boundary}\r\nContent-Type: a/b\r\n\r\nx\r\n--{boundary}--");
        whole(&format!("multipart/form-data; boundary=\"{boundary}\""), &body)
    };
    assert_eq!(multipart("abc"), multipart("d e"));
}

#[test]
fn the_kind_of_the_body_is_part_of_the_fingerprint() {
    let kinds = ["application/json", "application/x-www-form-urlencoded", "text/plain"];
    let [json, form, bytes] = kinds.map(|kind| whole(kind, "1"));
    assert!(json != form && form != bytes && json != bytes);
    assert_ne!(whole("text/plain", ""), bytes);
}

#[test]
fn a_form_with_an_invalid_escape_is_compared_byte_by_byte() {
    let form = "application/x-www-form-urlencoded";
    assert_eq!(whole(form, "a=%zz+"), whole("Application/X-WWW-form-urlencoded", "a=%zz+"));
    assert_ne!(whole(form, "a=%zz+"), whole("text/plain", "a=%zz+"));
    assert_ne!(whole(form, "a=%zz+"), whole(form, "a=%zz%20"));
    assert_ne!(whole(form, "a=%zz"), whole(form, "a=%ZZ"));
}

#[test]
fn method_path_and_query_are_compared_byte_by_byte() {
    let rule = QueryRule::Whole;
    let targets = [
        target("POST", "/p", None, rule),
        target("PATCH", "/p", None, rule),
        target("post", "/p", None, rule),
        target("POST", "/%70", None, rule),
        target("POST", "/p/", None, rule),
        target("POST", "/p", Some(""), rule),
        target("POST", "/p", Some("a=1"), rule),
        target("POST", "/p?a=1", None, rule),
        target("POST", "/p", Some("a=%31"), rule),
        target("POST/", "p", None, rule),
    ];
    for (index, one) in targets.iter().enumerate() {
        assert!(!targets[index + 1..].contains(one), "{index}");
    }
}

#[test]
fn an_ignored_query_does_not_count() {
    let ignored = |query| target("POST", "/p", query, QueryRule::Ignore);
    assert_eq!(ignored(Some("ts=1")), ignored(Some("ts=2")));
    assert_eq!(ignored(Some("ts=1")), ignored(None));
}

#[test]
fn the_host_counts_unless_it_is_ignored() {
    let of = |host, rule| {
        let rule = FingerprintRule { host: rule, ..FingerprintRule::default() };
        Fingerprint::of(&FingerprintInput { host, ..FingerprintInput::new("POST", "/p") }, &rule)
            .unwrap()
    };
    let [a, b] = ["a.example", "b.example"].map(Some);
    assert_ne!(of(a, HostRule::Compare), of(b, HostRule::Compare));
    assert_ne!(of(a, HostRule::Compare), of(None, HostRule::Compare));
    assert_eq!(of(a, HostRule::Ignore), of(b, HostRule::Ignore));
    assert_eq!(of(a, HostRule::Ignore), of(None, HostRule::Compare));
}

#[test]
fn listed_headers_count_and_no_others() {
    let of = |listed: &[&str], headers: &[(&str, &[u8])]| {
        let headers_listed = listed.iter().map(|name| header(name)).collect();
        let rule = FingerprintRule { headers: headers_listed, ..FingerprintRule::default() };
        Fingerprint::of(&FingerprintInput { headers, ..FingerprintInput::new("POST", "/p") }, &rule)
            .unwrap()
    };
    let one = of(&["a"], &[("a", b"1")]);
    assert_eq!(one, of(&["A"], &[("b", b"2"), ("a", b" 1 ")]), "others and white space");
    assert_eq!(of(&["a", "b"], &[("a", b"1")]), of(&["b", "a", "b"], &[("a", b"1")]), "order");
    assert_eq!(of(&[], &[("a", b"1")]), of(&[], &[]), "not listed");
    let joined = of(&["a"], &[("a", b"1"), ("a", b"2")]);
    assert_eq!(joined, of(&["a"], &[("a", b"1, 2")]), "lines are joined");
    let different = [
        one,
        joined,
        of(&["a"], &[("a", b"2"), ("a", b"1")]),
        of(&["a"], &[("a", b"")]),
        of(&["a"], &[]),
        of(&["a"], &[("a", b"2")]),
        of(&["b"], &[("b", b"1")]),
        of(&["a", "b"], &[("a", b"1")]),
        of(&["a", "b"], &[("b", b"1")]),
        of(&[], &[]),
    ];
    for (index, one) in different.iter().enumerate() {
        assert!(!different[index + 1..].contains(one), "{index}");
    }
}

#[test]
fn only_and_except_choose_what_counts() {
    let rule = |selection| FingerprintRule { selection, ..FingerprintRule::default() };
    let pointer = |text| Pointer::parse(text).unwrap();
    let only = rule(Selection::Only(vec![pointer("/a"), pointer("/b")]));
    let json = |body: &str, rule: &FingerprintRule| of("application/json", body, rule);
    assert_eq!(json(r#"{"a":1,"t":5}"#, &only), json(r#"{"t":6,"a":1}"#, &only));
    assert_ne!(json(r#"{"a":1}"#, &only), json(r#"{"b":1}"#, &only));
    assert_eq!(json(r#"{"t":5}"#, &only), Err(BodyError::NothingSelected));
    assert_eq!(json("", &only), Err(BodyError::NothingSelected));
    for kind in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"] {
        assert_eq!(of(kind, r#"{"a":1}"#, &only), Err(BodyError::NothingSelected));
    }
    let except = rule(Selection::Except(vec![pointer("/t")]));
    assert_eq!(json(r#"{"a":1,"t":5}"#, &except), json(r#"{"t":6,"a":1}"#, &except));
    assert_eq!(of("text/plain", "x", &except).unwrap(), whole("text/plain", "x"));
    let nothing = rule(Selection::Except(vec![pointer("")]));
    assert_eq!(json(r#"{"a":1}"#, &nothing), Err(BodyError::NothingSelected));
}

#[test]
fn a_body_that_does_not_match_its_content_type_is_refused() {
    let rule = FingerprintRule::default();
    assert!(matches!(of("application/json", "{", &rule), Err(BodyError::Json(_))));
    assert!(matches!(of("application/json", " ", &rule), Err(BodyError::Json(_))));
    for (kind, error) in [
        ("multipart/form-data", MultipartError::NoBoundary),
        ("multipart/form-data; boundary=", MultipartError::NoBoundary),
        ("multipart/form-data; boundary=a; boundary=b", MultipartError::NoBoundary),
        ("multipart/form-data; boundary=a; Boundary=a", MultipartError::NoBoundary),
        ("multipart/mixed; boundary=x", MultipartError::NoParts),
    ] {
        assert_eq!(of(kind, "--a--", &rule), Err(BodyError::Multipart(error)), "{kind}");
    }
}

#[test]
fn the_content_type_decides_the_kind() {
    let multipart = |boundary: &str| BodyKind::Multipart { boundary: Some(boundary.into()) };
    for (content_type, kind) in [
        ("application/json", BodyKind::Json),
        (" application/JSON ;charset=utf-8", BodyKind::Json),
        ("application/json; charset", BodyKind::Json),
        ("application/problem+json", BodyKind::Json),
        ("image/svg+JSON;x=\"a;b\"", BodyKind::Json),
        ("application/json-seq", BodyKind::Bytes),
        ("application/json, text/plain", BodyKind::Bytes),
        ("text/plain, application/a+json", BodyKind::Bytes),
        ("+json", BodyKind::Bytes),
        ("application/x-www-form-urlencoded;charset=UTF-8", BodyKind::Form),
        ("Multipart/Form-Data; Boundary=a", multipart("a")),
        (
            "multipart/mixed;charset=\"a;boundary=c\";boundary=----=_Part_1.2",
            multipart("----=_Part_1.2"),
        ),
        ("multipart/form-data; boundary=\"a;b\"", multipart("a;b")),
        ("multipart/form-data", BodyKind::Multipart { boundary: None }),
        ("multipart/form-data; boundary=\"a", BodyKind::Multipart { boundary: None }),
        ("multipart", BodyKind::Bytes),
        ("", BodyKind::Bytes),
        ("\u{FF}", BodyKind::Bytes),
    ] {
        assert_eq!(BodyKind::of(Some(content_type.as_bytes()), false), kind, "{content_type}");
        assert_eq!(BodyKind::of(Some(content_type.as_bytes()), true), BodyKind::Empty);
    }
    assert_eq!(BodyKind::of(None, false), BodyKind::Bytes);
}

#[test]
fn the_boundaries_of_parts_are_part_of_the_fingerprint() {
    let of = |parts: &[&[u8]]| Fingerprint::of_parts("d", parts);
    assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    assert_ne!(of(&[]), of(&[b""]));
    assert_ne!(of(&[b"a"]), Fingerprint::of_parts("da", &[]));
    assert_ne!(Fingerprint::of_parts("a", &[b"b"]), Fingerprint::of_parts("b", &[b"a"]));
}

#[test]
fn a_stored_fingerprint_is_read_back() {
    let fingerprint = whole("text/plain", "x");
    assert_eq!(fingerprint.version(), 2);
    assert_eq!(Fingerprint::from_bytes(fingerprint.as_bytes()), Ok(fingerprint));
    assert_eq!(Fingerprint::try_from(&[1; 32][..]), Err(FingerprintError::Length { length: 32 }));
    assert_eq!(Fingerprint::try_from(&[0; 33][..]), Err(FingerprintError::Version));
    let mut later = *fingerprint.as_bytes();
    later[0] = 9;
    let later = Fingerprint::from_bytes(&later).unwrap();
    assert_eq!((later.version(), later.as_bytes().len()), (9, FINGERPRINT_BYTES));
    assert_ne!(later, fingerprint);
}

#[test]
fn the_debug_form_is_short() {
    let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
    assert_eq!(format!("{fingerprint:?}"), "Fingerprint(v1:010101010101…)");
}

/// Method, host, path, query, the header that counts, body.
type Request = (String, Option<String>, String, Option<String>, Option<String>, String);

fn request() -> impl Strategy<Value = Request> {
    let maybe = |text| prop::option::of(text);
    (
        "[ab]{0,2}",
        maybe("[ab]{1,2}"),
        "[ab]{0,2}",
        maybe("[ab]{0,2}"),
        maybe("[ab]{0,2}"),
        "[ab]{0,2}",
    )
}

proptest! {
    #[test]
    fn requests_are_equal_exactly_when_their_parts_are(
        a in request(),
        b in request(),
    ) {
        let rule = FingerprintRule { headers: vec![header("h")], ..FingerprintRule::default() };
        let of = |(method, host, path, query, value, body): &Request| {
            let lines = value.as_deref().map(|value| ("h", value.as_bytes()));
            let input = FingerprintInput {
                method,
                host: host.as_deref(),
                path,
                query: query.as_deref(),
                headers: lines.as_slice(),
                kind: BodyKind::Bytes,
                body: body.as_bytes(),
            };
            Fingerprint::of(&input, &rule).unwrap()
        };
        prop_assert_eq!(a == b, of(&a) == of(&b));
    }

    #[test]
    fn no_content_type_panics(value in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = BodyKind::of(Some(&value), false);
        let _ = BodyKind::of(Some(&[b"multipart/x;".as_slice(), &value].concat()), false);
    }
}

#[test]
fn an_ignored_body_may_be_malformed() {
    let rule = FingerprintRule { body: BodyRule::Ignore, ..FingerprintRule::default() };
    let print = |content_type, body| of(content_type, body, &rule).unwrap();
    let one = print("application/json", r#"{"id":"e","tries":1}"#);
    assert_eq!(one, print("application/json", r#"{"id":"e","tries":2}"#));
    assert_eq!(one, print("text/plain", ""));
    assert_eq!(one, print("application/json", "{"));
    assert_eq!(one, print("multipart/form-data", "no boundary"));
    assert_ne!(one, whole("text/plain", ""));
}
