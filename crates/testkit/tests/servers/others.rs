//! `PgBouncer` and Redis.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use semel_testkit::servers::{self, PgBouncer, Redis};

fn psql(url: &str, sql: &str) -> Result<String, String> {
    let mut psql = Command::new("psql");
    let output = psql.args(["-XqAt", "-c", sql, url]).output().expect("psql");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn the_pooler_knows_the_roles_of_the_server_and_no_startup_options() {
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    postgres.sql("postgres", "CREATE ROLE teller LOGIN");
    let mut pooler = PgBouncer::start(postgres);
    let url = pooler.url(&database);
    assert_eq!(psql(&url, "SELECT current_database()").unwrap(), database);
    let teller = url.replace("postgres@", "teller@");
    assert_eq!(psql(&teller, "SELECT current_user").unwrap(), "teller");
    let refused = psql(&format!("{url}?options=-c%20a.b%3Dc"), "SELECT 1").unwrap_err();
    assert!(refused.contains("unsupported startup parameter"), "{refused}");
    pooler.kill();
    assert!(psql(&url, "SELECT 1").is_err());
    pooler.start_again();
    assert_eq!(psql(&url, "SELECT 1").unwrap(), "1");
}

#[test]
fn redis_is_flushed_killed_and_restored_from_an_old_snapshot() {
    let mut redis = Redis::start();
    redis.command("SET a 1");
    let old = redis.snapshot();
    redis.command("SET b 2");
    assert_eq!(redis.command("DBSIZE"), "2");
    redis.restore(&old);
    assert_eq!(redis.command("DBSIZE"), "1");
    redis.flush();
    assert_eq!(redis.command("DBSIZE"), "0");
    redis.command("SET c 3");
    redis.kill();
    redis.start_again();
    assert_eq!(redis.command("DBSIZE"), "0");
}

#[test]
fn a_paused_redis_takes_connections_and_says_nothing() {
    let mut redis = Redis::start_with(&[("user", "semel on >secret ~* +@all")]);
    redis.pause();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    stream.write_all(b"AUTH semel secret\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut answer = [0; 5];
    assert!(stream.read(&mut answer).is_err());
    redis.resume();
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    // Dropped while it is paused, it must end all the same.
    redis.pause();
}
