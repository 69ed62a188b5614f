//! PostgreSQL: shared, stopped, killed, failed over, and gone with its test process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use semel_testkit::servers::{self, Postgres};

#[test]
fn the_shared_server_gives_each_test_its_own_schema() {
    let postgres = servers::postgres();
    assert!(postgres.sql("postgres", "SHOW server_version").starts_with("15."));
    assert_eq!(postgres.sql("postgres", "SHOW fsync"), "on");
    let (one, two) = (postgres.fresh_schema_url(), postgres.fresh_schema_url());
    assert_ne!(one, two);
    let database = postgres.fresh_database();
    assert_eq!(postgres.sql(&database, "SELECT current_database()"), database);
}

#[test]
fn a_committed_row_survives_a_kill_of_the_whole_server() {
    let mut postgres = Postgres::start(&[]);
    postgres.sql("postgres", "CREATE TABLE t (n int); INSERT INTO t VALUES (7)");
    postgres.kill();
    postgres.start_again();
    assert_eq!(postgres.sql("postgres", "SELECT n FROM t"), "7");
    postgres.stop();
    assert!(postgres.log().contains("database system is shut down"));
}

#[test]
fn a_synchronous_standby_has_everything_when_it_is_promoted() {
    let mut primary = Postgres::start(&[]);
    let standby = primary.standby();
    primary.sql("postgres", "CREATE TABLE t (n int)");
    primary.sql("postgres", "INSERT INTO t VALUES (7)");
    primary.kill();
    standby.promote();
    assert_eq!(standby.sql("postgres", "SELECT n FROM t"), "7");
    standby.sql("postgres", "INSERT INTO t VALUES (8)");
}

/// A test binary that starts a server and is killed: this one, started again with a filter.
#[test]
#[expect(clippy::print_stderr, reason = "the way to tell the test that started it")]
fn a_server_ends_with_the_test_process_however_that_ends() {
    const NAME: &str = "SEMEL_TEST_HOSTAGE";
    if std::env::var_os(NAME).is_some() {
        let port = servers::postgres().port();
        let folder = servers::postgres().sql("postgres", "SHOW data_directory");
        eprintln!("hostage {port} {folder}");
        thread::sleep(Duration::from_secs(120));
        return;
    }
    let this = std::env::current_exe().expect("this test binary");
    let mut child = Command::new(this)
        .args(["--nocapture", "a_server_ends_with_the_test_process_however_that_ends"])
        .env(NAME, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test binary again");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.starts_with("hostage ")).expect("its server");
    let words: Vec<&str> = line.split(' ').collect();
    let (port, folder) = (words[1].parse::<u16>().expect("a port"), Path::new(words[2]));
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(folder.exists());
    child.kill().expect("killed");
    child.wait().expect("waited for");
    for _ in 0..600 {
        let gone = std::net::TcpStream::connect(("127.0.0.1", port)).is_err();
        if gone && !folder.parent().expect("a folder around it").exists() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("the server outlived its test process");
}
