//! Schemathesis reads the description of the API and sends requests that fit it, and others that do
//! not: none makes the server fail, and every answer is as described.

use std::process::Command;

use semel_testkit::seed;
use tempfile::TempDir;

use crate::{HERE, process::prepared, service::Service};

const CONFIGURATION: &str = r#"
[[api.token]]
name = "tests"
role = "app"
caller = "*"
secret_env = "SEMEL_TOKEN"

[[api.token]]
name = "oncall"
role = "operator"
secret_env = "OPERATOR_TOKEN"
"#;

/// The operations of the description, but for the one that shows it.
const OPERATIONS: usize = 17;

#[test]
fn schemathesis_finds_no_error_and_no_violation_of_the_description_torture() {
    let Some(python) = prepared("SEMEL_TEST_PYTHON") else { return };
    let seconds = if std::env::var_os("SEMEL_TORTURE").is_some() { "600" } else { "60" };
    let (service, folder) = (Service::configured(CONFIGURATION), TempDir::new().unwrap());
    let seed = seed().to_string();
    let mut schemathesis = Command::new(python);
    schemathesis.current_dir(folder.path()).env("PYTHONPATH", format!("{HERE}/schemathesis"));
    schemathesis.env("PYTHONDONTWRITEBYTECODE", "1").args(["-m", "schemathesis.cli"]);
    schemathesis.args(["--config-file", &format!("{HERE}/schemathesis/schemathesis.toml"), "run"]);
    schemathesis.args(["--max-time", seconds, "--seed", &seed]);
    schemathesis.args(["--continue-on-failure", "--no-color"]);
    schemathesis.arg(format!("{}/openapi.json", service.url()));
    let output = service.introduce(&mut schemathesis).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "SEMEL_SEED={seed}\n{report}");
    assert!(report.contains(&format!("Tested: {OPERATIONS}\n")), "{report}");
    // Every operation was let in, and claims were renewed and ended.
    assert!(!report.contains("Authentication failed"), "{report}");
    assert!(report.contains("API Links:    4 covered"), "{report}");
}
