//! A panic in a process with a log in JSON. The test starts itself as that process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use std::{env, process::Command, thread};

use semel_telemetry::log::{self, Format, Level, LogFilter};
use serde_json::Value;

const CHILD: &str = "SEMEL_TEST_PANICS";

#[test]
fn a_panic_is_one_line_of_json() {
    if env::var_os(CHILD).is_some() {
        let _log = log::init(Format::Json, &LogFilter::Level(Level::Info), None).unwrap();
        let worker = thread::Builder::new().name("worker-7".to_owned());
        assert!(worker.spawn(|| panic!("two\nlines")).unwrap().join().is_err());
        return;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "a_panic_is_one_line_of_json", "--nocapture"]);
    let output = child.env(CHILD, "1").env_remove("RUST_BACKTRACE").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let [line] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["level"], &line["thread"]), (&"error".into(), &"worker-7".into()));
    assert_eq!(line["message"], "panicked: two\nlines");
    assert!(line["location"].as_str().unwrap().contains("tests/panics.rs:"), "{line}");
}
