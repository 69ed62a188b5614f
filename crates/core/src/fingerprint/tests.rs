//! Fingerprints by example, with vectors that another implementation computed.

use proptest::prelude::*;

use super::{
    BodyError, BodyKind, BodyRule, FINGERPRINT_BYTES, Fingerprint, FingerprintError,
    FingerprintRule, Meaning, QueryRule,
};
use crate::canonical::{Pointer, Selection};
use crate::multipart::MultipartError;

fn of(content_type: &str, body: &str, rule: &FingerprintRule) -> Result<Fingerprint, BodyError> {
    let kind = BodyKind::of(Some(content_type.as_bytes()), body.is_empty());
    let body = body.as_bytes();
    Fingerprint::of(&Meaning { method: "POST", path: "/p", query: None, kind, body }, rule)
}

fn whole(content_type: &str, body: &str) -> Fingerprint {
    of(content_type, body, &FingerprintRule::default()).unwrap()
}

fn target(method: &str, path: &str, query: Option<&str>, rule: QueryRule) -> Fingerprint {
    let rule = FingerprintRule { query: rule, ..FingerprintRule::default() };
    let kind = BodyKind::Empty;
    Fingerprint::of(&Meaning { method, path, query, kind, body: b"" }, &rule).unwrap()
}

#[test]
fn the_definition_does_not_change_unnoticed() {
    // Computed from the module documentation by another program. If this fails, stored
    // fingerprints no longer match: raise the version instead.
    let hex = |fingerprint: Fingerprint| -> String {
        fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let json = {
        let kind = BodyKind::Json;
        let body = br#"{"b":[1.50,"\u00e9"],"a":100}"#;
        let query = Some("x=1");
        Meaning { method: "POST", path: "/charges", query, kind, body }
    };
    assert_eq!(
        hex(Fingerprint::of(&json, &FingerprintRule::default()).unwrap()),
        "01a0b77e501e3ba0eb499e307fc8a3257d32edc79e55d9e09afe2dd767bd905fd2"
    );
    assert_eq!(
        hex(whole("application/x-www-form-urlencoded", "a=1+2&b")),
        "010b40e16d2b788b1f829136bc3aa0a9179416bd6bae3c4034f4f7fd975820cd4f"
    );
    assert_eq!(
        hex(whole("application/x-www-form-urlencoded", "a=%zz+")),
        "01f33b20ab8ae65723e3df6c73a3c90b204967a7a48df6ac04d7e39e98082b0730"
    );
    let multipart = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n";
    assert_eq!(
        hex(whole("multipart/form-data; boundary=x", multipart)),
        "013b5fb4659e2b0b805e3aeec33ee3f3df7cef7aa148c1eac536600805d560c2eb"
    );
    let ignored = FingerprintRule { body: BodyRule::Ignore, ..FingerprintRule::default() };
    assert_eq!(
        hex(of("text/plain", "whatever", &ignored).unwrap()),
        "016f009d4985138268512157700608b759c8aff2eb6a40d35ef2ef675741740ba6"
    );
    assert_eq!(
        hex(Fingerprint::of_parts("email", &[b"a", b""])),
        "011c834dcc61e6d3e00d2f0646ebe46cfa798a23e4a7f728fbd889c4d7f9ec632e"
    );
}

#[test]
fn spelling_does_not_count() {
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
fn the_kind_of_the_body_counts() {
    let kinds = ["application/json", "application/x-www-form-urlencoded", "text/plain"];
    let [json, form, bytes] = kinds.map(|kind| whole(kind, "1"));
    assert!(json != form && form != bytes && json != bytes);
    assert_ne!(whole("text/plain", ""), bytes);
}

#[test]
fn a_form_with_a_broken_escape_is_compared_byte_by_byte_with_its_like() {
    let form = "application/x-www-form-urlencoded";
    assert_eq!(whole(form, "a=%zz+"), whole("Application/X-WWW-form-urlencoded", "a=%zz+"));
    assert_ne!(whole(form, "a=%zz+"), whole("text/plain", "a=%zz+"));
    assert_ne!(whole(form, "a=%zz+"), whole(form, "a=%zz%20"));
    assert_ne!(whole(form, "a=%zz"), whole(form, "a=%ZZ"));
}

#[test]
fn method_path_and_query_count_byte_by_byte() {
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
fn a_body_that_is_not_what_it_says_is_refused() {
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
fn where_one_part_ends_and_the_next_begins_counts() {
    let of = |parts: &[&[u8]]| Fingerprint::of_parts("d", parts);
    assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    assert_ne!(of(&[]), of(&[b""]));
    assert_ne!(of(&[b"a"]), Fingerprint::of_parts("da", &[]));
    assert_ne!(Fingerprint::of_parts("a", &[b"b"]), Fingerprint::of_parts("b", &[b"a"]));
}

#[test]
fn a_fingerprint_survives_storage() {
    let fingerprint = whole("text/plain", "x");
    assert_eq!(fingerprint.version(), 1);
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

proptest! {
    #[test]
    fn requests_are_equal_exactly_when_their_parts_are(
        a in ("[ab]{0,2}", "[ab]{0,2}", prop::option::of("[ab]{0,2}"), "[ab]{0,2}"),
        b in ("[ab]{0,2}", "[ab]{0,2}", prop::option::of("[ab]{0,2}"), "[ab]{0,2}"),
    ) {
        let of = |(method, path, query, body): &(String, String, Option<String>, String)| {
            let (query, body) = (query.as_deref(), body.as_bytes());
            let meaning = Meaning { method, path, query, kind: BodyKind::Bytes, body };
            Fingerprint::of(&meaning, &FingerprintRule::default()).unwrap()
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
fn a_body_that_is_ignored_may_be_anything() {
    let rule = FingerprintRule { body: BodyRule::Ignore, ..FingerprintRule::default() };
    let print = |content_type, body| of(content_type, body, &rule).unwrap();
    let one = print("application/json", r#"{"id":"e","tries":1}"#);
    assert_eq!(one, print("application/json", r#"{"id":"e","tries":2}"#));
    assert_eq!(one, print("text/plain", ""));
    assert_eq!(one, print("application/json", "{"));
    assert_eq!(one, print("multipart/form-data", "no boundary"));
    assert_ne!(one, whole("text/plain", ""));
}
