//! The key in a JSON body: one member, or several combined.

use semel::core::{
    BodyKind, Key, Problem,
    canonical::{self, Pointer, Value},
};

use super::malformed;
use crate::refusal::RequestRefusal;

/// The key from these members of a body, `None` if it has none of them.
///
/// A body that was not declared as JSON may be JSON nevertheless: some webhook senders declare
/// `text/plain`. One that looks like JSON and cannot be parsed may contain a key.
pub(super) fn key(
    kind: &BodyKind,
    body: &[u8],
    pointers: &[Pointer],
    bytes_max: Option<usize>,
) -> Result<Option<Key>, RequestRefusal> {
    let found = match canonical::find_all(body, pointers) {
        Ok(found) => found,
        Err(error) if *kind == BodyKind::Json || looks_like_json(body) => {
            return Err(RequestRefusal::detailed(Problem::BodyMalformed, error.to_string()));
        }
        Err(_) => return Ok(None),
    };
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let alone = pointers.len() == 1;
    let mut members = Vec::with_capacity(found.len());
    for (pointer, value) in pointers.iter().zip(&found) {
        members.push(match value {
            None => return Err(incomplete(pointers, pointer)),
            Some(Value::Null) if !alone => None,
            Some(Value::Null | Value::Other) => return Err(no_scalar(pointer)),
            Some(value) => value.text(),
        });
    }
    if let ([Some(text)], Some(max)) = (&members[..], bytes_max)
        && text.len() > max
    {
        let (length, named) = (text.len(), named(pointers));
        return Err(malformed(format!(
            "{named} has {length} bytes; shorten it to {max} bytes or fewer"
        )));
    }
    let key = Key::from_members(members);
    key.map(Some).map_err(|_| malformed(format!("{} must not be empty", named(pointers))))
}

fn incomplete(pointers: &[Pointer], missing: &Pointer) -> RequestRefusal {
    malformed(format!(
        "{} are the key together, and {missing} is missing; send it",
        named(pointers)
    ))
}

fn no_scalar(pointer: &Pointer) -> RequestRefusal {
    malformed(format!(
        "the member {pointer} of the body is the key; send a string, a number, true or false there"
    ))
}

/// Members as listed in a sentence.
pub(super) fn named(pointers: &[Pointer]) -> String {
    match pointers {
        [] => "no member of the body".to_owned(),
        [only] => format!("the member {only} of the body"),
        [before @ .., last] => {
            let before: Vec<&str> = before.iter().map(Pointer::as_str).collect();
            format!("the members {} and {last} of the body", before.join(", "))
        }
    }
}

fn looks_like_json(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start(), [b'{' | b'[', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pointers: &[&str], body: &str) -> Result<Option<String>, RequestRefusal> {
        find_in(&BodyKind::Json, pointers, body)
    }

    fn find_in(
        kind: &BodyKind,
        pointers: &[&str],
        body: &str,
    ) -> Result<Option<String>, RequestRefusal> {
        let pointers: Vec<_> = pointers.iter().map(|text| Pointer::parse(text).unwrap()).collect();
        Ok(key(kind, body.as_bytes(), &pointers, None)?.map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn a_key_is_any_text_or_any_other_scalar_that_says_something() {
        for (body, expected) in [
            (r#"{"id":"evt_1"}"#, "evt_1"),
            (r#"{"id":700}"#, "700"),
            (r#"{"id":1.50}"#, "1.5"),
            (r#"{"id":true}"#, "true"),
            (r#"{"id":"PO 4711/Ü"}"#, "PO%204711/%C3%9C"),
            (r#"{"id":"\u4e2d"}"#, "%E4%B8%AD"),
        ] {
            assert_eq!(find(&["/id"], body).unwrap().as_deref(), Some(expected), "{body}");
        }
        assert_eq!(find(&["/id"], "{}").unwrap(), None);
        assert_eq!(find(&[], "{}").unwrap(), None);
        for bad in [r#"{"id":null}"#, r#"{"id":""}"#, r#"{"id":[1]}"#, r#"{"id":{}}"#] {
            assert_eq!(find(&["/id"], bad).unwrap_err().problem, Problem::KeyMalformed, "{bad}");
        }
        assert_eq!(find(&["/id"], "{").unwrap_err().problem, Problem::BodyMalformed);
    }

    #[test]
    fn a_long_key_is_bounded() {
        let body = format!(r#"{{"id":"{}"}}"#, "long ".repeat(10_000));
        let found = find(&["/id"], &body).unwrap().unwrap();
        assert!(found.len() <= 255 && found.starts_with("long%20long%20"), "{found}");
        let other = format!(r#"{{"id":"{}!"}}"#, "long ".repeat(10_000));
        assert_ne!(find(&["/id"], &other).unwrap().unwrap(), found);
    }

    #[test]
    fn several_members_are_one_key_without_ambiguity() {
        let of = |a: &str, b: &str| find(&["/a", "/b"], &format!(r#"{{"a":{a},"b":{b}}}"#));
        assert_eq!(of(r#""spring cup""#, "7").unwrap().as_deref(), Some("spring%20cup,7"));
        let keys = [
            of(r#""a""#, r#""bc""#),
            of(r#""ab""#, r#""c""#),
            of(r#""abc""#, r#""""#),
            of(r#""abc""#, "null"),
            of(r#""abc""#, r#""null""#),
            of(r#""a,bc""#, r#""""#),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert!(one.is_ok() && !keys[index + 1..].contains(one), "{one:?}");
        }
        assert_eq!(of("1e2", "7"), of("100", "7.0"));
    }

    #[test]
    fn members_are_all_there_or_none() {
        let members = ["/contest", "/user", "/entry"];
        assert_eq!(find(&members, r#"{"other":1}"#).unwrap(), None);
        let refusal = find(&members, r#"{"contest":"c","entry":1}"#).unwrap_err();
        assert_eq!(refusal.problem, Problem::KeyMalformed);
        let detail = refusal.detail.unwrap();
        assert!(detail.contains("/contest, /user and /entry"), "{detail}");
        assert!(detail.contains("/user is missing"), "{detail}");
        for bad in
            [r#"{"contest":null,"user":"","entry":null}"#, r#"{"contest":[],"user":1,"entry":1}"#]
        {
            assert_eq!(find(&members, bad).unwrap_err().problem, Problem::KeyMalformed, "{bad}");
        }
    }

    #[test]
    fn a_body_of_another_type_is_read_for_its_key_if_it_can_be() {
        let find = |body| find_in(&BodyKind::Bytes, &["/id"], body).unwrap();
        assert_eq!(find(r#"{"id":"m"}"#).as_deref(), Some("m"));
        assert_eq!(find("id=m"), None);
        assert_eq!(find(""), None);
    }

    #[test]
    fn a_body_that_looks_like_json_and_is_not_may_hide_a_key() {
        for body in [r#"{"id":"a","id":"b"}"#, r#"{"id":"a","x":1,"x":2}"#, " \n{", "[{]"] {
            let asked = find_in(&BodyKind::Bytes, &["/id"], body);
            assert_eq!(asked.unwrap_err().problem, Problem::BodyMalformed, "{body}");
        }
    }
}
