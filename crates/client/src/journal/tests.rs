//! Unit tests of the journal.

use tempfile::TempDir;

use super::*;

fn request(body: &'static str) -> Request<Bytes> {
    Request::post("http://api.example.org/charges?a=1").body(Bytes::from(body)).unwrap()
}

fn key(request: &Request<Bytes>) -> &str {
    request.headers()[KEY_HEADER].to_str().unwrap()
}

fn place() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("calls.journal");
    (folder, path)
}

#[test]
fn an_unfinished_call_keeps_its_key_across_a_restart() {
    let (_folder, path) = place();
    let journal = Journal::open(&path).unwrap();
    let first = journal.prepare("order-1", request("a")).unwrap();
    let other = journal.prepare("order-2", request("a")).unwrap();
    assert_ne!(key(&first), key(&other));
    journal.finish("order-2").unwrap();
    drop(journal);
    let journal = Journal::open(&path).unwrap();
    let unfinished = journal.unfinished();
    assert_eq!(unfinished.len(), 1);
    assert_eq!((&*unfinished[0].name, &*unfinished[0].key), ("order-1", key(&first)));
    assert_eq!(key(&journal.prepare("order-1", request("a")).unwrap()), key(&first));
    journal.finish("order-1").unwrap();
    assert_ne!(key(&journal.prepare("order-1", request("a")).unwrap()), key(&first));
}

#[test]
fn another_request_or_key_under_an_unfinished_name_is_refused() {
    let (_folder, path) = place();
    let journal = Journal::open(path).unwrap();
    let first = journal.prepare("order-1", request("a")).unwrap();
    let refused =
        |request| matches!(journal.prepare("order-1", request), Err(JournalError::Changed));
    assert!(refused(request("b")));
    let mut other_key = request("a");
    other_key.headers_mut().insert(KEY_HEADER, HeaderValue::from_static("other"));
    assert!(refused(other_key));
    let mut same_key = request("a");
    same_key.headers_mut().insert(KEY_HEADER, first.headers()[KEY_HEADER].clone());
    assert!(!refused(same_key));
}

#[test]
fn json_that_is_written_again_is_the_same_request() {
    let (_folder, path) = place();
    let journal = Journal::open(path).unwrap();
    let json = |body| {
        let mut request = request(body);
        let value = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, value);
        request
    };
    journal.prepare("order-1", json(r#"{"a":1,"b":2}"#)).unwrap();
    journal.prepare("order-1", json(r#"{ "b": 2, "a": 1.0 }"#)).unwrap();
    assert!(journal.prepare("order-1", json(r#"{"a":1,"b":3}"#)).is_err());
}

#[test]
fn a_torn_last_line_is_dropped_and_a_damaged_one_is_reported() {
    let (_folder, path) = place();
    let journal = Journal::open(&path).unwrap();
    journal.prepare("order-1", request("a")).unwrap();
    journal.prepare("order-2", request("a")).unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(Journal::open(&path).unwrap().unfinished().len(), lines);
    }
    fs::write(&path, [b"not a line\n", &whole[..]].concat()).unwrap();
    assert!(matches!(Journal::open(&path), Err(JournalError::Corrupt { line: 1 })));
}

#[test]
fn one_process_uses_a_journal() {
    let (_folder, path) = place();
    let journal = Journal::open(&path).unwrap();
    assert!(matches!(Journal::open(&path), Err(JournalError::InUse)));
    drop(journal);
    Journal::open(path).unwrap();
}

#[test]
fn a_long_journal_is_written_again_without_finished_calls() {
    let (_folder, path) = place();
    let journal = Journal::open(&path).unwrap();
    let kept = journal.prepare("kept", request("a")).unwrap();
    let mut state = journal.lock();
    state.finished_lines = FINISHED_LINES_MAX;
    drop(state);
    journal.prepare("order-1", request("a")).unwrap();
    journal.finish("order-1").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    drop(journal);
    assert_eq!(Journal::open(path).unwrap().unfinished()[0].key, key(&kept));
}
