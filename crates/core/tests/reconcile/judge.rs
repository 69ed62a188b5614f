//! What an answer shows.

use semel_core::{
    StatusSet,
    canonical::Pointer,
    reconcile::{ReadAnswer, ReadFinding, ReadRule, Template},
};

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

/// A list of charges of an order.
fn list() -> ReadRule {
    ReadRule {
        completed: StatusSet::new([200]),
        present: Some(pointer("/data/0")),
        absent: StatusSet::new([404]),
        or_missing: Some(pointer("/data/0")),
        matches: vec![(pointer("/data/0/amount"), "{amount}".parse().unwrap())],
        answer: Some(pointer("/data/0")),
        answer_status: 201,
    }
}

/// One charge by its order.
fn single() -> ReadRule {
    ReadRule { present: None, or_missing: None, answer: None, matches: Vec::new(), ..list() }
}

fn values() -> Vec<(String, String)> {
    [("order", "o-7"), ("amount", "49.9")].map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()
}

fn judge(rule: &ReadRule, status: u16, body: &str) -> ReadFinding {
    let answer = ReadAnswer { status, content_type: Some(b"text/json"), body: body.as_bytes() };
    rule.judge(answer, &values())
}

#[test]
fn an_operation_that_agrees_is_found_and_its_bytes_are_kept() {
    let found = judge(&list(), 200, r#"{"data": [{"id": "ch_1",  "amount": 49.90}]}"#);
    let ReadFinding::Found(response) = found else { panic!("{found:?}") };
    assert_eq!(
        (response.status, &response.body[..]),
        (201, &br#"{"id": "ch_1",  "amount": 49.90}"#[..])
    );
    let header = |name: &str| {
        response
            .headers
            .iter()
            .find(|field| field.name == name.as_bytes())
            .map(|it| it.value.clone())
    };
    assert_eq!(header("content-type").unwrap(), "application/json");
    assert_eq!(header("idempotency-reconciled").unwrap(), "true");
    // Without a pointer the whole answer is recorded, as what it is.
    let ReadFinding::Found(whole) = judge(&single(), 200, "<ok/>") else { panic!() };
    assert_eq!(whole.body, "<ok/>");
    assert!(whole.headers.iter().any(|field| field.value == "text/json"));
}

#[test]
fn only_an_answer_of_the_expected_form_shows_absence() {
    for (status, body) in [(404, ""), (404, "no"), (200, r#"{"data":[]}"#)] {
        assert_eq!(judge(&list(), status, body), ReadFinding::Absent, "{status} {body}");
    }
    for (status, body) in [
        (200, r#"{"error":"try later"}"#),
        (200, r#"{"data":null}"#),
        (200, r#"{"data":"none"}"#),
        (200, r#"{"data":[null]}"#),
        (200, "{}"),
        (200, "[]"),
        (200, ""),
        (200, "<html>"),
        (200, r#"{"data":[],"data":[]}"#),
        (204, ""),
        (301, ""),
        (401, ""),
        (429, r#"{"data":[]}"#),
        (500, r#"{"data":[]}"#),
        (503, ""),
    ] {
        assert_eq!(judge(&list(), status, body), ReadFinding::Unclear, "{status} {body}");
    }
    let strict = ReadRule { or_missing: None, ..list() };
    assert_eq!(judge(&strict, 200, r#"{"data":[]}"#), ReadFinding::Unclear);
}

#[test]
fn an_error_document_with_status_200_shows_nothing() {
    let error = r#"{"error":"try later"}"#;
    for place in ["/0", "/charge", "/data/0"] {
        for present in [None, Some(pointer(place))] {
            let rule = ReadRule { present, or_missing: Some(pointer(place)), ..single() };
            assert_eq!(judge(&rule, 200, error), ReadFinding::Unclear, "{place}");
            assert_eq!(judge(&rule, 200, "<html>"), ReadFinding::Unclear, "{place}");
        }
    }
    let list = ReadRule { or_missing: Some(pointer("/0")), ..single() };
    assert_eq!(judge(&list, 200, "[]"), ReadFinding::Absent);
    let member = ReadRule { or_missing: Some(pointer("/charge")), ..single() };
    assert_eq!(judge(&member, 200, r#"{"charge":null}"#), ReadFinding::Absent);
    assert_eq!(judge(&member, 200, r#"{"charge":{}}"#).label(), "found");
    // An object in the place of the list, and pointers that contradict each other.
    let nested = ReadRule { or_missing: Some(pointer("/data/0")), ..single() };
    assert_eq!(judge(&nested, 200, r#"{"data":{}}"#), ReadFinding::Unclear);
    let both = ReadRule { present: Some(pointer("/data")), ..nested };
    assert_eq!(judge(&both, 200, r#"{"data":[]}"#), ReadFinding::Unclear);
}

#[test]
fn a_second_operation_is_noticed_wherever_the_pointer_leads() {
    let two = r#"{"data":[{"id":"a","amount":49.9},{"id":"b"}]}"#;
    let inside = ReadRule { present: Some(pointer("/data/0/id")), ..list() };
    assert_eq!(judge(&inside, 200, two), ReadFinding::TwoFound);
    let answer_alone =
        ReadRule { answer: Some(pointer("/data/0")), present: None, or_missing: None, ..list() };
    assert_eq!(judge(&answer_alone, 200, two), ReadFinding::TwoFound);
}

#[test]
fn two_operations_are_never_taken_for_one() {
    let two = r#"{"data":[{"amount":49.9},{"amount":1}]}"#;
    assert_eq!(judge(&list(), 200, two), ReadFinding::TwoFound);
    let second_is_null = r#"{"data":[{"amount":49.9},null]}"#;
    assert!(matches!(judge(&list(), 200, second_is_null), ReadFinding::Found(_)));
}

#[test]
fn an_operation_that_does_not_agree_is_not_taken() {
    let differs = ReadFinding::Differs(pointer("/data/0/amount"));
    for amount in ["49.91", "\"49.90\"", "null", "{}", "4990"] {
        let body = format!(r#"{{"data":[{{"amount":{amount}}}]}}"#);
        assert_eq!(judge(&list(), 200, &body), differs, "{amount}");
    }
    assert_eq!(judge(&list(), 200, r#"{"data":[{}]}"#), differs);
    assert!(matches!(
        judge(&list(), 200, r#"{"data":[{"amount":"49.9"}]}"#),
        ReadFinding::Found(_)
    ));
    // A value that was not captured agrees with nothing.
    let other = "{customer}".parse().unwrap();
    let rule = ReadRule { matches: vec![(pointer("/data/0/amount"), other)], ..list() };
    assert_eq!(judge(&rule, 200, r#"{"data":[{"amount":""}]}"#), ReadFinding::Unclear);
}

#[test]
fn an_answer_without_the_part_to_record_is_unclear() {
    let rule = ReadRule { answer: Some(pointer("/charge")), ..list() };
    assert_eq!(judge(&rule, 200, r#"{"data":[{"amount":49.9}]}"#), ReadFinding::Unclear);
}

#[test]
fn a_placeholder_is_a_whole_segment_and_leads_nowhere_else() {
    let template: Template = "/v1/{order}/x?a={order}".parse().unwrap();
    assert_eq!(template.names().collect::<Vec<_>>(), ["order", "order"]);
    assert_eq!(template.to_string(), "/v1/{order}/x?a={order}");
    let url = |order: &str| template.url(&[("order".to_owned(), order.to_owned())]);
    assert_eq!(url("o 7/ü?").unwrap(), "/v1/o%207%2F%C3%BC%3F/x?a=o%207%2F%C3%BC%3F");
    assert_eq!(url("../y").unwrap(), "/v1/..%2Fy/x?a=..%2Fy");
    for order in ["", ".", ".."] {
        assert_eq!(url(order), None, "{order:?}");
    }
    for text in ["{", "}", "{}", "a}b{c}", "{A}", "{a b}", "{a", "{a}}"] {
        assert!(text.parse::<Template>().is_err(), "{text}");
    }
}
