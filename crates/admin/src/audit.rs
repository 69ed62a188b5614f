//! The audit log: who did what to which record, when and why. It is only ever appended to.
//!
//! Each action has two lines: the intention, synced to disk before anything is done, and the
//! result. An action whose first line cannot be written is not done.

use std::{
    fs::File,
    future::Future,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use semel::core::{Fence, Field, RecordId, StateName, StoredResponse};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use semel_config::private_files::{private, sync_folder};
use semel_telemetry::escape;

/// Maximum length of a text in the log, in characters.
const TEXT_CHARS_MAX: usize = 1000;

/// Who approved that records are lost, and why.
#[derive(Clone, Debug)]
pub struct Approver {
    /// A person or a program.
    pub who: String,
    /// The reason.
    pub why: String,
}

/// The audit log file.
#[derive(Clone, Debug)]
pub struct AuditLog(Arc<Path>);

/// An action of an operator.
#[derive(Clone, Debug)]
pub struct OperatorAction {
    /// The author, and how they were identified.
    pub who: String,
    /// The kind: `resolve`, `delete`, `read-answer`, `sweep`, `reload`, `new-store`,
    /// `after-restore`.
    pub act: &'static str,
    /// The record, with the state and fence that the operator saw.
    pub record: Option<(RecordId, StateName, Fence)>,
    /// The new state.
    pub to: Option<String>,
    /// The answer that is recorded.
    pub answer: Option<AnswerDigest>,
    /// Why.
    pub why: String,
}

/// The digest of a recorded answer: enough to identify it, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnswerDigest {
    status: u16,
    /// The names of its headers.
    headers: Vec<String>,
    body_bytes: usize,
    body_sha256: String,
}

impl AnswerDigest {
    /// The digest of an answer.
    pub fn of(response: &StoredResponse) -> Self {
        let name = |field: &Field| String::from_utf8_lossy(&field.name).into_owned();
        Self {
            status: response.status,
            headers: response.headers.iter().map(name).collect(),
            body_bytes: response.body.len(),
            body_sha256: HEXLOWER.encode(&Sha256::digest(&response.body)),
        }
    }
}

/// One line of the log.
#[derive(Serialize)]
struct AuditLine<'a> {
    at: String,
    who: &'a str,
    act: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<SeenState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a AnswerDigest>,
    why: &'a str,
    result: &'a str,
}

#[derive(Serialize)]
struct SeenState {
    state: &'static str,
    fence: u64,
}

/// The result of an action, as the audit log shows it.
pub trait AuditResult {
    /// The result in a few words.
    fn result(&self) -> String;
}

impl<T: AuditResult, E: std::fmt::Display> AuditResult for Result<T, E> {
    fn result(&self) -> String {
        match self {
            Ok(done) => done.result(),
            Err(error) => format!("failed: {error}"),
        }
    }
}

impl AuditLog {
    /// A log in this file, which is created when it is needed.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into().into())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the file if it is missing. A server does this at its start: if an operator's command
    /// created the file, it would belong to the operator, and the server could not write to it.
    pub fn create(&self) -> anyhow::Result<()> {
        let made = append(&self.0, b"");
        made.with_context(|| format!("the audit log {} cannot be written", self.0.display()))
    }

    /// Runs an action with a line before and a line after it.
    ///
    /// # Errors
    ///
    /// If the first line cannot be written; then nothing was done.
    pub async fn run_logged<T: AuditResult>(
        &self,
        act: OperatorAction,
        operation: impl Future<Output = T>,
    ) -> anyhow::Result<T> {
        let act = Arc::new(act);
        self.write(&act, "intended".to_owned()).await.with_context(|| {
            let path = self.0.display();
            format!("the audit log {path} cannot be written, so nothing was done")
        })?;
        let done = operation.await;
        let result = done.result();
        let OperatorAction { who, act: what, to, why, .. } = &*act;
        let record = act.record.as_ref().map(|(id, ..)| id.to_string());
        tracing::warn!(who, act = what, record, to, why, result, "an operator acted");
        if let Err(error) = self.write(&act, result).await {
            // The action is done; the first line records the intention.
            tracing::error!(%error, "the result of an operator action could not be written to \
                the audit log");
        }
        Ok(done)
    }

    /// Writes one line about an action before it is done.
    ///
    /// # Errors
    ///
    /// If the line cannot be written; then the action must not be done.
    pub async fn note(&self, act: OperatorAction, result: &str) -> anyhow::Result<()> {
        let act = Arc::new(act);
        self.write(&act, result.to_owned()).await.with_context(|| {
            let path = self.0.display();
            format!("the audit log {path} cannot be written, so nothing was done")
        })?;
        let OperatorAction { who, act, to, why, .. } = &*act;
        tracing::warn!(who, act, to, why, result, "an operator acted");
        Ok(())
    }

    async fn write(&self, act: &Arc<OperatorAction>, result: String) -> io::Result<()> {
        let (path, act) = (Arc::clone(&self.0), Arc::clone(act));
        let write = move || append(&path, &line(&act, &result, Timestamp::now())?);
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
    }
}

/// A line with its end.
fn line(act: &OperatorAction, result: &str, at: Timestamp) -> io::Result<Vec<u8>> {
    let id = act.record.as_ref().map(|(id, ..)| id);
    let seen = act.record.as_ref();
    let line = AuditLine {
        at: at.to_string(),
        who: cut(&act.who),
        act: act.act,
        scope: id.map(|id| id.scope.as_str()),
        caller: id.map(|id| id.caller.as_str()),
        key: id.map(|id| id.key.as_str()),
        seen: seen.map(|(_, state, fence)| SeenState { state: state.as_str(), fence: fence.get() }),
        to: act.to.as_deref(),
        answer: act.answer.as_ref(),
        why: cut(&act.why),
        result: cut(result),
    };
    // JSON need not escape all control characters, and a terminal would interpret them.
    let mut bytes = escape::json(&serde_json::to_string(&line)?).into_bytes();
    bytes.push(b'\n');
    Ok(bytes)
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(TEXT_CHARS_MAX).and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

/// Appends a line and syncs it, one writer at a time, so that lines of several processes do not
/// mix. After a partial line, left by a full disk, it starts a new one.
fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let is_new = !path.exists();
    let mut file = private().read(true).append(true).create(true).open(path)?;
    // Held until the file is closed: without it, others could move the end of the file.
    file.lock()?;
    let whole = [b"\n", line].concat();
    let line = if line.is_empty() || is_at_line_start(&mut file)? { line } else { &whole };
    let written = file.write(line)?;
    if written < line.len() {
        return Err(io::Error::new(io::ErrorKind::WriteZero, "only a part of a line was written"));
    }
    file.sync_data()?;
    if is_new { sync_folder(path) } else { Ok(()) }
}

fn is_at_line_start(file: &mut File) -> io::Result<bool> {
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;

    fn act(why: &str) -> OperatorAction {
        let (who, why) = ("zoe".to_owned(), why.to_owned());
        OperatorAction { who, act: "sweep", record: None, to: None, answer: None, why }
    }

    #[test]
    fn lines_of_several_writers_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for number in 0..25 {
                        let act = act(&format!("{writer}-{number}").repeat(100));
                        append(path, &line(&act, "applied", Timestamp::now()).unwrap()).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 200);
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn text_stays_on_one_line_and_is_truncated() {
        let act = act(&format!("a\nb\"{}", "é".repeat(2000)));
        let line = line(&act, "applied", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["why"].as_str().unwrap().chars().count(), TEXT_CHARS_MAX);
        assert_eq!((&line["at"], &line["who"]), (&"1970-01-01T00:00:00Z".into(), &"zoe".into()));
        assert_eq!(line.get("scope"), None);
    }

    #[test]
    fn control_characters_are_escaped_and_read_back_the_same() {
        let said = "a\u{9b}31m\u{202e}b\u{7f}\u{e0041}\"\\ \u{1f4b3}";
        let line = line(&act(said), said, Timestamp::UNIX_EPOCH).unwrap();
        let text = str::from_utf8(&line).unwrap();
        for raw in ['\u{9b}', '\u{202e}', '\u{7f}', '\u{e0041}'] {
            assert!(!text.contains(raw), "{text}");
        }
        assert!(text.contains('\u{1f4b3}'), "{text}");
        let line: Value = serde_json::from_str(text).unwrap();
        assert_eq!((&line["why"], &line["result"]), (&said.into(), &said.into()));
    }

    #[test]
    fn a_partial_line_does_not_corrupt_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        fs::write(&path, "{\"at\":\"1970-01-01T00").unwrap();
        for _ in 0..2 {
            append(&path, &line(&act("x"), "applied", Timestamp::UNIX_EPOCH).unwrap()).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let whole = |line: &&str| serde_json::from_str::<Value>(line).is_ok();
        assert_eq!((text.lines().count(), text.lines().filter(whole).count()), (3, 2));
    }

    #[test]
    fn an_answer_is_logged_as_a_digest() {
        let headers = vec![Field::new("location", "/charges/7")];
        let response =
            StoredResponse { status: 201, headers, body: "abc".into(), trailers: vec![] };
        let act = OperatorAction { answer: Some(AnswerDigest::of(&response)), ..act("x") };
        let line = line(&act, "applied", Timestamp::UNIX_EPOCH).unwrap();
        let line: Value = serde_json::from_slice(&line).unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let expected = serde_json::json!({
            "status": 201, "headers": ["location"], "body_bytes": 3, "body_sha256": sha256,
        });
        assert_eq!(line["answer"], expected);
    }

    #[tokio::test]
    async fn an_action_is_refused_if_the_audit_log_cannot_be_written() {
        struct Done;
        impl AuditResult for Done {
            fn result(&self) -> String {
                "applied".to_owned()
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let mut done = false;
        let operation = async {
            done = true;
            Done
        };
        let audit = AuditLog::at(folder.path().join("missing").join("audit.jsonl"));
        assert!(audit.run_logged(act("x"), operation).await.is_err());
        assert!(!done);
    }
}
