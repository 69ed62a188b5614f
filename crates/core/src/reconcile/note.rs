//! What the reads of a held record have found so far, for operators and for other processes.

use crate::{Fence, Fingerprint, RecordId, Scope};

/// What the names of the notes about the records of a scope begin with in a store's metadata.
#[must_use]
pub fn notes_prefix(scope: &Scope) -> String {
    format!("reconcile:{scope}:")
}

/// What the last read of a held record found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileNote {
    /// The fence of the record that was read. A note of another fence is out of date.
    pub fence: Fence,
    /// Whether the record is read no more.
    pub is_stopped: bool,
    /// What was found, and when.
    pub text: String,
}

impl ReconcileNote {
    /// The name of a record's note in a store's metadata.
    #[must_use]
    pub fn name(id: &RecordId) -> String {
        let parts = [id.scope.as_str(), id.caller.as_str(), id.key.as_str()];
        let digest = Fingerprint::of_parts("reconcile note", &parts.map(str::as_bytes));
        let mut name = notes_prefix(&id.scope);
        for byte in digest.as_bytes() {
            name.push_str(&format!("{byte:02x}"));
        }
        name
    }

    /// The text to store.
    #[must_use]
    pub fn to_stored(&self) -> String {
        let mark = if self.is_stopped { "stopped" } else { "reading" };
        format!("{} {mark} {}", self.fence, self.text)
    }

    /// Reads what a store kept.
    #[must_use]
    pub fn from_stored(stored: &[u8]) -> Option<Self> {
        let mut parts = str::from_utf8(stored).ok()?.splitn(3, ' ');
        let fence = Fence::new(parts.next()?.parse().ok()?)?;
        let is_stopped = match parts.next()? {
            "stopped" => true,
            "reading" => false,
            _ => return None,
        };
        Some(Self { fence, is_stopped, text: parts.next()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Caller, Key};

    use super::*;

    #[test]
    fn a_note_is_read_back_and_belongs_to_one_record() {
        let fence = Fence::new(7).unwrap();
        for is_stopped in [false, true] {
            let note = ReconcileNote { fence, is_stopped, text: "absent at noon".to_owned() };
            assert_eq!(ReconcileNote::from_stored(note.to_stored().as_bytes()), Some(note));
        }
        for damaged in [&b""[..], b"7", b"7 reading", b"0 reading x", b"7 idle x", b"\xff"] {
            assert_eq!(ReconcileNote::from_stored(damaged), None);
        }
        let id = |scope, key| {
            RecordId::new(Scope::new(scope).unwrap(), Caller::anonymous(), Key::new(key).unwrap())
        };
        assert_ne!(ReconcileNote::name(&id("ab", "c")), ReconcileNote::name(&id("a", "bc")));
    }
}
