//! What it costs to verify JSON Web Tokens: a thousand of them, beside as many opaque tokens.

use std::{fs, process::Command, time::Duration};

use anyhow::Context as _;
use semel_testkit::issuer::{AUDIENCE, Algorithm, ISSUER, SigningKey, claims, key_set};

use super::{JWT, semel, upstream::Upstream};
use crate::{
    http::load::{HttpLoad, HttpMeasurement, KeyPattern, Length, drive_with, each},
    measure::{ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const ROUNDS: usize = 10;
const CONNECTIONS: usize = 64;
const TOKENS: usize = 1000;

/// How callers prove who they are.
struct JwtCase {
    name: &'static str,
    /// The caller rule of the gateway.
    rule: String,
    credentials: Vec<String>,
    /// The key set, which is a file beside the configuration.
    key_set: String,
}

/// Measures both in turn, each with a new store and a new upstream in every round.
pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let subjects = [opaque(), verified()];
    let mut seen: [Vec<HttpMeasurement>; 2] = Default::default();
    for round in 0..ROUNDS {
        for at in turns(round, subjects.len()) {
            progress(&format!("{JWT}: {}, round {} of {ROUNDS}", subjects[at].name, round + 1));
            seen[at].push(measure(settings, &subjects[at]).with_context(|| subjects[at].name)?);
        }
    }
    progress_end();
    let rates = |cells: &[HttpMeasurement]| each(cells, |cell| cell.per_second);
    let cpu = |cells: &[HttpMeasurement]| each(cells, |cell| cell.server_micros);
    for (subject, cells) in subjects.iter().zip(&seen) {
        report.line(JWT, subject.name, "req/s", &rates(cells));
        report.line(JWT, format!("{}, CPU per request", subject.name), "µs", &cpu(cells));
    }
    let [opaque, verified] = &seen;
    let ratio = ratios(&rates(verified), &rates(opaque));
    report.judge(JWT, "verified / opaque", "x", &ratio, Target::AtLeast(0.9));
    let ratio = ratios(&cpu(verified), &cpu(opaque));
    report.line(JWT, "CPU, verified / opaque", "x", &ratio);
    report.note(format!(
        "Both subjects of {JWT} send {TOKENS} distinct credentials at random over {CONNECTIONS} \
         connections, each request with a new key, in {ROUNDS} interleaved rounds. The verified \
         ones are RS256 tokens with a key of 2048 bits; the longer header is part of the cost."
    ));
    Ok(())
}

fn opaque() -> JwtCase {
    let token = |number| format!("Bearer sk_live_{number:032}");
    JwtCase {
        name: "opaque bearer",
        rule: "\"authorization\"".to_owned(),
        credentials: (0..TOKENS).map(token).collect(),
        key_set: String::new(),
    }
}

fn verified() -> JwtCase {
    let key = SigningKey::generate("k", Algorithm::RS256);
    let token = |number| format!("Bearer {}", key.sign(&claims(&format!("customer-{number}"))));
    JwtCase {
        name: "verified JWT",
        rule: format!(
            "{{ jwt = {{ jwks = \"jwks.json\", issuer = \"{ISSUER}\", \
             audience = \"{AUDIENCE}\" }} }}"
        ),
        credentials: (0..TOKENS).map(token).collect(),
        key_set: key_set(&[&key]),
    }
}

fn measure(settings: &Settings, subject: &JwtCase) -> anyhow::Result<HttpMeasurement> {
    let folder = files::scratch_folder(settings)?;
    fs::write(folder.path().join("jwks.json"), &subject.key_set)?;
    let upstream = Upstream::start(Duration::ZERO)?;
    let (_semel, site) = semel::start_with(
        Command::new(&settings.program),
        &upstream,
        folder.path(),
        &subject.rule,
    )?;
    let (warm_up, length) = settings.cell();
    let (warm_up, length) = (warm_up * 2, Length::Time(length));
    let load = HttpLoad { connections: CONNECTIONS, keys: KeyPattern::New, warm_up, length };
    drive_with(&site, load, &subject.credentials)
}
