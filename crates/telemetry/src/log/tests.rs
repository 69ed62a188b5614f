//! Lines as they come out.

use std::{io, sync::Mutex, time::Duration};

use serde_json::Value;

use super::*;

/// Where lines end up.
#[derive(Clone, Debug, Default)]
struct Out(std::sync::Arc<Mutex<Vec<u8>>>);

impl io::Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines of what is logged meanwhile.
fn logged(style: LineStyle, level: Level, act: impl FnOnce()) -> Vec<String> {
    let out = Out::default();
    let (writer, flush) = LogWriter::start(out.clone()).unwrap();
    tracing::subscriber::with_default(LogSubscriber { style, level: level.filter(), writer }, act);
    drop(flush);
    let bytes = out.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

const LINE: RequestLine<'static> = RequestLine {
    method: "POST",
    path: "/v1/charges",
    scope: "payments",
    key: "8e03978e",
    caller: "a:95423e20",
    outcome: "executed",
    fence: Some(17),
    attempt: Some(1),
    status: Some(201),
    took: Duration::from_micros(1234),
};

#[test]
fn a_request_is_one_line_of_text() {
    let lines = logged(LineStyle::Plain, Level::Info, || LINE.log());
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let (at, rest) = line.split_once(' ').unwrap();
    assert!(at.parse::<Timestamp>().is_ok() && at.len() == 27 && at.ends_with('Z'), "{at}");
    assert_eq!(
        rest,
        "INFO  request method=POST path=/v1/charges scope=payments key=8e03978e \
         caller=a:95423e20 outcome=executed fence=17 attempt=1 status=201 took_ms=1.234"
    );
}

#[test]
fn a_request_is_one_object_of_json() {
    let replayed = RequestLine { outcome: "replayed", fence: None, attempt: None, ..LINE };
    let lines = logged(LineStyle::Json, Level::Info, || replayed.log());
    let mut line: Value = serde_json::from_str(&lines[0]).unwrap();
    let at = line.as_object_mut().unwrap().remove("at").unwrap();
    assert!(at.as_str().unwrap().parse::<Timestamp>().is_ok());
    let expected = serde_json::json!({
        "level": "info", "target": "semel::request", "message": "request", "method": "POST",
        "path": "/v1/charges", "scope": "payments", "key": "8e03978e", "caller": "a:95423e20",
        "outcome": "replayed", "status": 201, "took_ms": 1.234,
    });
    assert_eq!(line, expected);
}

#[test]
fn client_text_cannot_forge_a_log_line() {
    let path = "/a\nERROR forged\" key=\"x\\ \u{1b}[2J\u{202e}é";
    let forged = RequestLine { path, key: "a=b\"c", caller: "", ..LINE };
    let lines = logged(LineStyle::Plain, Level::Info, || forged.log());
    assert_eq!(lines.len(), 1);
    let escaped = r#"path="/a\nERROR forged\" key=\"x\\ \u001b[2J\u202eé" scope=payments"#;
    assert!(lines[0].contains(escaped), "{}", lines[0]);
    assert!(lines[0].contains(r#" key="a=b\"c" caller="" outcome=executed"#), "{}", lines[0]);
    let lines = logged(LineStyle::Json, Level::Info, || forged.log());
    assert_eq!(lines.len(), 1);
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&line["path"], &line["key"]), (&path.into(), &"a=b\"c".into()));
}

#[test]
fn outcomes_that_need_attention_are_logged_as_warnings() {
    let outcomes =
        ["executed", "in-progress", "outcome-unknown", "upstream-timeout", "passed", "replayed"];
    let lines = logged(LineStyle::Plain, Level::Warn, || {
        for outcome in outcomes {
            RequestLine { outcome, ..LINE }.log();
        }
    });
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(" WARN  request ")), "{lines:?}");
}

#[test]
fn words_come_first_and_other_values_are_quoted() {
    let act = || {
        let error = io::Error::other("dis\"k\nfull");
        tracing::error!(%error, ratio = f64::NAN, good = true, below = -1, "the store\nfailed");
        tracing::debug!("unheard");
    };
    let lines = logged(LineStyle::Plain, Level::Info, act);
    let (_, rest) = lines[0].split_once(' ').unwrap();
    assert_eq!(rest, r#"ERROR the store\nfailed error="dis\"k\nfull" good=true below=-1"#);
    assert_eq!(lines.len(), 1);
    let line: Value = serde_json::from_str(&logged(LineStyle::Json, Level::Trace, act)[0]).unwrap();
    assert_eq!(line["message"], "the store\nfailed");
    assert_eq!(line["error"], "dis\"k\nfull");
    let coloured = logged(LineStyle::Colour, Level::Error, act);
    assert!(coloured[0].contains("\x1b[31mERROR\x1b[0m the store"), "{coloured:?}");
    assert!(logged(LineStyle::Plain, Level::Off, act).is_empty());
}
