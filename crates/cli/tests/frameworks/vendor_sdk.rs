//! The SDKs of Stripe and of OpenAI as clients, unchanged.

use std::{
    io::Write as _,
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{HERE, process::prepared};

/// Whose, and in which language.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sdk {
    StripePython,
    StripeNode,
    OpenAiPython,
    OpenAiNode,
}

/// One call. The SDK may send it several times.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Call {
    /// What the result is found by.
    pub(crate) name: String,
    pub(crate) resource: &'static str,
    pub(crate) method: &'static str,
    /// `None` sends no key where the SDK does not make one itself.
    pub(crate) key: Option<String>,
    pub(crate) api_key: String,
    pub(crate) description: String,
    /// How often the SDK may send it again.
    pub(crate) retries: u32,
}

impl Call {
    /// Creates an object under a key, as a caller of its own. OpenAI's SDK creates a completion
    /// whatever the resource.
    pub(crate) fn create(resource: &'static str, key: &str) -> Self {
        Self {
            name: key.to_owned(),
            resource,
            method: "create",
            key: Some(key.to_owned()),
            api_key: format!("sk_test_{}", key.replace(' ', "_")),
            description: "an order".to_owned(),
            retries: 2,
        }
    }

    /// Reads an object. The SDKs send no key with this.
    pub(crate) fn retrieve(resource: &'static str, name: &str) -> Self {
        Self { method: "retrieve", key: None, ..Self::create(resource, name) }
    }

    /// The same call under another name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }
}

/// What the SDK reported to the program that made a call.
#[derive(Debug, Deserialize)]
pub(crate) struct SdkResult {
    pub(crate) name: String,
    /// The object, where the call succeeded in the eyes of the SDK.
    pub(crate) resolved: Option<Value>,
    /// The class of the exception, without the `Stripe` that Node's begin with.
    pub(crate) class: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
}

/// Calls that are being made.
#[derive(Debug)]
pub(crate) struct Calling {
    child: Child,
    calls: usize,
}

impl Sdk {
    const fn script(self) -> &'static str {
        match self {
            Self::StripePython => "stripe_sdk.py",
            Self::StripeNode => "stripe_sdk.js",
            Self::OpenAiPython => "openai_sdk.py",
            Self::OpenAiNode => "openai_sdk.js",
        }
    }

    /// Begins to make calls: those of a sequence one after the other, the sequences at the same
    /// time. `None` where the language is not there.
    pub(crate) fn call(self, server: SocketAddr, sequences: &[Vec<Call>]) -> Option<Calling> {
        let mut command = match self {
            Self::StripePython | Self::OpenAiPython => Command::new(prepared("SEMEL_TEST_PYTHON")?),
            Self::StripeNode | Self::OpenAiNode => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", prepared("SEMEL_TEST_NODE_MODULES")?);
                node
            }
        };
        command.arg(format!("{HERE}/clients/{}", self.script()));
        command.env("NO_PROXY", "127.0.0.1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
        let wanted = json!({ "url": format!("http://{server}"), "sequences": sequences });
        child.stdin.take().unwrap().write_all(wanted.to_string().as_bytes()).unwrap();
        Some(Calling { child, calls: sequences.iter().map(Vec::len).sum() })
    }
}

impl Calling {
    /// Waits for the end of all calls.
    pub(crate) fn end(self) -> Vec<SdkResult> {
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "the program failed: {}", output.status);
        let output = String::from_utf8(output.stdout).unwrap();
        let results: Vec<SdkResult> =
            output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(results.len(), self.calls, "{output}");
        results
    }
}
