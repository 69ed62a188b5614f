//! `caller`: who sent a request, in a file and on the command line.

use http::HeaderName;
use serde_json::{Value, json};

use super::{
    CallerRule,
    read::{Found, Read, Slot, Text, merge, place, wrong_type},
    report::Report,
    settings::{example, is_empty, settings},
    spelling,
    values::CookieName,
};

settings! {
    /// Who the caller is.
    CallerTable {
        /// The value of a header in clear. Whoever can send it can be this caller.
        header: HeaderName = example("X-Merchant-Id");
        /// The value of a header that is a credential, hashed.
        credential: HeaderName = example("X-Api-Key");
        /// The value of a cookie, hashed.
        cookie: CookieName = example("session");
    }
}

const CALLERS: [&str; 5] = ["authorization", "anonymous", "header", "credential", "cookie"];

impl CallerRule {
    /// Reads a rule as the command line has it: `authorization`, `header=X-Merchant-Id`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "anonymous" => Ok(Self::Anonymous),
            Some(("header", name)) => Self::header(<HeaderName as Text>::parse(name)?),
            Some(("credential", name)) => Self::credential(<HeaderName as Text>::parse(name)?),
            Some(("cookie", name)) => CookieName::parse(name).map(|name| Self::Cookie(name.0)),
            _ => {
                let word = text.split('=').next().unwrap_or_default();
                let hint = spelling::hint(word, CALLERS);
                Err(format!(
                    "this must be `authorization`, `anonymous`, `header=NAME`, `credential=NAME` \
                     or `cookie=NAME`{hint}"
                ))
            }
        }
    }

    fn header(name: HeaderName) -> Result<Self, String> {
        if semel_tower::Callers::header(name.clone()).is_err() {
            return Err(format!(
                "the header {name} carries a secret, which would be stored in clear; {}",
                if name == http::header::AUTHORIZATION {
                    "write \"authorization\", which hashes it"
                } else {
                    "take `credential` or `cookie`, which hash it"
                }
            ));
        }
        Ok(Self::Header(name))
    }

    fn credential(name: HeaderName) -> Result<Self, String> {
        match name {
            http::header::AUTHORIZATION => Err("write \"authorization\" for this".to_owned()),
            http::header::COOKIE => Err("name the cookie: `cookie`".to_owned()),
            name => Ok(Self::CredentialHeader(name)),
        }
    }
}

impl Read for CallerRule {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"authorization\", \"anonymous\", { header = … }, \
                                { credential = … } or { cookie = … }";
        match found.get_ref().as_str() {
            Some("authorization") => return Some(Self::Authorization),
            Some("anonymous") => return Some(Self::Anonymous),
            Some(other) => {
                let hint = spelling::hint(other, ["authorization", "anonymous"]);
                report.note(&place(found), format!("this must be {EXPECTED}{hint}"));
                return None;
            }
            None => {}
        }
        if !found.get_ref().is_table() {
            wrong_type(found, EXPECTED, report);
            return None;
        }
        let table = CallerTable::read(found, report)?;
        let rule = match (&table.header, &table.credential, &table.cookie) {
            (Slot::Good(name), Slot::Absent, Slot::Absent) => Self::header(name.value.clone()),
            (Slot::Absent, Slot::Good(name), Slot::Absent) => Self::credential(name.value.clone()),
            (Slot::Absent, Slot::Absent, Slot::Good(name)) => {
                Ok(Self::Cookie(name.value.0.clone()))
            }
            (Slot::Bad, ..) | (_, Slot::Bad, _) | (.., Slot::Bad) => return None,
            // Only names that are unknown: that has been noted.
            (Slot::Absent, Slot::Absent, Slot::Absent) if !is_empty(found) => return None,
            _ => Err("write one of `header`, `credential` or `cookie`".to_owned()),
        };
        rule.map_err(|message| report.note(&place(found), message)).ok()
    }

    fn schema() -> Value {
        let mut table = CallerTable::schema();
        merge(&mut table, json!({ "minProperties": 1, "maxProperties": 1 }));
        json!({ "anyOf": [{ "enum": ["authorization", "anonymous"] }, table] })
    }
}
