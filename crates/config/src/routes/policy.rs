//! Builds the policy of a route: times, and which responses are kept, forgotten or released.

use semel::core::{
    FORGET_DEFAULT, Keep, OnUnknown, Policy, RELEASE_DEFAULT, StatusList, StatusSet,
};
use semel_tower::INBOX_RETENTION;

use super::Layers;
use crate::{
    raw::RouteTable,
    read::{Located, TomlField},
    report::ValueOrigin,
    values::{StatusItem, Statuses},
};

/// Where a status in a list comes from. If two lists contain it, the list with the higher level
/// keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListLevel {
    /// The word "default".
    BuiltIn,
    Defaults,
    Route,
}

/// A list of statuses from the configuration file.
struct NamedStatusList {
    name: &'static str,
    statuses: Vec<ListedStatus>,
}

#[derive(Clone)]
struct ListedStatus {
    code: u16,
    level: ListLevel,
    origin: ValueOrigin,
}

impl NamedStatusList {
    fn codes(&self) -> StatusSet {
        StatusSet::new(self.statuses.iter().map(|listed| listed.code))
    }

    fn level_of(&self, code: u16) -> Option<ListLevel> {
        self.statuses.iter().filter(|listed| listed.code == code).map(|listed| listed.level).max()
    }

    fn remove(&mut self, code: u16) {
        self.statuses.retain(|listed| listed.code != code);
    }
}

impl<'l> Layers<'l, '_, '_> {
    pub(super) fn policy(&mut self) -> Policy {
        let mut policy = Policy::default();
        if self.is_signed() {
            policy.retention = INBOX_RETENTION;
            // Senders deliver at least once, so a webhook receiver must tolerate duplicates.
            policy.on_unknown = OnUnknown::Rerun;
        }
        self.times(&mut policy);
        if let Some(at) = self.nearest(|table| &table.on_unknown) {
            policy.on_unknown = at.value;
        }
        if let Some(at) = self.pick(|table| &table.on_store_down) {
            policy.on_store_down = at.value;
        }
        if let Some(at) = self.pick(|table| &table.request_max) {
            policy.request_bytes_max = at.value.0;
        }
        if let Some(at) = self.pick(|table| &table.response_max) {
            policy.response_bytes_max = at.value.0;
        }
        self.hold_for(&mut policy);
        self.answers(&mut policy);
        policy
    }

    fn times(&mut self, policy: &mut Policy) {
        let retention = self.nearest(|table| &table.retention);
        let lease = self.pick(|table| &table.lease);
        if let Some(Located { value, .. }) = lease {
            policy.lease = value.0;
        }
        if let Some(Located { value, .. }) = retention {
            policy.retention = value.0;
        }
        let origin = retention.map(|at| &at.origin).or_else(|| lease.map(|at| &at.origin));
        let known = !self.field(|table| &table.retention).is_bad()
            && !self.field(|table| &table.lease).is_bad();
        if policy.retention < policy.lease
            && known
            && let Some(origin) = origin
        {
            self.note(origin, "the retention is shorter than the lease");
        }
        if let Some(wait) = self.pick(|table| &table.wait) {
            policy.wait = wait.value.0;
        }
        if let Some(time) = self.pick(|table| &table.store_timeout) {
            policy.store_timeout = time.value.0;
        }
    }

    /// Sets `hold_for`. On a route that does not hold records it is an error, unless it is
    /// inherited.
    fn hold_for(&mut self, policy: &mut Policy) {
        let Some(time) = self.pick(|table| &table.hold_for) else { return };
        if policy.on_unknown == OnUnknown::Hold {
            policy.hold_for = Some(time.value.0);
        } else if !self.own.value.hold_for.is_absent() {
            self.note(&time.origin, "a route holds records only with on_unknown = \"hold\"");
        }
    }

    /// Sets `keep`, `forget` and `release`.
    fn answers(&mut self, policy: &mut Policy) {
        policy.keep = match self.nearest(|table| &table.keep) {
            Some(keep) => keep.value.clone(),
            None if self.is_signed() => Keep::Success,
            None => Policy::default().keep,
        };
        let kept = self.kept();
        let forgotten = self.list("forget", &FORGET_DEFAULT, |table| &table.forget);
        let released = self.list("release", &RELEASE_DEFAULT, |table| &table.release);
        let mut lists: Vec<NamedStatusList> =
            [kept, forgotten, released].into_iter().flatten().collect();
        self.settle(&mut lists);
        for list in lists {
            match list.name {
                "keep" => policy.keep = Keep::Statuses(list.codes()),
                "forget" => policy.forget = StatusList::Explicit(list.codes()),
                _ => policy.release = StatusList::Explicit(list.codes()),
            }
        }
    }

    /// Resolves statuses that are in two lists: the list with the higher level keeps them. Two
    /// lists of the same level are an error.
    fn settle(&mut self, lists: &mut [NamedStatusList]) {
        for later in 1..lists.len() {
            let (before, after) = lists.split_at_mut(later);
            let Some(other) = after.first_mut() else { return };
            for list in before {
                for ListedStatus { code, level, origin } in other.statuses.clone() {
                    let Some(first) = list.level_of(code) else { continue };
                    if first == level {
                        let name = list.name;
                        let message =
                            format!("{code} is also in `{name}`; keep it in one list only");
                        self.note(&origin, message);
                    }
                    if first < level {
                        list.remove(code);
                    } else {
                        other.remove(code);
                    }
                }
            }
        }
    }

    fn list(
        &self,
        name: &'static str,
        default: &[u16],
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<Statuses>,
    ) -> Option<NamedStatusList> {
        let written = self.level(&setting);
        let Statuses::List(items) = &self.pick(setting)?.value else { return None };
        let mut statuses = Vec::new();
        for Located { value, origin } in items {
            let put = |code: u16, level| ListedStatus { code, level, origin: origin.clone() };
            match value {
                StatusItem::Status(code) => statuses.push(put(*code, written)),
                StatusItem::Default => {
                    statuses.extend(default.iter().map(|code| put(*code, ListLevel::BuiltIn)));
                }
            }
        }
        Some(NamedStatusList { name, statuses })
    }

    /// The statuses that `keep` lists, if it is a list.
    fn kept(&self) -> Option<NamedStatusList> {
        let Located { value: Keep::Statuses(codes), origin } = self.nearest(|table| &table.keep)?
        else {
            return None;
        };
        let level = self.level(|table| &table.keep);
        let put = |code| ListedStatus { code, level, origin: origin.clone() };
        Some(NamedStatusList { name: "keep", statuses: codes.iter().map(put).collect() })
    }

    fn level<T: 'l>(&self, setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>) -> ListLevel {
        if setting(&self.own.value).is_absent() { ListLevel::Defaults } else { ListLevel::Route }
    }
}
