//! `semel demo`, run as a person runs it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

#[path = "common/command.rs"]
mod command;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use semel_testkit::program::Program;

use crate::command::semel_command;

fn demo() -> Command {
    let mut command = semel_command();
    command.arg("demo").stdin(Stdio::null());
    command
}

/// Sends what a printed `curl` line says, and returns head and body of the answer.
fn curl(line: &str) -> (String, String) {
    let words: Vec<_> = line.split_whitespace().collect();
    let ["curl", "-i", url, "-H", "'Idempotency-Key:", key, "-d", data] = words[..] else {
        panic!("another line than expected: {line}");
    };
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let (key, length) = (key.trim_end_matches('\''), data.len());
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{data}"
    );
    exchange(host, &request)
}

/// Gets what is at the address at the end of a printed line.
fn get(line: &str) -> String {
    let (_, url) = line.rsplit_once("http://").unwrap();
    let (host, path) = url.split_once('/').unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(host, &request).1
}

/// The page of held records of the dashboard at this address, for the operator with this token.
fn sign_in(url: &str, token: &str) -> String {
    let (_, host) = url.rsplit_once("http://").unwrap();
    let form = format!("user=zoe&token={token}");
    let head = format!("Host: {host}\r\nConnection: close\r\n");
    let (answer, _) = exchange(
        host,
        &format!(
            "POST /sign-in HTTP/1.1\r\n{head}Content-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{form}",
            form.len()
        ),
    );
    let (_, cookie) = answer.split_once("set-cookie: ").unwrap_or_else(|| panic!("{answer}"));
    let cookie = cookie.split(';').next().unwrap();
    exchange(host, &format!("GET /held HTTP/1.1\r\n{head}Cookie: {cookie}\r\n\r\n")).1
}

fn exchange(host: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

/// A customer's row in an act's table, which is the only line of theirs with a price.
fn row<'a>(act: &'a str, customer: &str) -> &'a str {
    act.lines()
        .rfind(|line| line.contains(&format!("  {customer} ")) && line.contains('$'))
        .unwrap()
}

#[test]
fn the_story_holds_and_is_readable() {
    let output = demo().arg("--once").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}\n{errors}");
    assert_eq!(errors, "");
    assert!(text.ends_with("The demo succeeded.\n"), "{text}");

    let (first, second) = text.split_once("\n2. ").unwrap();
    let (before, after) = (row(first, "ben"), row(second, "ben"));
    assert!(before.contains("no answer → ") && before.contains("$24.50 + "), "{before}");
    assert!(before.ends_with("TWICE") || before.ends_with("TIMES"), "{before}");
    assert!(after.contains("no answer → ") && after.ends_with(" $24.50"), "{after}");
    assert!(after.contains(" 201 replayed "), "{after}");
    assert!(!second.contains("TWICE") && !second.contains("TIMES"), "{second}");
    assert!(row(second, "eve").contains(" 423 outcome-unknown "), "{second}");
    assert!(second.contains("422 key-reused"), "{second}");

    assert!(text.lines().count() <= 45, "{text}");
    assert_eq!(text.lines().find(|line| line.chars().count() > 80), None);
    assert!(!text.contains('\x1b'), "colours are for terminals");
}

#[test]
fn the_printed_curl_commands_work_while_the_demo_runs() {
    let demo = Program::start(&mut demo());
    let is_curl = |line: &String| line.trim_start().starts_with("curl ");
    // It goes on running, so its output does not end.
    let printed: Vec<String> = demo.wait_for("three curl lines", |lines| {
        let (third, _) = lines.iter().enumerate().filter(|(_, line)| is_curl(line)).nth(2)?;
        Some(lines[..=third].to_vec())
    });
    assert_eq!(printed.iter().find(|line| line.chars().count() > 80), None);
    assert!(printed.len() <= 45, "{printed:#?}");

    let curls = &printed[printed.len() - 3..];
    let (first, receipt) = curl(&curls[0]);
    assert!(first.starts_with("http/1.1 201"), "{first}");
    assert!(!first.contains("idempotent-replayed"), "{first}");
    let (again, replay) = curl(&curls[1]);
    assert!(again.starts_with("http/1.1 201"), "{again}");
    assert!(again.contains("\nidempotent-replayed: true"), "{again}");
    assert_eq!(replay, receipt);
    let (other, problem) = curl(&curls[2]);
    assert!(other.starts_with("http/1.1 422"), "{other}");
    assert!(problem.contains("urn:semel:problem:key-reused"), "{problem}");

    let ledger = get(printed.iter().find(|line| line.ends_with("/ledger")).unwrap());
    let charges: Vec<_> = ledger.lines().filter(|line| line.contains("guest")).collect();
    assert_eq!(charges.len(), 1, "{ledger}");
    assert!(charges[0].contains("$12.00"), "{ledger}");
    let dashboard = printed.iter().find(|line| line.starts_with("  dashboard")).unwrap();
    let (url, token) = dashboard.split_once("/  (token ").unwrap();
    let records = get(&format!("{url}/v1/records"));
    assert!(records.contains(r#""key":"order-eve","state":"held""#), "{records}");
    assert!(sign_in(url, token.trim_end_matches(')')).contains("Resolve order-eve"));

    demo.signal("INT");
    assert!(demo.wait_for_exit().success());
}

#[test]
fn the_demo_of_steps_finishes_one_order_and_undoes_the_other() {
    let output = Program::start(demo().arg("steps"));
    assert!(output.wait_for_exit().success(), "{}", output.log());
    let log = output.log();
    for line in [
        "first   killed",
        "second  = done",
        "third   = undone, refused: \"no courier goes there\"",
        "2 × charge the card",
        "1 × ship the parcel",
        "1 × give the money back",
    ] {
        assert!(log.contains(line), "{line} is missing:\n{log}");
    }
}
