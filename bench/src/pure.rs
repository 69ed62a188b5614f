//! The benchmark `core`: what the pure parts cost, on one thread.

use std::{fmt::Write as _, hint::black_box, time::Duration};

use anyhow::Context as _;
use semel_core::{
    Answer, Field, Key, StoredResponse,
    fingerprint::{BodyKind, Fingerprint, FingerprintInput, FingerprintRule},
};

use crate::{
    measure::nanos_per_call,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

const PART: &str = "core";

pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let body = payment_of_a_kilobyte()?;
    let rule = FingerprintRule::default();
    let meaning = |kind| FingerprintInput {
        kind,
        body: body.as_bytes(),
        ..FingerprintInput::new("POST", "/charges")
    };
    let (json, bytes) = (meaning(BodyKind::Json), meaning(BodyKind::Bytes));
    let letter =
        format!("{{\"to\": \"zoe@example.org\", \"text\": \"{}\"}}", "Dear Zoe, ".repeat(100));
    let text = FingerprintInput { body: letter.as_bytes(), ..json.clone() };
    Fingerprint::of(&json, &rule).context("the body is good JSON")?;
    let response = response();
    let answer = Answer::response(&response);
    let header = "\"8e03978e-40d5-43e8-bc93-6894a57f9324\"".as_bytes();
    Key::from_header([header]).context("the header is good")?;

    let length = Duration::from_millis(settings.or_quick(300, 30));
    let mut rounds = [const { Vec::new() }; 6];
    for round in 1..=settings.rounds() {
        progress(&format!("{PART}: round {round}"));
        let micros = [
            nanos_per_call(length, || Fingerprint::of(black_box(&json), &rule)),
            nanos_per_call(length, || Fingerprint::of(black_box(&text), &rule)),
            nanos_per_call(length, || Fingerprint::of(black_box(&bytes), &rule)),
            nanos_per_call(length, || Answer::response(black_box(&response))),
            nanos_per_call(length, || black_box(&answer).read()),
            nanos_per_call(length, || Key::from_header([black_box(header)])),
        ];
        rounds.iter_mut().zip(micros).for_each(|(rounds, nanos)| rounds.push(nanos / 1e3));
    }
    progress_end();
    let [json, text, bytes, encode, decode, key] = &rounds;
    let size = body.len();
    let what = format!("canonicalise and hash {size} bytes of JSON");
    report.judge(PART, what, "µs", json, Target::Below(5.0));
    report.line(PART, format!("the same for {} bytes of mostly text", letter.len()), "µs", text);
    report.line(PART, format!("hash {size} bytes as they are"), "µs", bytes);
    report.line(PART, "encode an answer of 500 bytes and 4 headers", "µs", encode);
    report.line(PART, "decode it", "µs", decode);
    report.line(PART, "read a key from its header", "µs", key);
    Ok(())
}

/// A request such as a shop sends: nested, with numbers, escapes and a few letters beyond ASCII.
fn payment_of_a_kilobyte() -> anyhow::Result<String> {
    let mut body = String::from(
        "{\"amount\": 12990, \"currency\": \"eur\", \"capture\": true, \"rate\": 0.19, \
         \"customer\": {\"name\": \"Zoë Ångström\", \"email\": \"zoe@example.org\", \
         \"address\": {\"street\": \"Main \\\"Old\\\" Street 7\", \"zip\": \"01067\"}}, \
         \"items\": [",
    );
    for item in 0..12 {
        let comma = if item > 0 { ", " } else { "" };
        let price = item * 7;
        write!(
            body,
            "{comma}{{\"sku\": \"A-{item:05}\", \"quantity\": {item}, \"price\": {price}.5, \
             \"note\": null}}",
        )?;
    }
    body.push_str("], \"memo\": \"");
    let rest = 1022_usize.saturating_sub(body.len());
    body.extend(std::iter::repeat_n('.', rest));
    body.push_str("\"}");
    Ok(body)
}

fn response() -> StoredResponse {
    let headers = [
        ("content-type", "application/json"),
        ("location", "/charges/ch_8e03978e40d543e8"),
        ("x-request-id", "6894a57f9324"),
        ("cache-control", "no-store"),
    ];
    let headers = headers.map(|(name, value)| Field::new(name, value)).to_vec();
    StoredResponse { status: 201, headers, body: vec![b'x'; 500].into(), ..Default::default() }
}
