//! Canonical JSON by example: what is equal, what differs and what is refused.

use super::{DEPTH_MAX, JsonErrorKind as Kind, Pointer, PointerError, Selection, json, json_text};

fn text(body: &str) -> String {
    String::from_utf8(json_text(body.as_bytes()).unwrap()).unwrap()
}

fn refused(body: impl AsRef<[u8]>) -> (Kind, usize) {
    let error = json_text(body.as_ref()).unwrap_err();
    (error.kind(), error.offset())
}

fn pointers(texts: &[&str]) -> Vec<Pointer> {
    texts.iter().map(|text| Pointer::parse(text).unwrap()).collect()
}

fn only(body: &str, texts: &[&str]) -> Result<String, Kind> {
    let mut out = Vec::new();
    let result = json(body.as_bytes(), &Selection::Only(pointers(texts)), &mut out);
    result.map(|()| String::from_utf8(out).unwrap()).map_err(|error| error.kind())
}

fn except(body: &str, texts: &[&str]) -> String {
    try_except(body, texts).unwrap()
}

fn try_except(body: &str, texts: &[&str]) -> Result<String, Kind> {
    let mut out = Vec::new();
    let result = json(body.as_bytes(), &Selection::Except(pointers(texts)), &mut out);
    result.map(|()| String::from_utf8(out).unwrap()).map_err(|error| error.kind())
}

#[test]
fn order_and_white_space_do_not_matter() {
    let canonical = r#"{"":0,"a":[1,{"x":null,"y":true}],"b":false}"#;
    assert_eq!(text(canonical), canonical);
    let spread = " {\n\"b\" : false ,\t\"a\":[ 1,\r\n{\"y\":true,\"x\":null} ], \"\":0 } ";
    assert_eq!(text(spread), canonical);
}

#[test]
fn members_are_sorted_by_code_point_and_not_by_utf_16_unit() {
    assert_eq!(text("{\"\u{10000}\":1,\"\u{FFFF}\":2}"), "{\"\u{FFFF}\":2,\"\u{10000}\":1}");
    assert_eq!(text(r#"{"\ud800":1,"a":2,"\ue000":3}"#), "{\"a\":2,\"\\ud800\":1,\"\u{E000}\":3}");
    assert_eq!(text(r#"{"b":1,"aa":2,"a":3,"\u0061b":4}"#), r#"{"a":3,"aa":2,"ab":4,"b":1}"#);
}

#[test]
fn members_are_sorted_by_all_of_their_names() {
    let canonical = [
        r#""":1"#,
        r#""\u0000":2"#,
        r#""a":3"#,
        r#""a\u0000":4"#,
        r#""a\u0000b":5"#,
        r#""aaaaaaa":6"#,
        r#""aaaaaaaa":7"#,
        r#""aaaaaaaa\u0000":8"#,
        r#""aaaaaaaab":9"#,
        r#""aaaaaaaac":11"#,
        r#""ÿ":12"#,
    ];
    let sorted = format!("{{{}}}", canonical.join(","));
    assert_eq!(text(&sorted), sorted);
    let mut members = canonical.to_vec();
    members.reverse();
    assert_eq!(text(&format!("{{{}}}", members.join(","))), sorted);
    let spelled = canonical.map(|member| member.replace('a', "\\u0061"));
    assert_eq!(text(&format!("{{{}}}", spelled.join(","))), sorted);
    assert_eq!(refused(r#"{"aaaaaaaab":1,"aaaaaaaa":2,"aaaaaaaab":3}"#), (Kind::DuplicateName, 28));
    let many = (0..300).map(|n| format!("\"member-{:03}\":7", n * 7 % 300));
    let many = text(&format!("{{{}}}", many.collect::<Vec<_>>().join(",")));
    let sorted = (0..300).map(|n| format!("\"member-{n:03}\":7")).collect::<Vec<_>>();
    assert_eq!(many, format!("{{{}}}", sorted.join(",")));
}

#[test]
fn numbers_are_exact_decimals() {
    for (canonical, spellings) in [
        ("0", ["0", "-0", "0.0", "-0.00e5", "0e99999999999999999999"].as_slice()),
        ("7", &["7", "7.0", "0.7e1", "70e-1", "7e0", "7E+00", "7e-0"]),
        ("1e2", &["100", "1e2", "1E+2", "1.00e2", "0.001e5", "1000e-1"]),
        ("-125e-1", &["-12.5", "-12.50", "-125e-1", "-1.25E1", "-0.00125e4"]),
        ("5e-2", &["0.05", "0.050", "5e-2", "50.0e-3"]),
        ("1005e-1", &["100.5", "100.50"]),
        ("-10203e-2", &["-102.03", "-102.030", "-10203e-2"]),
        ("5e-10", &["0.0000000005", "0.00000000050", "5e-10"]),
        ("-12e10", &["-120000000000", "-120000000000.0", "-12e10"]),
        ("9007199254740993", &["9007199254740993", "9007199254740993.000"]),
        ("1e999999999", &["1e999999999", "10e999999998", "0.1e1000000000"]),
        ("1e-400", &["1e-400", "0.1e-399"]),
    ] {
        for spelling in spellings {
            assert_eq!(text(spelling), canonical, "{spelling}");
        }
    }
    assert_ne!(text("9007199254740993"), text("9007199254740992"));
    assert_ne!(text("0.1"), text("0.1000000000000000055511151231257827"));
}

#[test]
fn an_exponent_is_out_of_range_only_after_it_was_adjusted() {
    assert_eq!(text("1e9223372036854775807"), "1e9223372036854775807");
    assert_eq!(text("0.1e9223372036854775808"), "1e9223372036854775807");
    assert_eq!(text("10e-9223372036854775809"), "1e-9223372036854775808");
    assert_eq!(text(&format!("1e{}5", "0".repeat(1000))), "1e5");
    for number in [
        "10e9223372036854775807",
        "1e9223372036854775808",
        "0.1e-9223372036854775808",
        &format!("1e{}", "9".repeat(10_000)),
        &format!("-1e-{}", "9".repeat(10_000)),
    ] {
        assert_eq!(refused(number), (Kind::Exponent, 0));
    }
}

#[test]
fn escapes_do_not_matter() {
    assert_eq!(text(r#""\u0041\u00e9\/\ud83d\ude00\uD83D\uDE00""#), "\"Aé/😀😀\"");
    assert_eq!(text(r#""\"\\\b\f\n\r\t""#), r#""\"\\\b\f\n\r\t""#);
    assert_eq!(
        text(r#""\u0022\u005C\u0008\u000C\u000a\u000d\u0009\u001F\u0000\u007f""#),
        "\"\\\"\\\\\\b\\f\\n\\r\\t\\u001f\\u0000\u{7f}\""
    );
}

#[test]
fn lone_surrogates_are_kept_and_equal_to_nothing_else() {
    assert_eq!(text(r#""\uD800""#), r#""\ud800""#);
    assert_eq!(text(r#""\uDFFFx""#), r#""\udfffx""#);
    assert_eq!(text(r#""\udbff\ud800\udc00\udc01""#), "\"\\udbff\u{10000}\\udc01\"");
    assert_eq!(text(r#""\ud800\n""#), r#""\ud800\n""#);
    // The characters next to the surrogates share their first byte.
    assert_eq!(text(r#""\ud7ff\ue000""#), "\"\u{D7FF}\u{E000}\"");
    assert_ne!(text(r#""\ud800""#), text(r#""\\ud800""#));
    assert_ne!(text(r#""\ud800""#), text(r#""\ufffd""#));
}

#[test]
fn equal_names_in_one_object_are_refused() {
    assert_eq!(refused(r#"{"a":1,"b":2,"a":1}"#), (Kind::DuplicateName, 13));
    assert_eq!(refused(r#"{"a":1,"\u0061":2}"#).0, Kind::DuplicateName);
    assert_eq!(refused(r#"[{"x":{"\ud800":1,"\uD800":2}}]"#).0, Kind::DuplicateName);
    assert_eq!(text(r#"{"a":{"a":1}}"#), r#"{"a":{"a":1}}"#);
}

#[test]
fn invalid_json_is_refused_with_its_position() {
    for (body, kind, offset) in [
        ("", Kind::Incomplete, 0),
        (" ", Kind::Incomplete, 1),
        ("[1", Kind::Incomplete, 2),
        ("[1,", Kind::Incomplete, 3),
        ("[1,]", Kind::ExpectedValue, 3),
        ("[,1]", Kind::ExpectedValue, 1),
        ("[1}", Kind::ExpectedComma, 2),
        ("[1 2]", Kind::ExpectedComma, 3),
        ("{1:2}", Kind::ExpectedName, 1),
        ("{\"a\":1,}", Kind::ExpectedName, 7),
        ("{\"a\" 1}", Kind::ExpectedColon, 5),
        ("{\"a\":1]", Kind::ExpectedComma, 6),
        ("1 2", Kind::Trailing, 2),
        ("{}]", Kind::Trailing, 2),
        ("01", Kind::Number, 1),
        ("-00.5", Kind::Number, 2),
        ("-", Kind::Incomplete, 1),
        ("[1.]", Kind::Number, 3),
        ("[1e+]", Kind::Number, 4),
        ("[1e+-1]", Kind::Number, 4),
        ("[-x]", Kind::Number, 2),
        ("+1", Kind::ExpectedValue, 0),
        (".5", Kind::ExpectedValue, 0),
        ("NaN", Kind::ExpectedValue, 0),
        ("nul", Kind::ExpectedValue, 0),
        ("'a'", Kind::ExpectedValue, 0),
        ("\"a", Kind::Incomplete, 2),
        ("\"a\\", Kind::Incomplete, 2),
        ("\"\\x\"", Kind::Escape, 1),
        ("\"\\u12g4\"", Kind::Escape, 1),
        ("\"\\ud800\\u12\"", Kind::Escape, 7),
        ("\"a\nb\"", Kind::ControlCharacter, 2),
        ("\"\\n\u{1}\"", Kind::ControlCharacter, 3),
        ("/**/1", Kind::ExpectedValue, 0),
    ] {
        assert_eq!(refused(body), (kind, offset), "{body:?}");
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_refused() {
    assert_eq!(refused(b"\"a\xFF\""), (Kind::Encoding, 2));
    assert_eq!(refused(b"\"\xED\xA0\x80\""), (Kind::Encoding, 1));
    assert_eq!(refused(b"\"\xC0\xAF\""), (Kind::Encoding, 1));
    assert_eq!(refused(b"{\0}\0"), (Kind::ExpectedName, 1));
}

#[test]
fn a_byte_order_mark_is_skipped_once_and_at_the_start_only() {
    assert_eq!(text("\u{FEFF}[1]"), "[1]");
    assert_eq!(refused("\u{FEFF}\u{FEFF}1"), (Kind::ExpectedValue, 3));
    assert_eq!(refused(" \u{FEFF}1"), (Kind::ExpectedValue, 1));
    assert_eq!(text("\"\u{FEFF}\""), "\"\u{FEFF}\"");
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(text(&nested(DEPTH_MAX)), nested(DEPTH_MAX));
    assert_eq!(refused(nested(DEPTH_MAX + 1)), (Kind::TooDeep, DEPTH_MAX));
    assert_eq!(refused("[".repeat(100_000)), (Kind::TooDeep, DEPTH_MAX));
    assert_eq!(refused("{\"a\":".repeat(100_000)), (Kind::TooDeep, DEPTH_MAX * 5));
    assert_eq!(text(&format!("[{}1]", "[[]],".repeat(50_000))).len(), 250_003);
}

#[test]
fn a_document_over_the_limit_is_refused_before_it_is_read() {
    let body = vec![b' '; super::JSON_BYTES_MAX + 1];
    assert_eq!(refused(body).0, Kind::TooLarge);
}

#[test]
fn the_message_says_what_and_where() {
    let error = json_text(b"[1,]").unwrap_err();
    assert_eq!(error.to_string(), "a JSON value was expected here (at byte 3 of the body)");
}

#[test]
fn only_binds_each_value_to_its_pointer() {
    let body = r#"{"a":1,"b":{"c":[10,20]},"":3,"a/b":4,"m~n":5}"#;
    assert_eq!(only(body, &["/a"]).unwrap(), r#"only{"/a":1}"#);
    assert_eq!(only(body, &["/b/c/1", "/a"]), only(body, &["/a", "/b/c/1", "/a"]));
    assert_eq!(only(body, &["/b/c/1", "/a"]).unwrap(), r#"only{"/a":1,"/b/c/1":2e1}"#);
    assert_eq!(only(body, &["/", "/a~1b", "/m~0n"]).unwrap(), r#"only{"/":3,"/a~1b":4,"/m~0n":5}"#);
    assert_eq!(only("5", &[""]).unwrap(), r#"only{"":5}"#);
}

#[test]
fn only_tells_absent_from_null() {
    assert_eq!(only(r#"{"a":1}"#, &["/a", "/b"]).unwrap(), r#"only{"/a":1,"/b":*}"#);
    assert_eq!(only(r#"{"a":1,"b":null}"#, &["/a", "/b"]).unwrap(), r#"only{"/a":1,"/b":null}"#);
}

#[test]
fn an_only_that_selects_nothing_is_refused() {
    assert_eq!(only(r#"{"a":1}"#, &["/b"]), Err(Kind::NothingSelected));
    assert_eq!(only(r#"{"a":1}"#, &[]), Err(Kind::NothingSelected));
    for pointer in ["/2", "/-", "/01", "/+1", "/-1", "/a", "/", "/0/0", "/99999999999999999999"] {
        assert_eq!(only("[1,2]", &[pointer]), Err(Kind::NothingSelected), "{pointer}");
    }
}

#[test]
fn except_drops_members_and_leaves_a_star_for_elements() {
    assert_eq!(
        except(r#"{"a":1,"b":[1,{"c":2,"d":3}]}"#, &["/a", "/b/1/c"]),
        r#"{"b":[1,{"d":3}]}"#
    );
    assert_eq!(except("[1,2]", &["/0"]), "[*,2]");
    assert_eq!(except("[[1],2]", &["/0", "/0/0", "/0"]), "[*,2]");
    assert_eq!(except("[[1,{}],2]", &["/0", "/1"]), "[*,*]");
    assert_eq!(except("[2]", &["/7", "/x"]), "[2]");
    assert_eq!(except("{}", &["/a"]), except(r#"{"a":{"b":1}}"#, &["/a"]));
}

#[test]
fn an_except_that_leaves_nothing_is_refused() {
    for body in ["{}", r#"{"a":1}"#, "[1]", "5"] {
        assert_eq!(try_except(body, &[""]), Err(Kind::NothingSelected), "{body}");
        assert_eq!(try_except(body, &["/a", ""]), Err(Kind::NothingSelected), "{body}");
    }
    assert_eq!(try_except("[", &[""]), Err(Kind::Incomplete), "what it is not comes first");
    assert_eq!(except(r#"{"":1,"a":2}"#, &["/"]), r#"{"a":2}"#);
}

#[test]
fn a_name_twice_is_refused_also_where_it_is_not_selected() {
    let body = br#"{"a":1,"b":{"c":1,"c":2}}"#;
    let mut out = b"kept".to_vec();
    for selection in [Selection::Only(pointers(&["/a"])), Selection::Except(pointers(&["/b"]))] {
        assert_eq!(json(body, &selection, &mut out).unwrap_err().kind(), Kind::DuplicateName);
    }
    assert_eq!(out, b"kept");
}

#[test]
fn a_pointer_says_what_is_wrong_with_it() {
    assert_eq!(Pointer::parse("a/b"), Err(PointerError::NoSlash { text: "a/b".to_owned() }));
    for text in ["/~", "/a~2", "/~0~", "/~/a"] {
        assert_eq!(Pointer::parse(text), Err(PointerError::Tilde { text: text.to_owned() }));
    }
    let tilde = Pointer::parse("/~01").unwrap();
    assert_eq!(tilde.tokens().collect::<Vec<_>>(), ["~1"]);
    assert_eq!(Pointer::parse("").unwrap().tokens().count(), 0);
    assert_eq!("/a".parse::<Pointer>().unwrap().to_string(), "/a");
}
