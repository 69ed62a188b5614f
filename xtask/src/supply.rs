//! What others wrote and the program contains: licences, checked against `deny.toml`, and the
//! software bill of materials that `cargo xtask sbom` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::run;
use crate::tidy::manifest;

/// The package whose binary is shipped.
const SHIPPED: &str = "semel-cli";

/// Checks the licence of every dependency on this platform, of tests and tools too.
pub(crate) fn check_licences(root: &Path) -> anyhow::Result<()> {
    let deny = fs::read_to_string(root.join("deny.toml")).context("cannot read deny.toml")?;
    let allowed = manifest::list(&deny, &["licenses", "allow"]);
    let mut refused = Vec::new();
    for folder in ["Cargo.toml", "crates/sqlx/Cargo.toml"] {
        let metadata = metadata(root, folder)?;
        refused.extend(refused_in(&metadata, &allowed));
    }
    if !refused.is_empty() {
        bail!("licences that deny.toml does not allow:\n  {}", refused.join("\n  "));
    }
    Ok(())
}

fn refused_in(metadata: &Value, allowed: &[String]) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let refused = packages.filter(|package| {
        let licence = package["license"].as_str().unwrap_or_default();
        !is_allowed(licence, allowed)
    });
    refused
        .map(|package| {
            format!("{} {}: {}", package["name"], package["version"], package["license"])
        })
        .collect()
}

/// Whether an SPDX expression can be met with licences of the list. `/` is an old way to write OR.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    any_of(&mut rest, allowed) == Some(true) && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = all_of(words, allowed)?;
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        met |= all_of(words, allowed)?;
    }
    Some(met)
}

fn all_of(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        met &= one(words, allowed)?;
    }
    Some(met)
}

/// A licence, perhaps with an exception, or an expression in brackets. `None` if it is neither.
fn one(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    if *first == "(" {
        let met = any_of(words, allowed)?;
        let (&")", rest) = words.split_first()? else { return None };
        *words = rest;
        return Some(met);
    }
    let name = match words {
        ["WITH", exception, rest @ ..] => {
            let name = format!("{first} WITH {exception}");
            *words = rest;
            name
        }
        _ => (*first).to_owned(),
    };
    Some(allowed.contains(&name))
}

/// What cargo says of a workspace, for this platform: packages for others need not be downloaded.
fn metadata(root: &Path, manifest: &str) -> anyhow::Result<Value> {
    let version = run::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not name its host")?;
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform", host];
    let mut command = run::cargo(root, &args);
    let output = run::output(command.args(["--manifest-path", manifest]))?;
    serde_json::from_str(&output).context("cargo metadata is not JSON")
}

/// Writes the bill of materials of the shipped program: `target/semel.cdx.json`, as `CycloneDX`.
pub(crate) fn sbom(root: &Path) -> anyhow::Result<()> {
    let metadata = metadata(root, "Cargo.toml")?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let document = document(&metadata, &checksums(&lock))?;
    let path = root.join("target").join("semel.cdx.json");
    fs::create_dir_all(root.join("target"))?;
    fs::write(&path, serde_json::to_string_pretty(&document)? + "\n")?;
    let count = document["components"].as_array().map_or(0, Vec::len);
    println!("{count} components in {}", path.display());
    Ok(())
}

/// The checksum of each package of a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let packages = manifest::named(lock, "package").into_iter().filter_map(|(name, package)| {
        let text = |key| package.get(key)?.as_str().map(str::to_owned);
        Some(((name, text("version")?), text("checksum")?))
    });
    packages.collect()
}

/// A `CycloneDX` document of the shipped program. It has no time and no serial number, so that the
/// same tree gives the same bytes.
fn document(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> anyhow::Result<Value> {
    let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let shipped = packages.iter().find(|(_, package)| package["name"] == SHIPPED);
    let (root, program) = shipped.with_context(|| format!("there is no package {SHIPPED}"))?;
    let edges: BTreeMap<&str, Vec<&str>> = list(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, linked(node))))
        .collect();
    let (mut found, mut next) = (BTreeSet::new(), vec![*root]);
    while let Some(id) = next.pop() {
        if found.insert(id) {
            next.extend(edges.get(id).into_iter().flatten());
        }
    }
    found.remove(root);
    let components: Vec<Value> =
        found.iter().filter_map(|id| packages.get(id)).map(|it| component(it, checksums)).collect();
    let depends = |id: &&str| {
        let on = edges.get(id).into_iter().flatten().filter_map(|id| packages.get(id));
        let on: BTreeSet<String> = on.map(|package| purl(package)).collect();
        packages.get(id).map(|package| json!({ "ref": purl(package), "dependsOn": on }))
    };
    let all = [root].into_iter().chain(&found);
    let dependencies: Vec<Value> = all.filter_map(depends).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application", "bom-ref": purl(program), "name": "semel",
            "version": program["version"],
        } },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The packages that end up in the same binary as this one: not those of tests and build scripts.
fn linked(node: &Value) -> Vec<&str> {
    let is_linked =
        |dependency: &&Value| list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
    let linked = list(&node["deps"]).filter(is_linked);
    linked.filter_map(|dependency| dependency["pkg"].as_str()).collect()
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    let mut component = json!({
        "type": "library", "bom-ref": purl(package), "purl": purl(package),
        "name": text("name"), "version": text("version"),
        "licenses": [{ "expression": text("license").replace('/', " OR ") }],
    });
    if let Some(checksum) = checksums.get(&(text("name"), text("version"))) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

fn purl(package: &Value) -> String {
    let text = |name: &str| package[name].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dependency_has_an_allowed_licence() {
        check_licences(&crate::root()).unwrap();
    }

    #[test]
    fn an_expression_is_met_by_the_licences_of_the_list() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(ToOwned::to_owned);
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/GPL-3.0",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT", "MIT)", "MIT MIT", "OR MIT"]
        {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn a_bill_names_what_is_linked_and_nothing_else() {
        let package =
            |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT" });
        let depends = |on: &str, kind: Value| json!({ "pkg": on, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package(SHIPPED), package("linked"), package("below"), package("tests")],
            "resolve": { "nodes": [
                { "id": SHIPPED, "deps": [
                    depends("linked", Value::Null), depends("tests", "dev".into()),
                ] },
                { "id": "linked", "deps": [depends("below", Value::Null)] },
            ] },
        });
        let lock = "[[package]]\nname = \"below\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n";
        let document = document(&metadata, &checksums(lock)).unwrap();
        let names: Vec<_> = list(&document["components"]).map(|it| &it["name"]).collect();
        assert_eq!(names, ["below", "linked"]);
        assert_eq!(document["components"][0]["hashes"][0]["content"], "ab");
        assert_eq!(document["dependencies"][0]["dependsOn"], json!(["pkg:cargo/linked@1.0.0"]));
    }
}
