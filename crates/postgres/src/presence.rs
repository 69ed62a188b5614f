//! Looks for stores in a database, without changing anything: before a store is created, the
//! operator may have meant an existing one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use semel_core::{StoreError, StoreId};
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use crate::{
    error::corrupt,
    meta,
    options::Options,
    session::{Session, SessionConnector},
};

/// The stores in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Presence {
    /// The store that the options name, if it exists.
    pub store: Option<PresentStore>,
    /// The tables of other stores in the same database, five at most: `schema.table`.
    pub others: Vec<String>,
}

/// An existing store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresentStore {
    /// Its unique identity.
    pub id: StoreId,
    /// When it was created, by the clock of the database.
    pub created_at: SystemTime,
}

/// How many other stores are listed.
const OTHERS_MAX: usize = 5;

/// Tables with the columns of `meta` that every version has, whatever the prefix is.
const OTHERS: &str = "
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE
    c.relkind = 'r'
    AND c.relname LIKE '%meta'
    AND (n.nspname, c.relname) <> (trim('\"' FROM {schema_text}), '{prefix}meta')
    AND 5 = (
        SELECT count(*)
        FROM pg_catalog.pg_attribute AS a
        WHERE
            a.attrelid = c.oid
            AND a.attname IN ('one', 'version', 'oldest', 'epoch', 'store')
            AND NOT a.attisdropped
    )
ORDER BY 1
LIMIT {limit}";

const STORE: &str = "SELECT store, extract(epoch FROM created_at) FROM {meta}";

impl Options {
    /// Looks for stores in the database.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or the role may not read the table `meta`.
    pub async fn find_stores(&self) -> Result<Presence, StoreError> {
        let session = Arc::new(SessionConnector::new(self.clone())?).open_first().await?;
        let store = match meta::read(&session.client, &self.names).await? {
            Some(meta) if meta::is_usable(&meta)? => Some(self.present_store(&session).await?),
            Some(meta) => Some(PresentStore {
                id: store_id(&meta.store).ok_or_else(|| corrupt("the identity"))?,
                created_at: SystemTime::UNIX_EPOCH,
            }),
            None => None,
        };
        let others = self.names.fill(OTHERS).replace("{limit}", &OTHERS_MAX.to_string());
        let others = session.simple_query(&others).await?;
        let others = rows(&others).filter_map(|row| row.get(0).map(str::to_owned)).collect();
        Ok(Presence { store, others })
    }

    async fn present_store(&self, session: &Session) -> Result<PresentStore, StoreError> {
        let answer = session.simple_query(&self.names.fill(STORE)).await?;
        let read = |row: &SimpleQueryRow| {
            let seconds: f64 = row.get(1)?.parse().ok()?;
            let age = Duration::try_from_secs_f64(seconds).ok()?;
            Some(PresentStore {
                id: store_id(row.get(0)?)?,
                created_at: SystemTime::UNIX_EPOCH.checked_add(age)?,
            })
        };
        rows(&answer).find_map(read).ok_or_else(|| corrupt("the row of `meta`"))
    }
}

fn rows(answer: &[SimpleQueryMessage]) -> impl Iterator<Item = &SimpleQueryRow> {
    answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        SimpleQueryMessage::CommandComplete(_) | SimpleQueryMessage::RowDescription(_) | _ => None,
    })
}

/// The identity of a store, from the text of a UUID.
pub(crate) fn store_id(uuid: &str) -> Option<StoreId> {
    let digits: String = uuid.chars().filter(|digit| *digit != '-').collect();
    let bytes = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    Some(StoreId::from_bytes(bytes))
}
