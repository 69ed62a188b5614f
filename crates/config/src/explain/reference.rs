//! Writes `docs/reference/configuration.md` from the tables of settings, and compares it.

use std::{fs, path::Path};

use super::*;

const HEAD: &str = "\
# Configuration

Every setting of the configuration file, with its type and its default. This page is generated from
the tables that `semel serve` reads the file with; the tests compare the two. `semel config default`
prints the same as a file to edit, [config.default.toml](../../config.default.toml), and
`semel config schema` a [JSON Schema](../../config.schema.json) for editors.

The file is TOML. Only `gateway.upstream` is required, in the file or by `--upstream`; for the
service API alone it is one `[[api.token]]`. Durations and sizes are texts with a unit: `ms`, `s`,
`m`, `h`, `d`; `B`, `KiB`, `MiB`, `GiB`. Relative paths start in the folder of the file. Secrets
come from the environment or from files, and are never printed. An unknown name, a wrong unit or a
contradiction is refused at start, with file, line and column.

| command | what it does |
|---|---|
| `semel config check FILE` | reports every error, or shows what the file guards |
| `semel config print FILE` | prints the effective configuration, with all defaults |
| `semel reload`, or `SIGHUP` | applies a changed file, and names what needs a restart |

A default in *italics* is an example: the setting has no fixed default, or is off without it.
";

/// The table whose members are the names of all problems.
const STATUSES: &str = "statuses";

/// The page.
fn reference() -> String {
    let mut text = HEAD.to_owned();
    let top = ConfigFile::all();
    section(&mut text, "At the top of the file", &[], &top);
    for (name, settings) in
        [("gateway", GatewayTable::all()), ("api", ApiTable::all()), ("limits", LimitsTable::all())]
    {
        section(&mut text, &format!("`[{name}]`"), doc_of(&top, name), &settings);
    }
    let (own, mut shared): (Vec<Setting>, Vec<Setting>) =
        RouteTable::all().into_iter().partition(|setting| ROUTE_ONLY.contains(&setting.name));
    for upstream in shared.iter_mut().filter(|setting| setting.name == "upstream") {
        // [gateway] lists them already.
        upstream.members.clear();
    }
    section(&mut text, "`[[route]]`", doc_of(&top, "route"), &own);
    section(&mut text, "`[defaults]` and `[[route]]`", doc_of(&top, "defaults"), &shared);
    section(&mut text, "`[[scope]]`", doc_of(&top, "scope"), &ScopeTable::all());
    section(&mut text, "`[[api.token]]`", doc_of(&ApiTable::all(), "token"), &TokenTable::all());
    text
}

fn doc_of(settings: &[Setting], name: &str) -> &'static [&'static str] {
    settings.iter().find(|setting| setting.name == name).map_or(&[], |setting| setting.doc)
}

fn section(text: &mut String, title: &str, about: &[&str], settings: &[Setting]) {
    text.push_str(&format!("\n## {title}\n\n"));
    if !about.is_empty() {
        text.push_str(&format!("{}\n\n", prose(about)));
    }
    text.push_str("| setting | type | default | meaning |\n|---|---|---|---|\n");
    rows(text, "", settings);
}

fn rows(text: &mut String, before: &str, settings: &[Setting]) {
    for setting in settings {
        let default = match &setting.shown {
            DefaultValue::Default(value) => format!("`{}`", cell(&toml_text(value))),
            DefaultValue::Example(value) => format!("*`{}`*", cell(&toml_text(value))),
            DefaultValue::Section => continue,
        };
        let name = format!("{before}{}", setting.name);
        let (kind, meaning) = (cell(&kind(&setting.schema)), cell(&prose(setting.doc)));
        text.push_str(&format!("| `{name}` | {kind} | {default} | {meaning} |\n"));
        if setting.members.is_empty() && setting.name != STATUSES {
            member_rows(text, &name, &setting.schema);
        }
        rows(text, &format!("{name}."), &setting.members);
    }
}

/// The members of a table that is written as a whole, or of the tables of a list, from its schema.
fn member_rows(text: &mut String, parent: &str, schema: &Value) {
    let of_items = schema["items"]["properties"].as_object();
    let members = schema["properties"].as_object().or(of_items);
    for (name, member) in members.into_iter().flatten() {
        let default = match (member.get("default"), member["examples"].get(0)) {
            (Some(value), _) => format!("`{}`", cell(&toml_text(value))),
            (None, Some(value)) => format!("*`{}`*", cell(&toml_text(value))),
            (None, None) => String::new(),
        };
        let meaning = cell(member["description"].as_str().unwrap_or_default());
        let kind = cell(&kind(member));
        text.push_str(&format!("| `{parent}.{name}` | {kind} | {default} | {meaning} |\n"));
    }
}

/// What may be written, in a few words.
fn kind(schema: &Value) -> String {
    let number = |name: &str| schema.get(name).map(Value::to_string);
    if let Some(Value::Array(words)) = schema.get("enum") {
        let words = words.iter().map(|word| format!("`{}`", toml_text(word)));
        return words.collect::<Vec<_>>().join(", ");
    }
    if let Some(Value::Array(kinds)) = schema.get("anyOf") {
        let mut kinds: Vec<String> = kinds.iter().map(kind).collect();
        kinds.dedup();
        return kinds.join(" or ");
    }
    let pattern = schema.get("pattern").and_then(Value::as_str).unwrap_or_default();
    match schema.get("type").and_then(Value::as_str) {
        Some("string") if pattern.contains("KiB") => "size".to_owned(),
        Some("string") if pattern.contains("(ms|s|m|h|d)") => "duration".to_owned(),
        Some("string") => "text".to_owned(),
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("integer") => match (number("minimum"), number("maximum")) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            _ => "number".to_owned(),
        },
        Some("array") => {
            let item = schema.get("items").map_or_else(|| "value".to_owned(), kind);
            format!("list of {item}")
        }
        Some("object") => "table".to_owned(),
        _ => "value".to_owned(),
    }
}

fn prose(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// A text inside a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_reference_of_settings_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    let made = reference();
    if std::env::var_os("SEMEL_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let command = "SEMEL_BLESS=1 cargo test -p semel-config --lib reference";
    assert!(committed == made, "docs/reference/configuration.md is stale; run: {command}");
}

/// Every name that the JSON Schema has, at any depth, is a row of the page.
#[test]
fn every_setting_of_the_schema_is_in_the_reference() {
    fn names(schema: &Value, found: &mut Vec<String>) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if schema["type"] != "object" && schema["items"]["type"] != "object" {
                found.push(name.clone());
            }
            if name != STATUSES {
                names(schema, found);
                names(&schema["items"], found);
            }
        }
    }
    let page = reference();
    let mut found = Vec::new();
    names(&serde_json::from_str(&schema_json()).unwrap(), &mut found);
    assert!(found.len() > 100, "{}", found.len());
    let is_missing = |name: &&String| {
        !page.contains(&format!("| `{name}` |")) && !page.contains(&format!(".{name}` |"))
    };
    let missing: Vec<_> = found.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
