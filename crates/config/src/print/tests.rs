//! The printed configuration is equivalent and complete.

use std::path::Path;

use super::*;
use crate::{
    Overrides,
    raw::{ApiTable, ConfigFile, GatewayTable, LimitsTable, RouteTable, ScopeTable, TokenTable},
    rules::UpstreamTable,
    settings::{DefaultValue, SettingsTable},
};

const FULL: &str = include_str!("../../tests/files/good/full.toml");

fn load(file: &str, source: &str) -> Config {
    let overrides = Overrides::default();
    let env = |_: &str| Some("long-enough-for-a-secret".to_owned());
    Config::read(Some(Path::new(file)), source, &overrides, &env)
        .unwrap_or_else(|error| panic!("{error}\n{source}"))
}

#[test]
fn the_printed_configuration_is_equivalent() {
    let plain = "gateway.upstream = \"http://127.0.0.1:3000\"";
    let file = std::env::current_dir().unwrap().join("conf/semel.toml");
    for source in [plain, FULL, include_str!("../../tests/files/good/design.toml")] {
        let config = load(file.to_str().unwrap(), source);
        let printed = config.to_toml();
        let again = load("elsewhere/semel.toml", &printed);
        assert_eq!(again.to_toml(), printed);
        let meaning = format!("{config:#?}");
        let located = |text: String| match &config.store {
            // What is beside the store by default has its absolute path once it was printed.
            StoreUrl::Sqlite(path) if path.is_relative() => {
                text.replace(&absolute(path), &path.display().to_string())
            }
            StoreUrl::Postgres(_) => {
                let audit = Path::new("semel.audit.jsonl");
                text.replace(&absolute(audit), &audit.display().to_string())
            }
            StoreUrl::Sqlite(_) | StoreUrl::Memory => text,
        };
        assert_eq!(located(format!("{again:#?}")), meaning);
    }
}

#[test]
fn every_setting_is_printed() {
    fn names<T: SettingsTable>() -> Vec<&'static str> {
        let all =
            T::all().into_iter().filter(|setting| !matches!(setting.shown, DefaultValue::Section));
        all.map(|setting| setting.name).collect()
    }
    let config = load("semel.toml", FULL);
    let printed = config.to_toml();
    let table: toml::Table = printed.parse().unwrap();
    let has = |table: &toml::Table, names: Vec<&str>, section: &str| {
        for name in names {
            assert!(table.contains_key(name), "{name} is missing in {section}:\n{printed}");
        }
    };
    let section = |name: &str| table[name].as_table().unwrap();
    let mut top = names::<ConfigFile>();
    top.retain(|name| !["secret_file", "secret_before_file"].contains(name));
    has(&table, top, "the file");
    has(section("gateway"), names::<GatewayTable>(), "[gateway]");
    has(section("gateway")["upstream"].as_table().unwrap(), names::<UpstreamTable>(), "upstream");
    let mut of_api = names::<ApiTable>();
    of_api.retain(|name| *name != "operator_token_file");
    has(section("api"), of_api, "[api]");
    let token = section("api")["token"].as_array().unwrap()[0].as_table().unwrap();
    has(token, names::<TokenTable>(), "[[api.token]]");
    has(table["scope"].as_array().unwrap()[0].as_table().unwrap(), names::<ScopeTable>(), "scope");
    has(section("limits"), names::<LimitsTable>(), "[limits]");
    let mut of_route = names::<RouteTable>();
    // It is the `timeout` of the upstream. With a signature every caller is anonymous.
    let elsewhere =
        ["upstream_timeout", "lookup", "issued_keys", "reconcile", "velocity", "duplicates"];
    of_route.retain(|name| !elsewhere.contains(name));
    assert!(printed.contains("lookup = \"/idempotency/"), "{printed}");
    assert!(printed.contains("issued_keys = { "), "{printed}");
    assert!(printed.contains("reconcile = { "), "{printed}");
    assert!(printed.contains("velocity = [{ "), "{printed}");
    assert!(printed.contains("duplicates = { "), "{printed}");
    let route = table["route"].as_array().unwrap()[0].as_table().unwrap();
    has(route, of_route, "[[route]]");
}
