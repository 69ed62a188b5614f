//! Every statement, one file for each verb, with the types of what it is given.
//!
//! Whatever finds its records by their digests says nothing of an owner that would make an index of
//! those that somebody runs, or nobody, fit as well: it says `state = 'in_flight'`, and `IS
//! DISTINCT FROM`, which may be true without an owner. A server that has counted few that run would
//! go through all of them instead.

use tokio_postgres::types::Type;

use crate::names::Names;

/// The columns of a record, in the order in which [`row`](crate::row) reads them.
const RECORD: &str = "r.fence, r.fingerprint, r.attempt, r.on_unknown, r.retention, \
                      r.claimed_at, r.expires_at, r.lease_until, r.owner, r.state::text, \
                      r.answer";

/// The same without what may be large.
const SUMMARY: &str = "r.fence, r.fingerprint, r.attempt, r.on_unknown, r.retention, \
                       r.claimed_at, r.expires_at, r.lease_until, r.owner, r.state::text, \
                       NULL::bytea";

/// When a record that ends now expires: retention counts from the claim, unless less than half of
/// it is left. It goes by the claim because a held record has no expiry of its own.
const EXPIRY: &str = "CASE WHEN greatest(r.claimed_at + r.retention * {millisecond}, {now}) \
                      < {now} + r.retention * interval '500 microseconds' \
                      THEN {now} ELSE r.claimed_at END + r.retention * {millisecond}";

/// A notification takes a lock that all of the database shares, so nobody is told who did not ask.
const TELL: &str = "CASE WHEN r.watched THEN pg_notify({channel}, r.digest::text) END AS told";

macro_rules! verbs {
    ($($verb:ident $file:literal [$($type:ident)*];)*) => {
        /// What can be asked of the database.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Verb {
            $($verb,)*
        }

        impl Verb {
            pub(crate) const ALL: &[Self] = &[$(Self::$verb,)*];

            const fn text(self) -> &'static str {
                match self {
                    $(Self::$verb => include_str!(concat!("sql/", $file, ".sql")),)*
                }
            }

            /// The types of its parameters.
            pub(crate) const fn types(self) -> &'static [Type] {
                match self {
                    $(Self::$verb => &[$(Type::$type),*],)*
                }
            }
        }
    };
}

// In the order in which they are sent within one transaction: whatever locks rows comes before what
// inserts them.
verbs! {
    Begin "begin" [];
    Complete "complete" [UUID_ARRAY INT8_ARRAY BYTEA_ARRAY];
    Renew "renew" [UUID_ARRAY INT8_ARRAY INT8_ARRAY];
    Release "release" [UUID_ARRAY INT8_ARRAY INT4_ARRAY];
    Hold "hold" [UUID_ARRAY INT8_ARRAY];
    Check "check" [UUID_ARRAY];
    Watch "watch" [UUID_ARRAY];
    Again "again" [UUID_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY];
    Take "take" [UUID_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY INT8_ARRAY TEXT_ARRAY];
    Settle "settle" [BYTEA UUID_ARRAY BYTEA_ARRAY UUID_ARRAY];
    Claim "claim" [
        UUID_ARRAY TEXT_ARRAY TEXT_ARRAY TEXT_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY INT8_ARRAY
        TEXT_ARRAY
    ];
    ClaimOne "claim_one" [UUID TEXT TEXT TEXT BYTEA UUID INT8 INT8 TEXT];
    CompleteOne "complete_one" [UUID INT8 BYTEA];
    Get "get" [UUID_ARRAY];
    Commit "commit" [];
    Resolve "resolve" [UUID INT8 TEXT BYTEA];
    Forget "forget" [UUID INT8 TEXT];
    Raise "raise" [];
    Epoch "epoch" [];
    Reap "reap" [BYTEA INT8];
    Sweep "sweep" [INT8];
    List "list" [UUID INT8];
    ListOpen "list_open" [UUID INT8];
}

/// The statements of one store.
#[derive(Debug)]
pub(crate) struct Statements(Vec<String>);

impl Statements {
    pub(crate) fn new(names: &Names) -> Self {
        let filled = |verb: &Verb| {
            let text = verb.text().replace("{record}", RECORD).replace("{summary}", SUMMARY);
            let text = text.replace("{expiry}", EXPIRY).replace("{tell}", TELL);
            names.fill(&text.replace("{millisecond}", "interval '1 millisecond'"))
        };
        Self(Verb::ALL.iter().map(filled).collect())
    }

    pub(crate) fn sql(&self, verb: Verb) -> &str {
        self.0.get(verb as usize).map_or("", String::as_str)
    }
}
