//! What the command line says instead of the file.

use super::{
    CallerRule,
    raw::File,
    read::{At, OneOrMore, Slot, Text},
    report::{Place, Report},
    rules::UpstreamRule,
};

/// What the command line says instead of the file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Overrides {
    /// Where requests go, such as `http://127.0.0.1:3000`
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Who the caller is, unless a route says otherwise: authorization, anonymous, host,
    /// header=NAME, credential=NAME or cookie=NAME. Given several times, they are tried in that
    /// order
    #[arg(long, value_name = "RULE")]
    pub(crate) caller: Vec<String>,
    /// Where clients come in [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Where operators come in, or "off" [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) api: Option<String>,
    /// Where records live: sqlite:PATH, `postgres://USER@HOST/DATABASE`, memory:, or env:NAME for
    /// the variable that holds one of these [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// What is in front of the store: `redis://HOST`, `rediss://HOST` or env:NAME
    #[arg(long, value_name = "URL")]
    pub(crate) cache: Option<String>,
}

impl Overrides {
    /// Puts what was typed in the place of what the file says.
    pub(super) fn apply(&self, raw: &mut File, report: &mut Report<'_>) {
        if let Some(url) = &self.upstream {
            let url = read("--upstream", url, report);
            edit(&mut raw.gateway, |gateway| {
                // Its other settings stay: they are about how, not where.
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

fn read<T: FromFlag>(flag: &'static str, text: &str, report: &mut Report<'_>) -> Slot<T> {
    let place = Place::Flag(flag);
    match T::from_flag(text) {
        Ok(value) => Slot::Good(At { value, place }),
        Err(message) => {
            report.note(&place, message);
            Slot::Bad
        }
    }
}

/// A list whose every member is good.
fn all<T>(flag: &'static str, slots: Vec<Slot<T>>) -> Slot<OneOrMore<T>> {
    let good = slots.into_iter().map(|slot| match slot {
        Slot::Good(at) => Some(at),
        Slot::Absent | Slot::Bad => None,
    });
    match good.collect() {
        Some(list) => Slot::Good(At { value: OneOrMore(list), place: Place::Flag(flag) }),
        None => Slot::Bad,
    }
}

/// Changes a table, made if it was not written.
fn edit<T: Default>(slot: &mut Slot<T>, change: impl FnOnce(&mut T)) {
    let mut at = match std::mem::take(slot) {
        Slot::Good(at) => at,
        Slot::Absent | Slot::Bad => At { value: T::default(), place: Place::Nowhere },
    };
    change(&mut at.value);
    *slot = Slot::Good(at);
}

/// What can be typed after a word of the command line.
trait FromFlag: Sized {
    fn from_flag(text: &str) -> Result<Self, String>;
}

impl<T: Text> FromFlag for T {
    fn from_flag(text: &str) -> Result<Self, String> {
        T::parse(text)
    }
}

impl FromFlag for CallerRule {
    fn from_flag(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}
