//! On a server that says what the test wants.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    thread,
};

use crate::harness::{CommandOutput, Harness};

/// A server that answers each request with the next of these.
fn serve(answers: Vec<(u16, String)>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let start = head.len();
                reader.read_line(&mut head).unwrap();
                let line = head[start..].trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut sent = vec![0; length];
            reader.read_exact(&mut sent).unwrap();
            requests.push(head + &String::from_utf8(sent).unwrap());
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} x\r\nsemel-api: 1\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
        requests
    });
    (url, serving)
}

#[test]
fn an_act_that_comes_too_late_is_stale() {
    let harness = Harness::new();
    let line =
        r#""scope":"s","caller":"","key":"k","state":"held","fence":7,"attempt":1,"age_ms":5"#;
    let record = format!(r#"{{{line},"fingerprint":"01","on_unknown":"hold"}}"#);
    let stale =
        r#"{"type":"urn:semel:problem:record-stale","title":"t","status":409,"detail":"d"}"#;
    let (url, serving) = serve(vec![
        (200, r#"{"records":[],"next":"5"}"#.to_owned()),
        (200, format!(r#"{{"records":[{{{line}}}]}}"#)),
        (200, record),
        (200, "ok\n".to_owned()),
        (409, stale.to_owned()),
    ]);
    let mut command = harness.semel();
    command.args(["resolve", "k", "--released", "--why", "x", "--yes", "--server", &url]);
    command.env("SEMEL_OPERATOR_TOKEN", " an-operators-token\n");
    let output = CommandOutput::of(&mut command);
    assert_eq!((output.code, output.stderr.as_str()), (4, "error: d\n"));
    let requests = serving.join().unwrap();
    assert!(requests[0].starts_with("GET /v1/records?limit=1000&key=k HTTP/1.1\r\n"));
    assert!(requests[1].starts_with("GET /v1/records?limit=1000&key=k&after=5 HTTP/1.1\r\n"));
    assert!(requests[2].starts_with("GET /v1/record?scope=s&caller=&key=k HTTP/1.1\r\n"));
    assert!(requests[3].starts_with("GET /healthz HTTP/1.1\r\n"));
    for read in &requests[..4] {
        assert!(!read.to_ascii_lowercase().contains("authorization"), "{read}");
    }
    let act = &requests[4];
    assert!(act.starts_with("POST /v1/resolve HTTP/1.1\r\n"), "{act}");
    assert!(
        act.to_ascii_lowercase().contains("authorization: bearer an-operators-token\r\n"),
        "{act}"
    );
    assert!(act.contains(r#""fence":7"#) && act.contains(r#""to":"released""#), "{act}");
}

#[test]
fn a_server_that_is_not_there_or_not_ours_is_named() {
    let harness = Harness::new();
    let output = harness.run(&["list", "--server", "https://localhost:1"]);
    assert!(output.assert_exit(1).stderr.contains("http only"), "{output:?}");
    let output = harness.run(&["reload", "--server", "http://127.0.0.1:1"]);
    assert!(output.assert_exit(1).stderr.contains("cannot be reached"), "{output:?}");
    let (url, serving) = serve(vec![(404, "nothing".to_owned())]);
    let output = harness.run(&["list", "--server", &url]);
    assert!(output.assert_exit(1).stderr.contains("is this an API listener?"), "{output:?}");
    serving.join().unwrap();
}

#[test]
fn the_token_is_sent_to_the_configured_server_only() {
    let harness = Harness::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = vec![0; 4096];
        let length = stream.read(&mut heard).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n").unwrap();
        String::from_utf8_lossy(&heard[..length]).into_owned()
    });
    let mut command = harness.semel();
    command.args(["reload", "--server", &url]).env("SEMEL_OPERATOR_TOKEN", "an-operators-token");
    let output = CommandOutput::of(&mut command);
    assert!(output.assert_exit(1).stderr.contains("is this an API listener?"), "{output:?}");
    assert!(!serving.join().unwrap().contains("an-operators-token"));
}

#[test]
fn a_token_that_cannot_be_one_is_named_by_its_variable() {
    let harness = Harness::new();
    for bad in ["short", "an operator's token", "tökentökentöken"] {
        let mut command = harness.semel();
        command.args(["reload", "--server", "http://127.0.0.1:1"]);
        let output = CommandOutput::of(command.env("SEMEL_OPERATOR_TOKEN", bad));
        assert!(
            output.assert_exit(1).stderr.contains("variable SEMEL_OPERATOR_TOKEN"),
            "{output:?}"
        );
        assert!(!output.stderr.contains(bad), "{output:?}");
    }
}

#[test]
fn control_characters_of_a_server_are_escaped_on_the_terminal() {
    let harness = Harness::new();
    let problem = r#"{"type":"x","title":"t\u001b[2J","status":500,"detail":"d\u001b]0;x\u0007"}"#;
    let (url, serving) = serve(vec![(500, problem.to_owned())]);
    let output = harness.run(&["list", "--server", &url]);
    assert_eq!(output.assert_exit(1).stderr, "error: t\\u001b[2J: d\\u001b]0;x\\u0007\n");
    serving.join().unwrap();
}
