//! `semel config` through the real program: reports, tables and generated files, byte for byte.
//!
//! Each `config/bad/NAME.toml` has the report that it must get in `NAME.txt`. After a change that
//! is meant, in that folder: `export SHORT=hunter2 EMPTY= SPACES="hunter2 hunter2 hunter2"
//! HOOK_SECRET=0123456789abcdef! STRIPE_WEBHOOK_SECRET=0123456789abcdef; for f in *.toml; do semel
//! config check $f 2> ${f%.toml}.txt; done`, and read the difference.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

#[path = "common/command.rs"]
mod command;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use crate::command::semel_command;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/tests/files").join(name)
}

fn semel(folder: &Path, args: &[&str]) -> Output {
    semel_command()
        .args(args)
        .current_dir(folder)
        .env_clear()
        .env("SHORT", "hunter2")
        .env("EMPTY", "")
        .env("SPACES", "hunter2 hunter2 hunter2")
        .env("SEMEL_SECRET", "a secret that is long enough")
        .env("SEMEL_OPERATOR_TOKEN", "a-token-that-is-long-enough")
        .env("STRIPE_WEBHOOK_SECRET", "whsec_that is long enough")
        .env("GITHUB_WEBHOOK_SECRET", "a hook's secret that is long enough")
        .env("MAIL_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .env("SHOPIFY_SECRET", "a hook's secret that is long enough")
        .env("SLACK_SIGNING_SECRET", "a hook's secret that is long enough")
        .env("JOBS_TOKEN", "the-token-of-the-jobs")
        .env("JOBS_TOKEN_BEFORE", "the-former-token-of-the-jobs")
        .env("HOOK_SECRET", "a hook's secret that is long enough")
        .env("NEXT_HOOK_SECRET", "another secret that is long enough")
        .output()
        .unwrap()
}

fn stdout(folder: &Path, args: &[&str]) -> String {
    let output = semel(folder, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_bad_file_gets_its_report_and_exit_code_64() {
    let folder = folder("bad");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_name().unwrap().to_str().unwrap();
            let output = semel(&folder, &["config", "check", name]);
            let report = String::from_utf8(output.stderr).unwrap();
            let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
            assert_eq!(report, expected, "{name}");
            assert!(!report.contains("hunter2"), "{name} shows a secret:\n{report}");
            assert_eq!(output.status.code(), Some(64), "{name}");
            assert_eq!(output.stdout, b"", "{name}");
            count += 1;
        }
    }
    assert!(count >= 30, "only {count} files");
}

#[test]
fn a_good_configuration_is_answered_with_what_it_guards() {
    let good = folder("good");
    let expected = |name: &str| fs::read_to_string(good.join(name)).unwrap();
    assert_eq!(stdout(&good, &["config", "check", "full.toml"]), expected("full.check.txt"));
    let args = ["config", "check", "--upstream", "http://a:1", "--caller", "header=X-Merchant-Id"];
    assert_eq!(stdout(&good, &args), expected("none.check.txt"));
}

#[test]
fn a_missing_folder_of_a_store_argument_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--upstream", "http://a", "--store", "sqlite:none/semel.db"];
    for command in [&["config", "check"][..], &["serve"]] {
        let output = semel(folder.path(), &[command, &args].concat());
        let report = String::from_utf8(output.stderr).unwrap();
        let expected = "--store: the folder none does not exist; create it first\n";
        assert!(report.starts_with(expected), "{report}");
        assert_eq!(output.status.code(), Some(64), "{command:?}");
    }
}

#[test]
fn a_drain_that_may_cut_off_an_answer_is_noted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let upstream = |drain: &str| format!("[gateway]\nupstream = \"http://a\"\ndrain = {drain}\n");
    let check = |text: String| {
        fs::write(&file, text).unwrap();
        stdout(Path::new("."), &["config", "check", file.path().to_str().unwrap()])
    };
    let note = "\nnote: `drain` is 59s, and http://a may take 1m to answer: requests in flight \
                at shutdown may be cut off, and their outcome is then unknown\n";
    assert!(check(upstream("\"59s\"")).ends_with(note));
    assert!(!check(upstream("\"1m\"")).contains("note:"));
}

/// As `keep` is narrowed there, the words of the route show what really happens.
#[test]
fn a_decline_under_a_key_that_proves_nothing_is_shown_as_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let effects = |lines: &str| {
        let route = format!(
            "[[route]]\nmatch = \"POST /entries\"\nscope = \"s\"\n\
             key = {{ json = \"/id\" }}\ncaller = [\"anonymous\"]\n{lines}"
        );
        fs::write(folder.path().join("semel.toml"), route).unwrap();
        let args = ["config", "check", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
        stdout(folder.path(), &args)
    };
    let narrowed = effects("");
    let retry = "nothing is recorded; a retry of the same request runs";
    assert!(
        narrowed
            .lines()
            .any(|line| { line.trim_start().starts_with("402, 429 ") && line.ends_with(retry) }),
        "{narrowed}"
    );
    let written = effects("keep = \"deterministic\"\n");
    assert!(written.contains("\n  200, 402 "), "{written}");
}

#[test]
fn the_command_line_counts_for_what_is_printed() {
    let args = ["config", "print", "design.toml", "--store", "memory:", "--api", "off"];
    let printed = stdout(&folder("good"), &args);
    assert!(printed.starts_with("store = \"memory:\"\n"), "{printed}");
    assert!(printed.contains("\n[api]\nlisten = \"off\"\n"), "{printed}");
}

#[test]
fn a_printed_configuration_prints_identically() {
    let temporary = tempfile::tempdir().unwrap();
    for name in ["design.toml", "full.toml"] {
        let printed = stdout(&folder("good"), &["config", "print", name]);
        let copy = temporary.path().join(name);
        fs::write(&copy, &printed).unwrap();
        let again = stdout(temporary.path(), &["config", "print", copy.to_str().unwrap()]);
        assert_eq!(again, printed, "{name}");
        assert!(!printed.contains("long enough") && !printed.contains("long-enough"), "{printed}");
    }
}

#[test]
fn the_generated_files_are_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (command, name) in [("default", "config.default.toml"), ("schema", "config.schema.json")] {
        let made = stdout(&root, &["config", command]);
        let kept = fs::read_to_string(root.join(name)).unwrap_or_default();
        assert!(made == kept, "{name} is stale; run: semel config {command} > {name}");
    }
}

#[test]
fn the_configuration_in_the_guide_to_deadlines_is_valid() {
    let guide = include_str!("../../../docs/guide/deadlines.md");
    let folder = tempfile::tempdir().unwrap();
    let snippets = guide.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    for (index, snippet) in snippets.enumerate() {
        fs::write(folder.path().join("semel.toml"), snippet).unwrap();
        let args = ["config", "print", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
        let printed = stdout(folder.path(), &args);
        let propagates = format!("propagate = {}", index == 1);
        assert!(printed.contains(&propagates), "{printed}");
    }
}

#[test]
fn the_configuration_in_the_guide_to_issued_keys_is_valid() {
    let guide = include_str!("../../../docs/guide/issued-keys.md");
    let folder = tempfile::tempdir().unwrap();
    let (_, rest) = guide.split_once("```toml\n").unwrap();
    fs::write(folder.path().join("semel.toml"), rest.split("```").next().unwrap()).unwrap();
    let args = ["config", "print", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
    let printed = stdout(folder.path(), &args);
    assert!(printed.contains("token = \"required\""), "{printed}");
}

#[test]
fn the_configuration_in_the_guide_to_unknown_outcomes_is_valid() {
    let guide = include_str!("../../../docs/guide/unknown-outcomes.md");
    let folder = tempfile::tempdir().unwrap();
    let (_, rest) = guide.split_once("```toml\n").unwrap();
    fs::write(folder.path().join("semel.toml"), rest.split("```").next().unwrap()).unwrap();
    let args = ["config", "print", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
    let printed = stdout(folder.path(), &args);
    assert!(printed.contains("settles_within = \"10m\""), "{printed}");
}

#[test]
fn the_configuration_in_the_guides_to_dialects_is_valid() {
    let guides = [
        include_str!("../../../docs/guide/stripe-sdks.md"),
        include_str!("../../../docs/guide/client-errors.md"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for guide in guides {
        let (_, rest) = guide.split_once("```toml\n").unwrap();
        fs::write(folder.path().join("semel.toml"), rest.split("```").next().unwrap()).unwrap();
        let args = ["config", "check", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
        let checked = stdout(folder.path(), &args);
        assert!(checked.contains("errors of Semel: stripe"), "{checked}");
        assert!(checked.contains("outcome-unknown is 400"), "{checked}");
    }
}

#[test]
fn the_configuration_in_the_guide_to_webhooks_is_valid() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/webhooks.md");
    let guide = fs::read_to_string(guide).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for file in ["stripe.secret", "stripe.secret.next"] {
        fs::write(folder.path().join(file), "whsec_that is long enough").unwrap();
    }
    let snippets = guide.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut routes = 0;
    for snippet in snippets {
        fs::write(folder.path().join("semel.toml"), snippet).unwrap();
        let args = ["config", "check", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
        let guarded = stdout(folder.path(), &args);
        let signed = snippet.matches("scheme = ").count();
        assert_eq!(guarded.matches("signed ").count(), signed, "{guarded}");
        routes += snippet.matches("[[route]]").count();
    }
    assert!(routes >= 7, "only {routes}");
}

#[test]
fn each_configuration_in_the_guide_to_tenants_is_a_good_one() {
    let guide = include_str!("../../../docs/guide/tenants.md");
    let shown = guide.split("```toml\n").skip(1).map(|rest| rest.split_once("```\n").unwrap().0);
    let folder = tempfile::tempdir().unwrap();
    let tables: Vec<String> = shown
        .map(|text| {
            fs::write(folder.path().join("semel.toml"), text).unwrap();
            let args = ["config", "check", "semel.toml", "--upstream", "http://127.0.0.1:3000"];
            stdout(folder.path(), &args)
        })
        .collect();
    assert_eq!(tables.len(), 9);
    assert!(tables[0].contains("authorization + host"), "{}", tables[0]);
    assert!(tables[2].contains("authorization + header stripe-account (optional)"));
    assert!(tables[6].contains("json /contest + /user + /entry (required)"), "{}", tables[6]);
}

#[test]
fn each_configuration_in_the_guide_to_callers_is_a_good_one() {
    let guide = include_str!("../../../docs/guide/callers.md");
    let shown = guide.split("```toml\n").skip(1).map(|rest| rest.split_once("```\n").unwrap().0);
    let folder = tempfile::tempdir().unwrap();
    for file in ["jwks.json", "cert.pem", "key.pem", "client-ca.pem"] {
        fs::write(folder.path().join(file), "").unwrap();
    }
    let tables: Vec<String> = shown
        .map(|text| {
            fs::write(folder.path().join("semel.toml"), text).unwrap();
            let output = semel_command()
                .current_dir(folder.path())
                .args(["config", "check", "semel.toml", "--upstream", "http://127.0.0.1:3000"])
                .env("JWT_SECRET", "0123456789abcdef0123456789abcdef")
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    let rules = [
        "jwt /sub of https://issuer.example",
        "jwt /tenant/id of https://issuer.example",
        "jwt /sub of https://issuer.example",
        "client certificate san",
        "header x-merchant-id from 10.0.0.0/8 or 2001:db8::/32",
    ];
    assert_eq!(tables.len(), rules.len());
    for (table, rule) in tables.iter().zip(rules) {
        assert!(table.contains(rule), "{table}");
    }
}

#[test]
fn the_session_in_the_guide_to_callers_prints_what_it_shows() {
    let guide = include_str!("../../../docs/guide/callers.md");
    let (_, table) = guide.split_once("```toml\n").unwrap();
    let (_, session) = guide.split_once("```console\n$ semel ").unwrap();
    let (command, shown) = session.split_once(" < token.txt\n").unwrap();
    let (shown, _) = shown.split_once("$ semel list").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let gateway = "[gateway]\nupstream = \"http://127.0.0.1:3000\"\n";
    write("semel.toml", &[gateway, table.split_once("```\n").unwrap().0].concat());
    // Issuer, audience and subject of the guide, without a signature: none is verified.
    let claims =
        r#"{"iss":"https://issuer.example","aud":"payments","sub":"zoe","exp":4102444800}"#;
    let part = |text: &str| data_encoding::BASE64URL_NOPAD.encode(text.as_bytes());
    write("token.txt", &[&part(r#"{"alg":"RS256"}"#), &part(claims), "c2ln"].join("."));
    let output = semel_command()
        .current_dir(folder.path())
        .args(command.split_whitespace())
        .stdin(fs::File::open(folder.path().join("token.txt")).unwrap())
        .output()
        .unwrap();
    let printed = [output.stderr, output.stdout].concat();
    assert_eq!(String::from_utf8(printed).unwrap(), shown);
}

#[test]
fn each_configuration_in_the_guide_to_browsers_is_a_good_one() {
    let guide = include_str!("../../../docs/guide/browsers.md");
    let folder = tempfile::tempdir().unwrap();
    let shown = guide.split("```toml\n").skip(1).map(|rest| rest.split_once("```\n").unwrap().0);
    for text in shown {
        let text = format!("[gateway]\nupstream = \"http://127.0.0.1:3000\"\n\n{text}");
        fs::write(folder.path().join("semel.toml"), text).unwrap();
        let output = semel(folder.path(), &["config", "check", "semel.toml"]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn each_configuration_in_the_guide_to_rolling_it_out_is_a_good_one() {
    let guide = include_str!("../../../docs/guide/rolling-it-out.md");
    let shown: Vec<&str> = guide
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split_once("```\n").expect("it ends").0)
        .collect();
    assert_eq!(shown.len(), 6);
    let folder = tempfile::tempdir().unwrap();
    let tables = shown.iter().map(|text| {
        fs::write(folder.path().join("semel.toml"), text).unwrap();
        stdout(folder.path(), &["config", "check", "semel.toml"])
    });
    let tables: Vec<String> = tables.collect();
    let observed = tables.iter().map(|table| table.contains(" (observed)"));
    assert_eq!(observed.collect::<Vec<_>>(), [true, true, true, false, false, false]);
    assert!(tables[3].contains("idempotency-key (warn)"), "{}", tables[3]);
    assert!(tables[4].contains("idempotency-key (required)"), "{}", tables[4]);
}
