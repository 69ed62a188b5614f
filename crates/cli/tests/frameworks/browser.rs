//! A page of another origin, in a real browser: preflight, request, replay, problem.

use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpListener},
    process::Command,
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    HERE,
    app::{App, Framework},
    gateway::Gateway,
    process::prepared,
};

/// No driver, no services of the vendor, and nothing of an earlier run.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=10000",
    "--dump-dom",
];

#[test]
fn a_page_of_another_origin_charges_once_and_reads_the_replay_and_the_problem() {
    let Some(chromium) = prepared("SEMEL_TEST_CHROMIUM") else { return };
    let Some(app) = App::start(Framework::FastApi, None) else { return };
    let page = serve_page();
    let gateway = Gateway::configured(&format!(
        "[gateway]\nupstream = \"http://{}\"\n\n[[route]]\nmatch = \"POST /charges\"\n\
         scope = \"payments\"\ncors = {{ origins = [\"http://{page}\"] }}\n",
        app.address()
    ));
    let profile = TempDir::new().unwrap();
    let mut browser = Command::new(chromium);
    browser.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display()));
    browser.arg(format!("http://{page}/?gateway=http://{}", gateway.address()));
    let output = browser.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, seen) = text.split_once("<pre id=\"seen\">").unwrap_or_else(|| panic!("{text}"));
    let (seen, _) = seen.split_once("</pre>").unwrap();
    let seen: Vec<Value> = serde_json::from_str(seen).unwrap_or_else(|_| panic!("{seen}"));
    let [first, replay, problem] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((first["status"].as_u64(), &first["replayed"]), (Some(201), &Value::Null));
    assert_eq!((replay["status"].as_u64(), replay["replayed"].as_str()), (Some(201), Some("true")));
    assert_eq!(replay["body"], first["body"]);
    for answer in [first, replay] {
        let expires = answer["expires"].as_str().and_then(|date| date.strip_prefix('@'));
        assert!(expires.is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{answer}");
    }
    assert_eq!((problem["status"].as_u64(), problem["retry"].as_str()), (Some(422), Some("false")));
    assert_eq!(problem["body"]["type"], "urn:semel:problem:key-reused");
    assert_eq!(app.charges()["zoe"], 1);
}

/// Serves the page, until the test process ends.
fn serve_page() -> SocketAddr {
    let page = fs::read_to_string(format!("{HERE}/browser/page.html")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, page) = (stream.unwrap(), page.clone());
            // A browser opens connections that it may not use.
            thread::spawn(move || {
                let mut head = [0; 4096];
                if std::io::Read::read(&mut stream, &mut head).unwrap_or(0) > 0 {
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\
                         Content-Length: {}\r\n\r\n{page}",
                        page.len()
                    );
                }
            });
        }
    });
    address
}
