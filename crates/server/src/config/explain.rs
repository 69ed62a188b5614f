//! Every setting explained, from the one description of them: a commented file and a JSON Schema.

use serde_json::{Value, json};

use super::{
    raw::{ApiTable, File, GatewayTable, LimitsTable, RouteTable},
    read::{Read as _, merge},
    settings::{Setting, Settings, Shown},
};

/// What a route says and `[defaults]` cannot.
pub(super) const ROUTE_ONLY: [&str; 4] = ["match", "scope", "was", "guard"];

const HEAD: &str = "\
# The configuration of Semel: every setting, what it means and its default.
#
# Each setting is on a line that begins with `#` and no space; without the `#` it is in force. Only
# `upstream` has to be said, here or with `--upstream`. Durations and sizes have a unit: ms, s, m,
# h, d; B, KiB, MiB, GiB. Paths begin in the folder of this file.
#
# Made by `semel config default`. `semel config check FILE` tells what a file guards.
";

/// The commented file of every setting.
pub(crate) fn default_toml() -> String {
    let mut text = HEAD.to_owned();
    explain(&mut text, "", &File::all());
    section::<GatewayTable>(&mut text, "gateway");
    section::<ApiTable>(&mut text, "api");
    section::<LimitsTable>(&mut text, "limits");
    let (own, mut shared): (Vec<Setting>, Vec<Setting>) =
        RouteTable::all().into_iter().partition(|setting| ROUTE_ONLY.contains(&setting.name));
    for upstream in shared.iter_mut().filter(|setting| setting.name == "upstream") {
        // They stand in [gateway] already.
        upstream.members.clear();
    }
    for setting in File::all() {
        match setting.name {
            "defaults" => {
                heading(&mut text, &setting, "[defaults]");
                explain(&mut text, "", &shared);
            }
            "route" => {
                heading(&mut text, &setting, "#[[route]]");
                explain(&mut text, "", &own);
            }
            _ => {}
        }
    }
    text
}

/// The JSON Schema of a configuration.
pub(crate) fn schema_json() -> String {
    let mut schema = File::schema();
    merge(
        &mut schema,
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Semel",
        }),
    );
    if let Some(Value::Object(settings)) = schema.pointer_mut("/properties/defaults/properties") {
        settings.retain(|name, _| !ROUTE_ONLY.contains(&name.as_str()));
    }
    if let Some(route) = schema.pointer_mut("/properties/route/items") {
        merge(route, json!({ "required": ["match"] }));
    }
    // The alternate form breaks lines and indents.
    format!("{schema:#}\n")
}

fn section<T: Settings>(text: &mut String, name: &str) {
    for setting in File::all().iter().filter(|setting| setting.name == name) {
        heading(text, setting, &format!("[{name}]"));
    }
    explain(text, "", &T::all());
}

fn heading(text: &mut String, setting: &Setting, name: &str) {
    text.push('\n');
    for line in setting.doc() {
        text.push_str(&format!("# {line}\n"));
    }
    text.push_str(&format!("{name}\n"));
}

fn explain(text: &mut String, before: &str, settings: &[Setting]) {
    for setting in settings {
        let (value, note) = match &setting.shown {
            Shown::Default(value) => (value, ""),
            Shown::Example(value) => (value, "# It has no fixed default. For example:\n"),
            Shown::Section => continue,
        };
        text.push('\n');
        for line in setting.doc() {
            text.push_str(&format!("# {line}\n"));
        }
        let name = format!("{before}{}", setting.name);
        text.push_str(&format!("{note}#{name} = {}\n", toml_text(value)));
        if !setting.members.is_empty() {
            text.push_str("# Or member by member:\n");
            explain(text, &format!("{name}."), &setting.members);
        }
    }
}

/// A value as TOML writes it, on one line.
pub(super) fn toml_text(value: &Value) -> String {
    match value {
        Value::String(text) => toml::Value::String(text.clone()).to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml_text).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let member =
                |(name, value): (&String, &Value)| format!("{name} = {}", toml_text(value));
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{ {} }}", members.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests;
