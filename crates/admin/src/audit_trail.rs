//! What the audit log says about one record. Only the end of the file is read.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom},
    path::Path,
};

use semel::core::RecordId;
use serde::Deserialize;

use crate::audit::AuditLog;

/// How much of the file is read, from its end.
const READ_BYTES_MAX: u64 = 8 << 20;

/// Maximum number of acts that are returned: the newest.
const ACTS_MAX: usize = 100;

/// The acts on a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditTrail {
    /// The oldest first.
    pub(crate) acts: Vec<PastAct>,
    /// Whether a part of the file was not read, or acts were left out.
    pub(crate) is_cut: bool,
}

/// An act, as a line of the log has it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct PastAct {
    /// The time: RFC 3339, UTC.
    pub(crate) at: String,
    pub(crate) who: String,
    pub(crate) act: String,
    scope: String,
    caller: String,
    key: String,
    /// The new state.
    pub(crate) to: Option<String>,
    pub(crate) why: String,
    /// `intended` where no result was written.
    pub(crate) result: String,
}

impl AuditLog {
    /// The acts on a record, from the end of the log. A log that is missing is empty.
    pub(crate) async fn trail(&self, id: &RecordId) -> io::Result<AuditTrail> {
        let (path, id) = (self.path().to_owned(), id.clone());
        let read = move || read(&path, &id);
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }
}

fn read(path: &Path, id: &RecordId) -> io::Result<AuditTrail> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(AuditTrail::default()),
        Err(error) => return Err(error),
    };
    let start = file.metadata()?.len().saturating_sub(READ_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut trail = AuditTrail { acts: Vec::new(), is_cut: start > 0 };
    // The first line may be a part of one, which is not JSON.
    for line in BufReader::new(file).split(b'\n') {
        let Ok(act) = serde_json::from_slice::<PastAct>(&line?) else { continue };
        if act.scope == id.scope.as_str()
            && act.caller == id.caller.as_str()
            && act.key == id.key.as_str()
            && !act.act.is_empty()
        {
            trail.add(act);
        }
    }
    if let Some(excess) = trail.acts.len().checked_sub(ACTS_MAX).filter(|excess| *excess > 0) {
        trail.acts.drain(..excess);
        trail.is_cut = true;
    }
    Ok(trail)
}

impl AuditTrail {
    /// Adds a line. The result of an act replaces its intention.
    fn add(&mut self, act: PastAct) {
        let is_result = |intended: &&mut PastAct| {
            intended.result == "intended"
                && (&intended.who, &intended.act, &intended.why) == (&act.who, &act.act, &act.why)
        };
        match self.acts.iter_mut().rev().find(is_result).filter(|_| act.result != "intended") {
            Some(intended) => *intended = act,
            None => self.acts.push(act),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use semel::core::{Fence, StateName};

    use super::*;
    use crate::{
        audit::{AuditResult, OperatorAction},
        requests::record_id,
    };

    struct Done;

    impl AuditResult for Done {
        fn result(&self) -> String {
            "applied".to_owned()
        }
    }

    fn act(key: &str, why: &str) -> OperatorAction {
        let id = record_id("payments", "shop-7", key).unwrap();
        OperatorAction {
            who: "zoe".to_owned(),
            act: "resolve",
            record: Some((id, StateName::Held, Fence::new(7).unwrap())),
            to: Some("released".to_owned()),
            answer: None,
            why: why.to_owned(),
        }
    }

    #[tokio::test]
    async fn the_trail_has_the_acts_on_one_record_with_their_results() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = AuditLog::at(&path);
        let id = record_id("payments", "shop-7", "k\"1").unwrap();
        assert_eq!(audit.trail(&id).await.unwrap(), AuditTrail::default());
        audit.run_logged(act("k\"1", "first"), async { Done }).await.unwrap();
        audit.run_logged(act("other", "first"), async { Done }).await.unwrap();
        audit.note(act("k\"1", "broke off"), "intended").await.unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"at\":\"a partial li").unwrap();
        let trail = audit.trail(&id).await.unwrap();
        let seen: Vec<_> = trail.acts.iter().map(|act| (&*act.why, &*act.result)).collect();
        assert_eq!(seen, [("first", "applied"), ("broke off", "intended")]);
        assert!(!trail.is_cut);
    }

    #[tokio::test]
    async fn only_the_end_of_a_large_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = AuditLog::at(&path);
        let id = record_id("payments", "shop-7", "k").unwrap();
        audit.note(act("k", "long ago"), "applied").await.unwrap();
        let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let filler = [b" ".repeat(1023), b"\n".to_vec()].concat();
        let mut file = io::BufWriter::new(file);
        (0..READ_BYTES_MAX / 1024).for_each(|_| file.write_all(&filler).unwrap());
        drop(file);
        audit.note(act("k", "today"), "applied").await.unwrap();
        let trail = audit.trail(&id).await.unwrap();
        assert_eq!((trail.acts.len(), trail.is_cut), (1, true));
        assert_eq!(trail.acts[0].why, "today");
    }
}
