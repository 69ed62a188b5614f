//! The generated file shows the real defaults, and every line of it is valid.

use std::path::Path;

use super::*;
use crate::{Config, ConfigError, Overrides};

fn load(source: &str) -> Result<Config, ConfigError> {
    let overrides =
        Overrides { upstream: Some("https://127.0.0.1:3000".into()), ..Overrides::default() };
    let env = |_: &str| Some("long-enough-for-a-secret".to_owned());
    Config::read(Some(Path::new("semel.toml")), source, &overrides, &env)
}

/// What a configuration means, as a text to compare.
fn meaning(source: &str) -> String {
    format!("{:#?}", load(source).unwrap_or_else(|error| panic!("{error}")))
}

fn is_setting(line: &str) -> bool {
    line.starts_with('#') && !line.starts_with("# ") && line != "#"
}

/// The file with the `#` taken away where the function says so.
fn uncomment(text: &str, which: impl Fn(usize, &str) -> bool) -> String {
    let lines = text.lines().enumerate();
    let line = |(index, line): (usize, &str)| match line.strip_prefix('#') {
        Some(setting) if which(index, line) => format!("{setting}\n"),
        _ => format!("{line}\n"),
    };
    lines.map(line).collect()
}

#[test]
fn the_default_file_changes_nothing() {
    assert_eq!(meaning(&default_toml()), meaning(""));
}

/// The other lines that a member of a table makes no sense without.
fn needs(line: &str) -> &'static [&'static str] {
    if line.starts_with("#reconcile.get") || line.starts_with("#reconcile = ") {
        &["#capture = "]
    } else if line.starts_with("#reconcile.") {
        &["#capture = ", "#reconcile.get = "]
    } else if line.starts_with("#duplicates.action") {
        &["#duplicates.window = "]
    } else {
        &[]
    }
}

#[test]
fn every_line_may_be_uncommented() {
    let text = default_toml();
    let (settings, route) = text.split_once("#[[route]]").unwrap();
    let count = settings.lines().filter(|line| is_setting(line)).count();
    assert!(count > 40, "{count}");
    for (wanted, line) in settings.lines().enumerate().filter(|(_, line)| is_setting(line)) {
        let source = uncomment(settings, |index, other| {
            index == wanted || needs(line).iter().any(|needed| other.starts_with(needed))
        });
        assert_ne!(source, settings);
        load(&source).unwrap_or_else(|error| panic!("{line}\n{error}"));
    }
    let whole = format!("{settings}[[route]]{}", uncomment(route, |_, line| is_setting(line)));
    assert_eq!(load(&whole).unwrap().routes[0].matches.to_string(), "POST /v1/payments/**");
}

#[test]
fn shown_defaults_are_the_real_defaults() {
    let text = default_toml();
    let (settings, _) = text.split_once("#[[route]]").unwrap();
    let lines: Vec<&str> = settings.lines().collect();
    let is_default = |index: usize, line: &str| {
        // A table is written whole or member by member, not both.
        let tables = ["#key.", "#fingerprint.", "#deadline.", "#reconcile.", "#duplicates."];
        let is_member = tables.iter().any(|table| line.starts_with(table));
        is_setting(line) && !lines[index - 1].contains("For example:") && !is_member
    };
    let uncommented = uncomment(settings, is_default);
    assert!(uncommented.contains("\nlease = \"30s\"\n"), "{uncommented}");
    assert_eq!(meaning(&uncommented), meaning(""));
    let members = uncomment(settings, |index, line| {
        is_setting(line) && line.contains('.') && is_default(index, &line.replace("key.", ""))
    });
    assert_eq!(meaning(&members), meaning(""));
}

#[test]
fn the_schema_describes_every_setting() {
    fn described(name: &str, schema: &Value) {
        let Some(Value::Object(settings)) = schema.get("properties") else { return };
        assert_eq!(schema["additionalProperties"], json!(false), "{name}");
        for (name, setting) in settings {
            assert!(setting["description"].is_string(), "{name}");
            let inner = setting.get("items").unwrap_or(setting);
            described(name, inner);
        }
    }
    let schema: Value = serde_json::from_str(&schema_json()).unwrap();
    described("the file", &schema);
    let top = &schema["properties"];
    assert_eq!(top["route"]["items"]["required"], json!(["match"]));
    assert_eq!(top["route"]["items"]["properties"]["lease"]["default"], json!("30s"));
    assert!(top["defaults"]["properties"].get("scope").is_none());
}
