//! The audit log: who did what to which record, when and why. It is only ever appended to.
//!
//! Each act has two lines: what is intended, on the disk before anything is done, and what came of
//! it. An act whose first line cannot be written is not done.

use std::{
    fs::File,
    future::Future,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use jiff::Timestamp;
use semel::core::{Fence, Field, RecordId, StateName, StoredResponse};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::store;

/// How much of what somebody said is written down.
const CHARS_MAX: usize = 1000;

/// Where acts are written down.
#[derive(Clone, Debug)]
pub(crate) struct Audit(Arc<Path>);

/// Something that an operator does.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    /// Who does it, and how that is known.
    pub(crate) who: String,
    /// What: `resolve`, `delete`, `sweep`, `reload`, `new-store`, `after-restore`.
    pub(crate) act: &'static str,
    /// To which record, and how it was seen.
    pub(crate) record: Option<(RecordId, StateName, Fence)>,
    /// What it is to become.
    pub(crate) to: Option<String>,
    /// The answer that is recorded.
    pub(crate) answer: Option<Recorded>,
    /// Why.
    pub(crate) why: String,
}

/// What is written down of a recorded answer: enough to tell whether it is the one that clients
/// get, and nothing of what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Recorded {
    status: u16,
    /// The names of its headers.
    headers: Vec<String>,
    body_bytes: usize,
    body_sha256: String,
}

impl Recorded {
    pub(crate) fn of(response: &StoredResponse) -> Self {
        let name = |field: &Field| String::from_utf8_lossy(&field.name).into_owned();
        Self {
            status: response.status,
            headers: response.headers.iter().map(name).collect(),
            body_bytes: response.body.len(),
            body_sha256: store::hexadecimal(&Sha256::digest(&response.body)),
        }
    }
}

/// A line, as it is written.
#[derive(Serialize)]
struct Line<'a> {
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
    seen: Option<Seen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a Recorded>,
    why: &'a str,
    result: &'a str,
}

#[derive(Serialize)]
struct Seen {
    state: &'static str,
    fence: u64,
}

/// What an act came to, in a word for the audit log.
pub(crate) trait Audited {
    /// The word.
    fn result(&self) -> String;
}

impl<T: Audited, E: std::fmt::Display> Audited for Result<T, E> {
    fn result(&self) -> String {
        match self {
            Ok(done) => done.result(),
            Err(error) => format!("failed: {error}"),
        }
    }
}

impl Audit {
    /// Acts are written to this file, which is made when it is needed.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into().into())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the file if it is not there. A server does this first of all: the file belongs to
    /// whoever makes it, and if that is an operator, the server cannot write to it.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        let made = append(&self.0, b"");
        made.with_context(|| format!("the audit log {} cannot be written", self.0.display()))
    }

    /// Does something, with a line before and a line after.
    ///
    /// # Errors
    ///
    /// If the first line cannot be written; then nothing was done.
    pub(crate) async fn around<T: Audited>(
        &self,
        act: Act,
        doing: impl Future<Output = T>,
    ) -> anyhow::Result<T> {
        let act = Arc::new(act);
        self.write(&act, "intended".to_owned()).await.with_context(|| {
            let path = self.0.display();
            format!("the audit log {path} cannot be written, so nothing was done")
        })?;
        let done = doing.await;
        let result = done.result();
        let Act { who, act: what, to, why, .. } = &*act;
        let record = act.record.as_ref().map(|(id, ..)| id.to_string());
        tracing::warn!(who, act = what, record, to, why, result, "an operator acted");
        if let Err(error) = self.write(&act, result).await {
            // It is done; the line before it is there and says what was intended.
            tracing::error!(%error, "the result of an act could not be written to the audit log");
        }
        Ok(done)
    }

    /// Writes one line about something that is about to be done.
    ///
    /// # Errors
    ///
    /// If the line cannot be written; then it must not be done.
    pub(crate) async fn note(&self, act: Act, result: &str) -> anyhow::Result<()> {
        let act = Arc::new(act);
        self.write(&act, result.to_owned()).await.with_context(|| {
            let path = self.0.display();
            format!("the audit log {path} cannot be written, so nothing was done")
        })?;
        let Act { who, act, to, why, .. } = &*act;
        tracing::warn!(who, act, to, why, result, "an operator acted");
        Ok(())
    }

    async fn write(&self, act: &Arc<Act>, result: String) -> io::Result<()> {
        let (path, act) = (Arc::clone(&self.0), Arc::clone(act));
        let write = move || append(&path, &line(&act, &result, Timestamp::now())?);
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
    }
}

/// A line with its end.
fn line(act: &Act, result: &str, at: Timestamp) -> io::Result<Vec<u8>> {
    let id = act.record.as_ref().map(|(id, ..)| id);
    let seen = act.record.as_ref();
    let line = Line {
        at: at.to_string(),
        who: cut(&act.who),
        act: act.act,
        scope: id.map(|id| id.scope.as_str()),
        caller: id.map(|id| id.caller.as_str()),
        key: id.map(|id| id.key.as_str()),
        seen: seen.map(|(_, state, fence)| Seen { state: state.as_str(), fence: fence.get() }),
        to: act.to.as_deref(),
        answer: act.answer.as_ref(),
        why: cut(&act.why),
        result: cut(result),
    };
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(CHARS_MAX).and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

/// Appends a line and syncs it, one writer at a time, so that lines of several processes do not
/// mix. After what a full disk left of another it begins anew.
fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let is_new = !path.exists();
    let mut file = store::private().read(true).append(true).create(true).open(path)?;
    // Until it is closed: the end of a file that others write to means nothing.
    file.lock()?;
    let whole = [b"\n", line].concat();
    let line = if line.is_empty() || is_at_line_start(&mut file)? { line } else { &whole };
    let written = file.write(line)?;
    if written < line.len() {
        return Err(io::Error::new(io::ErrorKind::WriteZero, "only a part of a line was written"));
    }
    file.sync_data()?;
    if is_new { store::sync_folder(path) } else { Ok(()) }
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

    fn act(why: &str) -> Act {
        let (who, why) = ("zoe".to_owned(), why.to_owned());
        Act { who, act: "sweep", record: None, to: None, answer: None, why }
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
    fn what_is_said_stays_on_one_line_and_has_an_end() {
        let act = act(&format!("a\nb\"{}", "é".repeat(2000)));
        let line = line(&act, "applied", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["why"].as_str().unwrap().chars().count(), CHARS_MAX);
        assert_eq!((&line["at"], &line["who"]), (&"1970-01-01T00:00:00Z".into(), &"zoe".into()));
        assert_eq!(line.get("scope"), None);
    }

    #[test]
    fn half_a_line_does_not_spoil_the_next() {
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
    fn of_an_answer_it_is_written_what_it_was_and_not_what_it_said() {
        let headers = vec![Field::new("location", "/charges/7")];
        let response =
            StoredResponse { status: 201, headers, body: "abc".into(), trailers: vec![] };
        let act = Act { answer: Some(Recorded::of(&response)), ..act("x") };
        let line = line(&act, "applied", Timestamp::UNIX_EPOCH).unwrap();
        let line: Value = serde_json::from_slice(&line).unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let expected = serde_json::json!({
            "status": 201, "headers": ["location"], "body_bytes": 3, "body_sha256": sha256,
        });
        assert_eq!(line["answer"], expected);
    }

    #[tokio::test]
    async fn nothing_is_done_if_it_cannot_be_written_down_before() {
        struct Done;
        impl Audited for Done {
            fn result(&self) -> String {
                "applied".to_owned()
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let mut done = false;
        let doing = async {
            done = true;
            Done
        };
        let audit = Audit::at(folder.path().join("missing").join("audit.jsonl"));
        assert!(audit.around(act("x"), doing).await.is_err());
        assert!(!done);
    }
}
