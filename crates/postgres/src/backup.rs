//! Backs up the tables of a store with PostgreSQL's `pg_dump`.

use std::{
    fmt, fs, io,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};

use crate::{meta, options::Options, session::SessionConnector};

const PROGRAM: &str = "pg_dump";

/// The command that writes a store to a file, which `pg_restore` reads.
#[derive(Clone)]
pub struct BackupCommand {
    arguments: Vec<String>,
    /// Not an argument, because every user of the machine can see those.
    password: Option<String>,
}

/// The outcome of a backup.
#[derive(Debug)]
#[non_exhaustive]
pub enum Backup {
    /// The file is written.
    Written,
    /// `pg_dump` is not installed here. This is the command, for a machine that has it.
    NotInstalled(BackupCommand),
    /// `pg_dump` failed with this message.
    Failed(String),
}

/// The command that backs a store up to `file`.
#[must_use]
pub fn backup_command(options: &Options, file: &Path) -> BackupCommand {
    command(options, &options.config, file)
}

/// Backs a store up to a new file that only its owner may read.
///
/// # Errors
///
/// If the database cannot be reached, has no store of this version, or the file cannot be created.
pub async fn backup(options: &Options, file: &Path) -> Result<Backup, StoreError> {
    let connector = Arc::new(SessionConnector::new(options.clone())?);
    let session = connector.open_first().await?;
    let found = meta::read(&session.client, &options.names).await?;
    if !found.as_ref().map(meta::is_usable).transpose()?.unwrap_or(false) {
        let (display_url, schema) = (options.display_url(), options.names.schema());
        let message = format!("{display_url}: there is no store of this version in `{schema}`");
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    // The server of the session, not a former primary that comes first in the URL.
    let config = connector.config_of(&session).unwrap_or(&options.config);
    let command = command(options, config, file);
    drop(session);
    let file = file.to_owned();
    let ran = tokio::task::spawn_blocking(move || command.run(&file)).await;
    let ran = ran.unwrap_or_else(|error| Err(io::Error::other(error)));
    ran.map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, format!("the backup: {error}")).because(error)
    })
}

fn command(options: &Options, config: &Config, file: &Path) -> BackupCommand {
    let mut arguments = vec!["--format=custom".to_owned(), format!("--file={}", file.display())];
    for table in ["{records}", "{meta}", "{metadata}", "{limit_counters}", "{fences}"] {
        arguments.push(format!("--table={}", options.names.fill(table)));
    }
    arguments.push(format!("--dbname={}", conninfo(options, config)));
    let password = config.get_password().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    BackupCommand { arguments, password }
}

impl BackupCommand {
    /// The program.
    #[must_use]
    pub const fn program(&self) -> &'static str {
        PROGRAM
    }

    /// Its arguments. The password is not among them.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    fn run(self, file: &Path) -> io::Result<Backup> {
        let found = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status();
        if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(Backup::NotInstalled(self));
        }
        // Created first, because the program would make it readable to others.
        private_file(file)?;
        let mut dump = Command::new(PROGRAM);
        dump.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(password) = &self.password {
            dump.env("PGPASSWORD", password);
        }
        let output = dump.output()?;
        if output.status.success() {
            return Ok(Backup::Written);
        }
        fs::remove_file(file)?;
        Ok(Backup::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// Creates a new file that only its owner may read.
fn private_file(file: &Path) -> io::Result<()> {
    let mut new = fs::OpenOptions::new();
    new.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut new, 0o600);
    new.open(file).map(drop)
}

impl fmt::Display for BackupCommand {
    /// The command for a shell. If the URL has a password, set `PGPASSWORD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PROGRAM)?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", shell(argument)))
    }
}

impl fmt::Debug for BackupCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupCommand").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

/// Quotes a word for a shell.
fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The connection string for PostgreSQL's own programs.
fn conninfo(options: &Options, config: &Config) -> String {
    let host = |host: &Host| match host {
        Host::Tcp(host) => host.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let hosts: Vec<String> = config.get_hosts().iter().map(host).collect();
    let addresses: Vec<String> = config.get_hostaddrs().iter().map(ToString::to_string).collect();
    let ports: Vec<String> = config.get_ports().iter().map(ToString::to_string).collect();
    let mut parts = vec![
        ("host", hosts.join(",")),
        ("hostaddr", addresses.join(",")),
        ("port", ports.join(",")),
        ("user", config.get_user().unwrap_or_default().to_owned()),
        ("dbname", config.get_dbname().unwrap_or_default().to_owned()),
        ("options", config.get_options().unwrap_or_default().to_owned()),
    ];
    if options.verify {
        let root_certificates = options.root_certificates().map(|path| path.display().to_string());
        parts.push(("sslmode", "verify-full".to_owned()));
        parts.push(("sslrootcert", root_certificates.unwrap_or_else(|| "system".to_owned())));
    } else {
        let mode = match config.get_ssl_mode() {
            SslMode::Disable => "disable",
            SslMode::Require => "require",
            SslMode::Prefer | _ => "prefer",
        };
        parts.push(("sslmode", mode.to_owned()));
    }
    if hosts.len().max(addresses.len()) > 1 {
        parts.push(("target_session_attrs", "read-write".to_owned()));
    }
    let parts = parts.iter().filter(|(_, value)| !value.is_empty());
    let parts: Vec<String> =
        parts.map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    parts.join(" ")
}

/// Quotes a value for libpq.
fn quoted(value: &str) -> String {
    if value.chars().all(|c| !c.is_whitespace() && c != '\'' && c != '\\') {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        backup_command(&Options::parse(url).unwrap(), Path::new("semel.dump")).to_string()
    }

    #[test]
    fn the_command_is_quoted_for_a_shell() {
        assert_eq!(
            shown("postgres://semel@db/app?schema=money&sslmode=disable"),
            "pg_dump --format=custom --file=semel.dump \
             '--table=\"money\".\"semel_records\"' '--table=\"money\".\"semel_meta\"' \
             '--table=\"money\".\"semel_metadata\"' \
             '--table=\"money\".\"semel_limit_counters\"' '--table=\"money\".\"semel_fences\"' \
             '--dbname=host=db port=5432 user=semel dbname=app sslmode=disable'"
        );
    }

    #[test]
    fn the_command_has_all_of_the_url_but_the_password() {
        let url = "postgres://o%27b:secret@a:1,b:2/d?sslmode=verify-full&sslrootcert=/my%20ca.pem\
                   &options=-c%20x=y";
        let options = Options::parse(url).unwrap();
        let command = backup_command(&options, Path::new("f"));
        let database = command.arguments().last().unwrap();
        assert_eq!(
            database,
            "--dbname=host=a,b port=1,2 user='o\\'b' dbname=d options='-c x=y' \
             sslmode=verify-full sslrootcert='/my ca.pem' target_session_attrs=read-write"
        );
        assert_eq!(command.password.as_deref(), Some("secret"));
        assert!(!format!("{command} {command:?}").contains("secret"));
    }
}
