//! The journal: which calls were begun and not finished, on disk.
//!
//! One line of JSON for each call that begins and for each that is finished. A beginning is synced
//! before the request may be sent; an end is not, because a call whose end is lost is sent again
//! with the same key, and its answer is replayed.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, header};
use semel_core::fingerprint::{
    BodyKind, Fingerprint, FingerprintInput, FingerprintRule, host_name,
};
use serde::{Deserialize, Serialize};

use crate::{attempt, clock};

const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// Its owner alone can read it: a key lets others read the answer.
const MODE: u32 = 0o600;

/// Lines of finished calls after which the file is written again without them.
const FINISHED_LINES_MAX: usize = 4096;

/// A journal file. One process uses it at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: Mutex<JournalState>,
    /// Locked as long as the journal is open.
    _lock: File,
}

#[derive(Debug)]
struct JournalState {
    file: File,
    unfinished: BTreeMap<String, UnfinishedCall>,
    finished_lines: usize,
}

/// A call that was begun and not finished. Whether its request was sent is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedCall {
    /// The program's name for it.
    pub name: String,
    /// Its key.
    pub key: String,
    /// What its request means, in hexadecimal digits.
    pub fingerprint: String,
    /// When it began, in milliseconds since 1970.
    pub begun_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begun(UnfinishedCall),
    Finished { name: String },
}

/// Why the journal cannot be used for a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("the journal cannot be used: {0}")]
    Io(#[from] io::Error),
    /// Another process has it open.
    #[error("another process has the journal open")]
    InUse,
    /// It is not a journal, or it is damaged.
    #[error("line {line} of the journal cannot be read")]
    Corrupt {
        /// Counted from 1.
        line: usize,
    },
    /// The unfinished call of this name had another request or another key.
    #[error("an unfinished call has this name and another request or key; finish it first")]
    Changed,
    /// The key of the request is not text.
    #[error("the idempotency key of the request is not visible ASCII")]
    Key,
}

impl Journal {
    /// Opens or creates a journal.
    ///
    /// # Errors
    ///
    /// If the file cannot be used, is no journal, or is open in another process.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, JournalError> {
        let path = path.into();
        let lock = options().truncate(false).open(beside(&path, ".lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(JournalError::InUse),
            Err(fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let unfinished = read(&text)?;
        let file = rewrite(&path, &unfinished)?;
        let state = Mutex::new(JournalState { file, unfinished, finished_lines: 0 });
        Ok(Self { path, state, _lock: lock })
    }

    /// Every call that was begun and not finished, by name.
    #[must_use]
    pub fn unfinished(&self) -> Vec<UnfinishedCall> {
        self.lock().unfinished.values().cloned().collect()
    }

    /// Gives a request the key under which the call of this name was begun, or else its own key or
    /// a random one; what is new is on the disk when this returns. It blocks while it syncs.
    ///
    /// # Errors
    ///
    /// If the unfinished call of this name is another one, or the file cannot be written. The
    /// request must not be sent then.
    pub fn prepare(
        &self,
        name: &str,
        mut request: Request<Bytes>,
    ) -> Result<Request<Bytes>, JournalError> {
        let fingerprint = fingerprint(&request);
        let own = request.headers().get(KEY_HEADER).cloned();
        let mut state = self.lock();
        if let Some(begun) = state.unfinished.get(name) {
            let is_other = own.is_some_and(|own| own.as_bytes() != begun.key.as_bytes());
            if is_other || begun.fingerprint != fingerprint {
                return Err(JournalError::Changed);
            }
            let key = HeaderValue::from_str(&begun.key).map_err(|_| JournalError::Key)?;
            request.headers_mut().insert(KEY_HEADER, key);
            return Ok(request);
        }
        let key = own.unwrap_or_else(attempt::random_key);
        let text = key.to_str().map_err(|_| JournalError::Key)?.to_owned();
        request.headers_mut().insert(KEY_HEADER, key);
        let name = name.to_owned();
        let call =
            UnfinishedCall { name: name.clone(), key: text, fingerprint, begun_ms: unix_ms() };
        self.append(&mut state, &Line::Begun(call.clone()))?;
        state.file.sync_data()?;
        state.unfinished.insert(name, call);
        Ok(request)
    }

    /// Forgets the call of this name. Do so when its answer is stored: until then a crash lets the
    /// same call be sent again with the same key.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(&self, name: &str) -> Result<(), JournalError> {
        let mut state = self.lock();
        if state.unfinished.remove(name).is_none() {
            return Ok(());
        }
        state.finished_lines += 1;
        Ok(self.append(&mut state, &Line::Finished { name: name.to_owned() })?)
    }

    /// Appends a line, after a rewrite where the file is long or its last line may be torn.
    fn append(&self, state: &mut JournalState, line: &Line) -> io::Result<()> {
        if state.finished_lines >= FINISHED_LINES_MAX {
            state.file = rewrite(&self.path, &state.unfinished)?;
            state.finished_lines = 0;
        }
        let appended = append(&mut state.file, line);
        if appended.is_err() {
            state.finished_lines = FINISHED_LINES_MAX;
        }
        appended
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls that a journal's text leaves unfinished. What follows the last line break was never
/// synced, so its request was not sent.
fn read(text: &[u8]) -> Result<BTreeMap<String, UnfinishedCall>, JournalError> {
    let mut unfinished = BTreeMap::new();
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = text.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n');
    for (index, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(Line::Begun(call)) => drop(unfinished.insert(call.name.clone(), call)),
            Ok(Line::Finished { name }) => drop(unfinished.remove(&name)),
            Err(_) => return Err(JournalError::Corrupt { line: index + 1 }),
        }
    }
    Ok(unfinished)
}

/// Replaces the file by one with these calls alone, and opens it for appending.
fn rewrite(path: &Path, unfinished: &BTreeMap<String, UnfinishedCall>) -> io::Result<File> {
    let new = beside(path, ".new");
    let mut file = options().truncate(true).open(&new)?;
    for call in unfinished.values() {
        append(&mut file, &Line::Begun(call.clone()))?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

fn append(file: &mut File, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text)
}

fn options() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).mode(MODE);
    options
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// What the request means, as the gateway sees it; a body that is not what its type says is
/// compared byte by byte.
fn fingerprint(request: &Request<Bytes>) -> String {
    let uri = request.uri();
    let host = uri.authority().and_then(|authority| host_name(authority.as_str()));
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let input = FingerprintInput {
        host: host.as_deref(),
        query: uri.query(),
        kind: BodyKind::of(content_type, request.body().is_empty()),
        body: request.body(),
        ..FingerprintInput::new(request.method().as_str(), uri.path())
    };
    let made = Fingerprint::of(&input, &FingerprintRule::default()).unwrap_or_else(|_| {
        let uri = uri.to_string();
        let parts = [request.method().as_str().as_bytes(), uri.as_bytes(), request.body()];
        Fingerprint::of_parts("journal", &parts)
    });
    made.as_bytes().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unix_ms() -> u64 {
    u64::try_from(clock::since_1970().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
