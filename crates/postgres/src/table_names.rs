//! The names of the tables, and how they are filled into statements.

use sha2::{Digest as _, Sha256};

/// The longest prefix: with `_records` and the like it still fits into PostgreSQL's 63 bytes.
const PREFIX_BYTES_MAX: usize = 40;

/// PostgreSQL's limit for names.
const NAME_BYTES_MAX: usize = 63;

/// The clock of the store: that of the database, constant within a statement. The rules truncate it
/// to milliseconds, so a lease that has expired by the rules has expired here.
const NOW: &str = "statement_timestamp()";

/// The names of one store's tables, quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableNames {
    schema: String,
    prefix: String,
    now: String,
}

impl Default for TableNames {
    fn default() -> Self {
        Self { schema: "public".to_owned(), prefix: "semel_".to_owned(), now: NOW.to_owned() }
    }
}

impl TableNames {
    /// Sets the schema; the error says what is wrong with it.
    pub(crate) fn set_schema(&mut self, schema: &str) -> Result<(), String> {
        self.schema = checked(schema, "schema", NAME_BYTES_MAX)?;
        if schema.is_empty() { Err("`schema` is empty".to_owned()) } else { Ok(()) }
    }

    /// Sets the prefix of the tables' names.
    pub(crate) fn set_prefix(&mut self, prefix: &str) -> Result<(), String> {
        self.prefix = checked(prefix, "prefix", PREFIX_BYTES_MAX)?;
        Ok(())
    }

    /// Sets the SQL expression for the current time.
    pub(crate) fn set_now(&mut self, now: &str) {
        now.clone_into(&mut self.now);
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The channel of notifications. Channels belong to the whole database, so every store has its
    /// own.
    pub(crate) fn channel(&self) -> String {
        format!("semel_{:016x}", self.hash("channel"))
    }

    /// The advisory lock of migrations.
    pub(crate) fn lock(&self) -> i64 {
        i64::from_be_bytes(self.hash("lock").to_be_bytes())
    }

    fn hash(&self, purpose: &str) -> u64 {
        let hash = Sha256::digest(format!("semel {purpose} {}.{}", self.schema, self.prefix));
        hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Fills every `{name}` in a statement.
    pub(crate) fn fill(&self, sql: &str) -> String {
        let table = |name: &str| format!("\"{}\".\"{}{name}\"", self.schema, self.prefix);
        sql.replace("{schema}", &format!("\"{}\"", self.schema))
            .replace("{schema_text}", &format!("'\"{}\"'", self.schema))
            .replace("{prefix}", &self.prefix)
            .replace("{records}", &table("records"))
            .replace("{meta}", &table("meta"))
            .replace("{metadata}", &table("metadata"))
            .replace("{limit_counters}", &table("limit_counters"))
            .replace("{fences}", &table("fences"))
            .replace("{fences_text}", &format!("'{}'", table("fences")))
            .replace("{records_text}", &format!("'{}'", table("records")))
            .replace("{channel}", &format!("'{}'", self.channel()))
            .replace("{lock}", &self.lock().to_string())
            .replace("{now}", &self.now)
    }
}

/// Accepts letters, digits and underscores only, which need no escaping anywhere.
fn checked(name: &str, what: &str, bytes_max: usize) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.chars().find(|c| !plain(*c)) {
        Some(c) => Err(format!("`{what}` has `{c}`; use letters, digits and underscores")),
        None if name.len() > bytes_max => {
            Err(format!("`{what}` has {} characters, at most {bytes_max} are allowed", name.len()))
        }
        None => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_filled_in() {
        let mut names = TableNames::default();
        names.set_schema("Money").unwrap();
        names.set_prefix("x_").unwrap();
        let filled = names.fill("SELECT nextval({fences_text}) FROM {records}");
        assert_eq!(filled, "SELECT nextval('\"Money\".\"x_fences\"') FROM \"Money\".\"x_records\"");
    }

    #[test]
    fn a_name_that_needs_escaping_is_refused() {
        let mut names = TableNames::default();
        assert!(names.set_schema("a\"b").is_err());
        assert!(names.set_schema("").is_err());
        assert!(names.set_prefix("a-b").is_err());
        assert!(names.set_prefix(&"a".repeat(41)).is_err());
        assert!(names.set_prefix("").is_ok());
    }

    #[test]
    fn every_store_has_a_channel_of_its_own() {
        let (one, mut other) = (TableNames::default(), TableNames::default());
        other.set_prefix("other_").unwrap();
        assert_ne!(one.channel(), other.channel());
        assert_ne!(one.lock(), other.lock());
    }
}
