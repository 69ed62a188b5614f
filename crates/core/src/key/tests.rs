//! Keys by example, and compared with another structured-field parser.

use proptest::prelude::*;
use sfv::{BareItem, Item, Parser};

use super::{Key, KeyError};

fn read(line: &str) -> Result<Option<Key>, KeyError> {
    Key::from_header([line.as_bytes()])
}

fn key(text: &str) -> Result<Option<Key>, KeyError> {
    Ok(Some(Key::new(text).unwrap()))
}

#[test]
fn no_line_is_no_key() {
    assert_eq!(Key::from_header([]), Ok(None));
}

#[test]
fn quoted_and_bare_are_the_same_key() {
    assert_eq!(read(r#""abc""#), key("abc"));
    assert_eq!(read("abc"), key("abc"));
    assert_eq!(read("\t abc \t"), key("abc"));
    assert_eq!(read(" \"abc\"\t"), key("abc"));
}

#[test]
fn two_lines_are_refused_even_when_they_are_equal() {
    let lines = [b"abc".as_slice(), b"abc".as_slice()];
    assert_eq!(Key::from_header(lines), Err(KeyError::Repeated));
}

#[test]
fn a_list_is_refused_in_both_forms() {
    assert_eq!(read("a,b"), Err(KeyError::List));
    assert_eq!(read("a, \"b\""), Err(KeyError::List));
    assert_eq!(read(r#""a", "b""#), Err(KeyError::Trailing));
}

#[test]
fn an_empty_value_is_malformed_and_not_absent() {
    for line in ["", "  ", "\t", "\"\"", "\"\";a=1"] {
        assert_eq!(read(line), Err(KeyError::Empty), "{line:?}");
    }
}

#[test]
fn the_limit_is_255_characters_after_unescaping() {
    let longest = "k".repeat(255);
    assert_eq!(read(&longest), key(&longest));
    assert_eq!(read(&format!("\"{longest}\"")), key(&longest));
    assert_eq!(read(&format!("{longest}k")), Err(KeyError::TooLong { length: 256 }));
    let escaped = "\\\"".repeat(255);
    assert_eq!(read(&format!("\"{escaped}\"")), key(&"\"".repeat(255)));
}

#[test]
fn a_space_or_anything_outside_visible_ascii_is_refused() {
    assert_eq!(read("a b"), Err(KeyError::Character { byte: b' ', position: 2 }));
    assert_eq!(read("\"a b\""), Err(KeyError::Character { byte: b' ', position: 2 }));
    assert_eq!(read("é"), Err(KeyError::Character { byte: 0xC3, position: 1 }));
    assert_eq!(read("\"é\""), Err(KeyError::Character { byte: 0xC3, position: 1 }));
    for byte in (0..=b' ').chain(0x7F..=0xFF) {
        for line in [vec![b'a', byte, b'b'], vec![b'"', b'a', byte, b'b', b'"']] {
            let refused = Err(KeyError::Character { byte, position: 2 });
            assert_eq!(Key::from_header([line.as_slice()]), refused);
        }
    }
}

#[test]
fn only_two_escapes_exist() {
    assert_eq!(read(r#""a\"b\\c""#), key(r#"a"b\c"#));
    assert_eq!(read(r#""a\nb""#), Err(KeyError::Escape));
    assert_eq!(read(r#""a\"#), Err(KeyError::Unterminated));
    assert_eq!(read(r#""a"#), Err(KeyError::Unterminated));
    assert_eq!(read(r#"a"b"#), Err(KeyError::Quote));
}

#[test]
fn parameters_are_parsed_and_ignored() {
    for parameters in [
        ";a",
        "; a=1;b=-1.5",
        ";a=token/x:y;*b=?0",
        ";a=\"x\\\"\";b=:aGk=:",
        ";a=:aGk:",
        ";a=@1659578233",
        ";a=%\"f%c3%bc\"",
        ";a=::",
    ] {
        assert_eq!(read(&format!("\"k\"{parameters}")), key("k"), "{parameters}");
    }
    for parameters in [
        ";",
        ";A=1",
        ";a=",
        ";a=1.",
        ";a=-",
        ";a=1.2345",
        ";a=?2",
        ";a=@1.5",
        ";a=:a:",
        ";a=%\"%C3\"",
        ";a=%\"%c3\"",
        ";a=:aGk==:",
        ";a=\"x",
        ";=1",
        ";a=1234567890123456",
        ";a=1234567890123.1",
    ] {
        assert_eq!(read(&format!("\"k\"{parameters}")), Err(KeyError::Parameter), "{parameters}");
    }
    for trailing in ["x", " ;a", ";a x", ";a=1 ;b", ";a,", "\"\""] {
        assert_eq!(read(&format!("\"k\"{trailing}")), Err(KeyError::Trailing), "{trailing}");
    }
}

#[test]
fn a_bare_key_is_opaque() {
    for text in ["a;b=1", "?1", ":aGk=:", "a=b", "a\\b", "(x)", "1.5", "{}"] {
        assert_eq!(read(text), key(text));
    }
}

#[test]
fn the_message_tells_what_to_do() {
    let message = read("a b").unwrap_err().to_string();
    assert!(message.contains("0x20") && message.contains("visible ASCII"), "{message}");
}

/// What an independent reading of RFC 9651 makes of a value that starts with a quote.
fn oracle(value: &[u8]) -> Option<String> {
    let item: Item = Parser::new(value).parse().ok()?;
    let BareItem::String(text) = item.bare_item else { return None };
    let text = text.as_str().to_owned();
    let fits = (1..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    fits.then_some(text)
}

fn agrees_with_the_oracle(value: &[u8]) {
    let trimmed = super::trim(value);
    let ours = Key::from_header([value]).ok().map(|key| key.unwrap().as_str().to_owned());
    assert_eq!(ours, oracle(trimmed), "{:?}", String::from_utf8_lossy(value));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_bytes_after_a_quote_agree_with_the_oracle(
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        agrees_with_the_oracle(&[b"\"".as_slice(), &tail].concat());
    }

    #[test]
    fn likely_text_after_a_quote_agrees_with_the_oracle(
        text in r#"([a-c!~]|\\"|\\\\|\\n| ){0,8}"#,
        tail in r#"(;|=|[ab*A]|"|:|@|%|\?|[0-9]{1,14}|\.|-|aGk|,| |%22|%c3%bc|\\){0,12}"#,
    ) {
        agrees_with_the_oracle(format!("\"{text}\"{tail}").as_bytes());
    }

    #[test]
    fn well_formed_parameters_agree_with_the_oracle(
        parameters in prop::collection::vec(
            (
                "; ?[a*][a-z0-9_.*-]{0,3}",
                prop_oneof![
                    "",
                    r"=-?[0-9]{1,16}(\.[0-9]{0,4})?",
                    r#"=([A*]!:/|"[ab]?"|\?[01]|@-?[0-9]{1,3})"#,
                    "=:[aA+/]{0,5}=?=?:",
                    r#"=%"(%[c9][3f0]|a){0,3}""#,
                ],
            ),
            1..4,
        ),
    ) {
        let tail: String = parameters.into_iter().map(|(name, value)| name + &value).collect();
        agrees_with_the_oracle(format!("\"k\"{tail}").as_bytes());
    }

    #[test]
    fn every_key_survives_its_header(text in "[!-~]{1,255}") {
        let key = Key::new(&text).unwrap();
        prop_assert_eq!(read(&key.to_header()), Ok(Some(key)));
    }

    #[test]
    fn a_bare_value_is_taken_as_it_is(text in r"[!#-+\--~]{1,255}") {
        prop_assert_eq!(read(&text), key(&text));
    }

    #[test]
    fn one_line_is_never_absent(line in prop::collection::vec(any::<u8>(), 0..30)) {
        prop_assert_ne!(Key::from_header([line.as_slice()]), Ok(None));
    }
}
