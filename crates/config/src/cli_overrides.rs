//! Command-line flags that override the configuration file.

use super::{
    CallerRule,
    raw::ConfigFile,
    read::{FromText, Located, OneOrMore, TomlField},
    report::{DiagnosticReport, ValueOrigin},
    rules::UpstreamRule,
};

/// Command-line flags that override the configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Overrides {
    /// Upstream URL, such as `http://127.0.0.1:3000`
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// Caller rule, unless a route sets its own: authorization, anonymous, host,
    /// header=NAME, credential=NAME or cookie=NAME. Given several times, they are tried in that
    /// order
    #[arg(long, value_name = "RULE")]
    pub caller: Vec<String>,
    /// Gateway listen address [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Operator API listen address, or "off" [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    pub api: Option<String>,
    /// Store URL: sqlite:PATH, `postgres://USER@HOST/DATABASE`, memory:, or env:NAME for
    /// the variable that holds one of these [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Cache URL: `redis://HOST`, `rediss://HOST` or env:NAME
    #[arg(long, value_name = "URL")]
    pub cache: Option<String>,
}

impl Overrides {
    /// Replaces settings of the file with the flags.
    pub(super) fn apply(&self, raw: &mut ConfigFile, report: &mut DiagnosticReport<'_>) {
        if let Some(url) = &self.upstream {
            let url = read("--upstream", url, report);
            edit(&mut raw.gateway, |gateway| {
                // The other settings of the upstream stay.
                edit(&mut gateway.upstream, |UpstreamRule(table)| table.url = url);
            });
        }
        if let Some(list) = &self.listen {
            let addresses = list.split(',').map(|text| read("--listen", text.trim(), report));
            let addresses = all("--listen", addresses.collect());
            edit(&mut raw.gateway, |gateway| gateway.listen = addresses);
        }
        if let Some(address) = &self.api {
            let listen = read("--api", address, report);
            edit(&mut raw.api, |api| api.listen = listen);
        }
        if let Some(url) = &self.store {
            raw.store = read("--store", url, report);
        }
        if let Some(url) = &self.cache {
            raw.cache = read("--cache", url, report);
        }
        if !self.caller.is_empty() {
            let rules = self.caller.iter().map(|rule| read("--caller", rule, report));
            let rules = all("--caller", rules.collect());
            edit(&mut raw.defaults, |defaults| defaults.caller = rules);
        }
    }
}

fn read<T: FromFlag>(
    flag: &'static str,
    text: &str,
    report: &mut DiagnosticReport<'_>,
) -> TomlField<T> {
    let origin = ValueOrigin::Flag(flag);
    match T::from_flag(text) {
        Ok(value) => TomlField::Good(Located { value, origin }),
        Err(message) => {
            report.add_error(&origin, message);
            TomlField::Bad
        }
    }
}

/// A list of valid values; invalid if one of them is.
fn all<T>(flag: &'static str, fields: Vec<TomlField<T>>) -> TomlField<OneOrMore<T>> {
    let good = fields.into_iter().map(|field| match field {
        TomlField::Good(at) => Some(at),
        TomlField::Absent | TomlField::Bad => None,
    });
    match good.collect() {
        Some(list) => {
            TomlField::Good(Located { value: OneOrMore(list), origin: ValueOrigin::Flag(flag) })
        }
        None => TomlField::Bad,
    }
}

/// Changes a table, creating it if it is absent.
fn edit<T: Default>(field: &mut TomlField<T>, change: impl FnOnce(&mut T)) {
    let mut at = match std::mem::take(field) {
        TomlField::Good(at) => at,
        TomlField::Absent | TomlField::Bad => {
            Located { value: T::default(), origin: ValueOrigin::Missing }
        }
    };
    change(&mut at.value);
    *field = TomlField::Good(at);
}

/// A value that can be read from a flag.
trait FromFlag: Sized {
    fn from_flag(text: &str) -> Result<Self, String>;
}

impl<T: FromText> FromFlag for T {
    fn from_flag(text: &str) -> Result<Self, String> {
        T::parse(text)
    }
}

impl FromFlag for CallerRule {
    fn from_flag(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}
