//! Lines as they come out.

use std::{
    io,
    sync::{Mutex, mpsc},
    time::Duration,
};

use jiff::Timestamp;
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
    let (writer, guard, _) = output::start(out.clone());
    let filter = LogFilter::Level(level).parse().unwrap();
    tracing::subscriber::with_default(subscriber(style, filter, writer, None), act);
    drop(guard);
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
    origin: RequestOrigin { client: None, request_id: None, trace_id: None },
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

#[test]
fn a_line_has_the_origin_of_the_request() {
    let origin = RequestOrigin {
        client: Some([192, 0, 2, 7].into()),
        request_id: Some("req 1"),
        trace_id: trace_id_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    };
    let lines = logged(LineStyle::Plain, Level::Info, || RequestLine { origin, ..LINE }.log());
    let end = " took_ms=1.234 client=192.0.2.7 request_id=\"req 1\" \
               trace_id=0af7651916cd43dd8448eb211c80319c";
    assert!(lines[0].ends_with(end), "{}", lines[0]);
    for invalid in ["", "00-0-1-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
        assert_eq!(trace_id_of(invalid), None, "{invalid}");
    }
}

#[test]
fn a_line_has_the_fields_of_its_spans() {
    let act = || {
        let span = tracing::info_span!("request", key = "a=b", fence = tracing::field::Empty);
        let _entered = span.enter();
        span.record("fence", 7);
        tracing::info!(records = 2, "swept");
    };
    let lines = logged(LineStyle::Plain, Level::Info, act);
    assert!(lines[0].ends_with(r#" swept records=2 key="a=b"  fence=7"#), "{}", lines[0]);
    let lines = logged(LineStyle::Json, Level::Info, act);
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&line["key"], &line["fence"]), (&"a=b".into(), &7.into()));
}

#[test]
fn a_long_value_is_cut() {
    let path = "é\n".repeat(4096);
    let lines = logged(LineStyle::Json, Level::Info, || RequestLine { path: &path, ..LINE }.log());
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    let shown = line["path"].as_str().unwrap();
    assert!(shown.ends_with('…') && path.starts_with(shown.trim_end_matches('…')), "{shown}");
    assert!((2000..=2051).contains(&shown.len()), "{}", shown.len());
}

#[test]
fn directives_choose_lines_by_their_target() {
    let directives = |text: &str| LogFilter::Directives(text.to_owned()).parse();
    let out = Out::default();
    let (writer, guard, _) = output::start(out.clone());
    let filter = directives("error,semel::request=info").unwrap();
    tracing::subscriber::with_default(subscriber(LineStyle::Plain, filter, writer, None), || {
        tracing::info!("not logged");
        LINE.log();
    });
    drop(guard);
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let error = directives("semel=loud").unwrap_err();
    assert_eq!(error.to_string(), "RUST_LOG is invalid: \"semel=loud\"");
}

/// A reader that reads on demand.
struct SlowReader {
    turns: mpsc::Receiver<()>,
    out: Out,
}

impl io::Write for SlowReader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.turns.recv();
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_slow_reader_blocks_no_line_and_dropped_lines_are_counted_and_logged() {
    let ((turn, turns), out) = (mpsc::channel(), Out::default());
    let (writer, guard, dropped) = output::start(SlowReader { turns, out: out.clone() });
    let filter = LogFilter::Level(Level::Info).parse().unwrap();
    let log = subscriber(LineStyle::Plain, filter, writer, None);
    tracing::subscriber::with_default(log, || {
        for number in 0..output::QUEUED_LINES_MAX * 3 {
            tracing::info!(number, "line");
        }
    });
    let count = dropped.count();
    assert!(count > 0);
    drop(turn);
    drop(guard);
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let written = u64::try_from(text.lines().count()).unwrap();
    let sent = u64::try_from(output::QUEUED_LINES_MAX * 3).unwrap();
    assert_eq!(written + count, sent, "no line is lost without being counted");
}
