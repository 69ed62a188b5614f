//! Every statement, one file for each verb, with the types of what it is given.
//!
//! Whatever finds its records by their digests says nothing that would make an index of open or of
//! finished records fit as well: no `state = 'in_flight'`, but an owner, and no list of the states
//! that it wants, but of those it does not. A server that has counted few open records would go
//! through all of them instead.

use tokio_postgres::types::Type;

use crate::names::Names;

/// The columns of a record, in the order in which [`row`](crate::row) reads them.
const RECORD: &str = "r.fence, r.fingerprint, r.attempt, r.on_unknown, r.retention, \
                      r.claimed_at, r.expires_at, r.lease_until, r.owner, r.state, r.answer";

/// The same without what may be large.
const SUMMARY: &str = "r.fence, r.fingerprint, r.attempt, r.on_unknown, r.retention, \
                       r.claimed_at, r.expires_at, r.lease_until, r.owner, r.state, NULL::bytea";

/// When a record that ends now expires: retention counts from the claim, unless less than half of
/// it is left.
const EXPIRY: &str = "CASE WHEN greatest(r.expires_at - {now}, interval '0') \
                      < r.retention * interval '500 microseconds' \
                      THEN {now} + r.retention * {millisecond} ELSE r.expires_at END";

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

impl Verb {
    /// The statement for the usual case of a single record, where there is one.
    pub(crate) fn of_one(self) -> Option<Self> {
        let shorts = [(Self::Claim, Self::ClaimOne), (Self::Complete, Self::CompleteOne)];
        shorts.into_iter().find(|(many, _)| *many == self).map(|(_, one)| one)
    }

    /// Whether it takes one record, and not arrays of what belongs to many.
    pub(crate) const fn takes_one(self) -> bool {
        matches!(self, Self::ClaimOne | Self::CompleteOne)
    }
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
