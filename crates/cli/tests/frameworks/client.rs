//! Clients that retry, as people write them.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};

use serde::Deserialize;

use crate::{HERE, process::prepared};

/// A client that is configured to retry a `POST`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    Urllib3,
    Axios,
}

/// What the client got for a key.
#[derive(Debug, Deserialize)]
pub(crate) struct Heard {
    pub(crate) key: String,
    pub(crate) status: u16,
    pub(crate) replayed: Option<String>,
    pub(crate) tries: usize,
    /// In hexadecimal digits.
    body: String,
}

impl Heard {
    pub(crate) fn body(&self) -> Vec<u8> {
        let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).unwrap()).unwrap();
        let (pairs, []) = self.body.as_bytes().as_chunks() else { panic!("half a byte") };
        pairs.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)).collect()
    }
}

impl Client {
    /// Charges this many customers, one after the other. `None` where the language is not there.
    pub(crate) fn charge(self, server: SocketAddr, count: usize) -> Option<Vec<Heard>> {
        self.charge_under("key-", server, count)
    }

    /// The same under keys with this prefix, which only the client for urllib3 takes.
    pub(crate) fn charge_under(
        self,
        prefix: &str,
        server: SocketAddr,
        count: usize,
    ) -> Option<Vec<Heard>> {
        let mut command = match self {
            Self::Urllib3 => {
                let mut python = Command::new(prepared("SEMEL_TEST_PYTHON")?);
                python.arg(format!("{HERE}/clients/urllib3_retry.py"));
                python
            }
            Self::Axios => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", prepared("SEMEL_TEST_NODE_MODULES")?);
                node.arg(format!("{HERE}/clients/axios_retry.js"));
                node
            }
        };
        command.args([format!("http://{server}"), count.to_string(), prefix.to_owned()]);
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{self:?} gave up: {}", output.status);
        let output = String::from_utf8(output.stdout).unwrap();
        Some(output.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}
