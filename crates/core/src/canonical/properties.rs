//! Documents as values, spelled at random: equal values have one canonical text, different ones
//! have different texts.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::{JsonErrorKind, Pointer, json_text, redact};

/// A document as what it means. Strings are UTF-16, so that a lone surrogate is a value too.
#[derive(Clone, Debug, PartialEq)]
enum Doc {
    Literal(&'static str),
    /// Digits without zeros at either end, and a power of ten.
    Number(bool, String, i64),
    String(Vec<u16>),
    Array(Vec<Self>),
    Object(BTreeMap<Vec<u16>, Self>),
}

fn string() -> impl Strategy<Value = Vec<u16>> {
    let unit = prop_oneof![
        4 => any::<char>().prop_map(|c| c.encode_utf16(&mut [0; 2])[0]),
        4 => 0x61..0x64_u16,
        2 => 0..0x30_u16,
        1 => 0xD7FE..0xE002_u16,
    ];
    prop::collection::vec(unit, 0..6)
}

fn number() -> impl Strategy<Value = Doc> {
    let significant = r"[1-9]|[1-9][0-9]{0,20}[1-9]";
    prop_oneof![
        1 => Just(Doc::Number(false, "0".to_owned(), 0)),
        4 => (any::<bool>(), significant, -30..30_i64).prop_map(|(n, d, e)| Doc::Number(n, d, e)),
        1 => (any::<bool>(), significant, -99_999_999_999..99_999_999_999_i64)
            .prop_map(|(n, d, e)| Doc::Number(n, d, e)),
    ]
}

fn document() -> impl Strategy<Value = Doc> {
    let leaf = prop_oneof![
        prop::sample::select(&["true", "false", "null"]).prop_map(Doc::Literal),
        number(),
        string().prop_map(Doc::String),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Doc::Array),
            prop::collection::btree_map(string(), inner, 0..6).prop_map(Doc::Object),
        ]
    })
}

/// A source of choices that a seed determines.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn space(&mut self, out: &mut String) {
        for _ in 0..self.roll(6).saturating_sub(3) {
            out.push([' ', '\t', '\n', '\r'][self.roll(4) as usize]);
        }
    }

    fn spell(&mut self, doc: &Doc, out: &mut String) {
        self.space(out);
        match doc {
            Doc::Literal(text) => out.push_str(text),
            Doc::Number(negative, digits, exponent) => {
                self.number(*negative, digits, *exponent, out);
            }
            Doc::String(units) => self.string(units, out),
            Doc::Array(elements) => {
                out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.spell(element, out);
                }
                self.space(out);
                out.push(']');
            }
            Doc::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                for last in (1..members.len()).rev() {
                    members.swap(last, self.roll(last as u64 + 1) as usize);
                }
                out.push('{');
                for (index, (name, value)) in members.into_iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.space(out);
                    self.string(name, out);
                    self.space(out);
                    out.push(':');
                    self.spell(value, out);
                }
                self.space(out);
                out.push('}');
            }
        }
        self.space(out);
    }

    fn string(&mut self, units: &[u16], out: &mut String) {
        out.push('"');
        for unit in char::decode_utf16(units.iter().copied()) {
            let Ok(character) = unit else {
                let unit = unit.unwrap_err().unpaired_surrogate();
                self.escape(unit, out);
                continue;
            };
            let short = "\"\"\\\\//b\u{8}f\u{c}n\nr\rt\t".as_bytes().chunks(2);
            let mut short = short.map(|pair| (pair[0], char::from(pair[1])));
            let short = short.find(|pair| pair.1 == character);
            match (self.roll(3), short) {
                (0, Some((sign, _))) => out.extend(['\\', char::from(sign)]),
                (1, _) if character >= ' ' && character != '"' && character != '\\' => {
                    out.push(character);
                }
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.escape(*unit, out);
                    }
                }
            }
        }
        out.push('"');
    }

    fn escape(&mut self, unit: u16, out: &mut String) {
        let hex = if self.roll(2) == 0 { format!("{unit:04x}") } else { format!("{unit:04X}") };
        out.push_str("\\u");
        out.push_str(&hex);
    }

    /// The digits with zeros added at the end and a point put somewhere.
    fn number(&mut self, negative: bool, digits: &str, exponent: i64, out: &mut String) {
        let is_zero = digits == "0";
        if negative || (is_zero && self.roll(2) == 0) {
            out.push('-');
        }
        let zeros = self.roll(3);
        let mut digits = format!("{digits}{}", "0".repeat(zeros as usize));
        let mut exponent = exponent - zeros as i64;
        let behind = self.roll(digits.len() as u64 + 3);
        exponent += behind as i64;
        while digits.len() as u64 <= behind {
            digits.insert(0, '0');
        }
        let (whole, fraction) = digits.split_at(digits.len() - behind as usize);
        let whole = whole.trim_start_matches('0');
        out.push_str(if whole.is_empty() { "0" } else { whole });
        if !fraction.is_empty() {
            out.push('.');
            out.push_str(fraction);
        }
        if exponent != 0 || self.roll(2) == 0 {
            let sign = if exponent < 0 { "-" } else { ["", "+"][self.roll(2) as usize] };
            let zeros = "0".repeat(self.roll(3) as usize);
            out.push(['e', 'E'][self.roll(2) as usize]);
            out.push_str(&format!("{sign}{zeros}{}", exponent.unsigned_abs()));
        }
    }
}

fn spelled(doc: &Doc, seed: u64) -> String {
    let mut out = String::new();
    Dice(seed).spell(doc, &mut out);
    out
}

fn leaves<'a>(doc: &'a mut Doc, found: &mut Vec<&'a mut Doc>) {
    match doc {
        Doc::Array(elements) => elements.iter_mut().for_each(|doc| leaves(doc, found)),
        Doc::Object(members) => members.values_mut().for_each(|doc| leaves(doc, found)),
        Doc::Literal(_) | Doc::Number(..) | Doc::String(_) => found.push(doc),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_spelling_of_a_document_has_the_same_text(doc in document(), a: u64, b: u64) {
        let (a, b) = (spelled(&doc, a), spelled(&doc, b));
        prop_assert_eq!(json_text(a.as_bytes()), json_text(b.as_bytes()), "{}\n{}", a, b);
        prop_assert!(json_text(a.as_bytes()).is_ok());
    }

    #[test]
    fn different_documents_have_different_texts(a in document(), b in document(), seed: u64) {
        let texts = [&a, &b].map(|doc| json_text(spelled(doc, seed).as_bytes()).unwrap());
        prop_assert_eq!(a == b, texts[0] == texts[1]);
    }

    #[test]
    fn changing_one_leaf_changes_the_text(
        doc in document(), leaf in number(), pick: prop::sample::Index, seed: u64,
    ) {
        let mut other = doc.clone();
        let mut found = Vec::new();
        leaves(&mut other, &mut found);
        if !found.is_empty() {
            let index = pick.index(found.len());
            *found[index] = leaf;
        }
        let same = doc == other;
        let texts = [&doc, &other].map(|doc| json_text(spelled(doc, seed).as_bytes()).unwrap());
        prop_assert_eq!(same, texts[0] == texts[1]);
    }

    #[test]
    fn the_canonical_text_is_its_own(doc in document(), seed: u64) {
        let once = json_text(spelled(&doc, seed).as_bytes()).unwrap();
        prop_assert_eq!(json_text(&once).unwrap(), once);
    }

    #[test]
    fn redacting_a_value_changes_that_value_only(
        before in document(), value in document(), after in document(), seed: u64,
    ) {
        let around = |value| Doc::Array(vec![before.clone(), value, after.clone()]);
        let body = spelled(&around(value.clone()), seed);
        let redacted = redact(body.as_bytes(), &[Pointer::parse("/1").unwrap()]).unwrap();
        let expected = around(Doc::String("[redacted]".encode_utf16().collect()));
        let expected = json_text(spelled(&expected, seed).as_bytes()).unwrap();
        prop_assert_eq!(json_text(&redacted.unwrap()).unwrap(), expected);
    }

    #[test]
    fn random_text_is_accepted_exactly_when_serde_json_accepts_it(
        pieces in prop::collection::vec(
            prop_oneof![
                r#"\[|\]|\{|\}|,|:|"|"a"| |\n"#,
                r#""\\u00"|\\u[dD]8[0-9]{2}|\\[nx"]|é"#,
                r"-|0|[1-9]|\.5|e|E\+|true|null|nul",
            ],
            0..14,
        ),
    ) {
        agrees_with_serde_json(&pieces.concat());
    }

    #[test]
    fn a_document_with_one_byte_changed_is_accepted_exactly_when_serde_json_accepts_it(
        doc in document(), seed: u64, at: prop::sample::Index, byte in 0..0x80_u8,
    ) {
        let mut body = spelled(&doc, seed).into_bytes();
        let at = at.index(body.len());
        body[at] = byte;
        if let Ok(body) = String::from_utf8(body) {
            agrees_with_serde_json(&body);
        }
    }

    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = json_text(&body);
    }
}

/// The documented differences: equal names, and an exponent out of range. (Ignoring values,
/// `serde_json` looks at their grammar only, at any depth.)
fn agrees_with_serde_json(body: &str) {
    let theirs = serde_json::from_str::<IgnoredAny>(body).is_ok();
    match json_text(body.as_bytes()) {
        Ok(_) => assert!(theirs, "{body}"),
        // Either may be found before a later error of the grammar.
        Err(error)
            if matches!(error.kind(), JsonErrorKind::DuplicateName | JsonErrorKind::Exponent) => {}
        Err(error) => assert!(!theirs, "{body}: {error}"),
    }
}
