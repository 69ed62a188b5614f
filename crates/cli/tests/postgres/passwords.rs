//! Sources of the database password, which is never printed.

use std::{fs, os::unix::fs::PermissionsExt as _};

use semel_testkit::servers::Postgres;
use tokio::time::Instant;

use crate::{common::TEST_TIMEOUT, harness::semel};

const PASSWORD: &str = "hunter:2 & %/?@#";

/// A server that requires a password for the role `semel`, and a store on it.
fn server_with_password() -> (Postgres, String) {
    let server = Postgres::start(&[]);
    let sql = |sql: &str| server.sql("postgres", sql);
    sql(&format!("CREATE ROLE semel LOGIN PASSWORD '{PASSWORD}'"));
    sql("CREATE SCHEMA semel AUTHORIZATION semel");
    let file = sql("SHOW hba_file");
    let line = |role: &str, how: &str| format!("('host all {role} 127.0.0.1/32 {how}')");
    let lines = format!("VALUES {}, {}", line("semel", "scram-sha-256"), line("all", "trust"));
    sql(&format!("COPY ({lines}) TO '{file}'"));
    sql("SELECT pg_reload_conf()");
    let url = format!("{}?schema=semel", server.url_as("semel", "postgres"));
    (server, url)
}

#[test]
fn a_password_comes_from_the_environment_or_a_file_and_is_never_printed() {
    let (server, url) = server_with_password();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pass");
    let path = file.to_str().unwrap();
    fs::write(&file, "*:*:*:other:x\n*:*:postgres:semel:hunter\\:2 & %/?@#\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let url_with_password = format!(
        "postgres://semel:hunter%3A2%20%26%20%25%2F%3F%40%23@127.0.0.1:{}/postgres?schema=semel",
        server.port()
    );
    // The server applies the new configuration asynchronously.
    let end = Instant::now() + TEST_TIMEOUT;
    while semel(&["migrate", "--store", &url], &[]).code == 0 {
        assert!(Instant::now() < end, "the server does not require the password");
    }

    for (store, environment) in [
        (url.as_str(), ("PGPASSWORD", PASSWORD)),
        (url.as_str(), ("PGPASSFILE", path)),
        ("env:DATABASE_URL", ("DATABASE_URL", url_with_password.as_str())),
    ] {
        for words in [&["migrate"][..], &["doctor"], &["list"]] {
            let output = semel(&[words, &["--store", store]].concat(), &[environment]);
            assert!(!format!("{output:?}").contains("hunter"), "{output:?}");
            output.assert_exit(0);
        }
    }
    for (store, environment) in [
        (url.as_str(), ("PGPASSWORD", "hunter3")),
        (url.as_str(), ("NONE", "")),
        ("env:DATABASE_URL", ("DATABASE_URL", &url_with_password.replace("%3A2", "3"))),
        ("env:DATABASE_URL", ("DATABASE_URL", &url_with_password.replace("%2F", "/"))),
    ] {
        let output = semel(&["list", "--store", store], &[environment]);
        assert!(!output.assert_exit(1).stderr.contains("hunter"), "{output:?}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let open = semel(&["list", "--store", &url], &[("PGPASSFILE", path)]);
    assert!(open.assert_exit(1).stderr.contains("chmod 600"), "{open:?}");

    let words = ["config", "print", "--upstream", "http://a", "--caller", "anonymous"];
    let print = |store: &str, environment| {
        let output = semel(&[&words[..], &["--store", store]].concat(), &[environment]);
        assert!(!output.assert_exit(0).stdout.contains("hunter"), "{output:?}");
        output.stdout.lines().next().unwrap().to_owned()
    };
    assert_eq!(print(&url, ("PGPASSWORD", PASSWORD)), format!("store = \"{url}\""));
    let line = print("env:DATABASE_URL", ("DATABASE_URL", &url_with_password));
    assert_eq!(line, "store = \"env:DATABASE_URL\"");
}
