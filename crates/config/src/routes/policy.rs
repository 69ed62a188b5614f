//! Builds the policy of a route: its durations and limits, and for which statuses a response is
//! recorded, or its key forgotten or released.

use semel::core::{
    FORGET_DEFAULT, Keep, OnUnknown, Policy, RELEASE_DEFAULT, StatusList, StatusSet,
};
use semel_tower::INBOX_RETENTION;

use super::RouteBuilder;
use crate::{
    raw::RouteTable,
    read::{Located, TomlField},
    report::ValueOrigin,
    values::{StatusItem, Statuses},
};

/// Where a status in a list was configured, in order of precedence: if two lists contain it, the
/// later source wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StatusSource {
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
    source: StatusSource,
    origin: ValueOrigin,
}

impl NamedStatusList {
    fn codes(&self) -> StatusSet {
        StatusSet::new(self.statuses.iter().map(|listed| listed.code))
    }

    fn source_of(&self, code: u16) -> Option<StatusSource> {
        self.statuses.iter().filter(|listed| listed.code == code).map(|listed| listed.source).max()
    }

    fn remove(&mut self, code: u16) {
        self.statuses.retain(|listed| listed.code != code);
    }
}

impl<'l> RouteBuilder<'l, '_, '_> {
    pub(super) fn policy(&mut self) -> Policy {
        let mut policy = Policy::default();
        if self.is_signed() {
            policy.retention = INBOX_RETENTION;
            // Senders deliver at least once, so a webhook receiver must tolerate duplicates.
            policy.on_unknown = OnUnknown::Rerun;
        }
        self.set_durations(&mut policy);
        if let Some(at) = self.signature_dependent(|table| &table.on_unknown) {
            policy.on_unknown = at.value;
        }
        if let Some(at) = self.setting(|table| &table.on_store_down) {
            policy.on_store_down = at.value;
        }
        if let Some(at) = self.setting(|table| &table.request_max) {
            policy.request_bytes_max = at.value.0;
        }
        if let Some(at) = self.setting(|table| &table.response_max) {
            policy.response_bytes_max = at.value.0;
        }
        self.hold_for(&mut policy);
        self.set_status_lists(&mut policy);
        policy
    }

    fn set_durations(&mut self, policy: &mut Policy) {
        let retention = self.signature_dependent(|table| &table.retention);
        let lease = self.setting(|table| &table.lease);
        if let Some(Located { value, .. }) = lease {
            policy.lease = value.0;
        }
        if let Some(Located { value, .. }) = retention {
            policy.retention = value.0;
        }
        let origin = retention.map(|at| &at.origin).or_else(|| lease.map(|at| &at.origin));
        let are_valid = !self.field(|table| &table.retention).is_bad()
            && !self.field(|table| &table.lease).is_bad();
        if policy.retention < policy.lease
            && are_valid
            && let Some(origin) = origin
        {
            self.add_error(origin, "the retention is shorter than the lease");
        }
        if let Some(wait) = self.setting(|table| &table.wait) {
            policy.wait = wait.value.0;
        }
        if let Some(time) = self.setting(|table| &table.store_timeout) {
            policy.store_timeout = time.value.0;
        }
    }

    /// Sets `hold_for`. On a route that does not hold records it is an error, unless it is
    /// inherited.
    fn hold_for(&mut self, policy: &mut Policy) {
        let Some(time) = self.setting(|table| &table.hold_for) else { return };
        if policy.on_unknown == OnUnknown::Hold {
            policy.hold_for = Some(time.value.0);
        } else if !self.own.value.hold_for.is_absent() {
            let message = "`hold_for` needs on_unknown = \"hold\": with another value the route holds \
                           no records";
            self.add_error(&time.origin, message);
        }
    }

    /// Sets the lists of statuses `keep`, `forget` and `release`.
    fn set_status_lists(&mut self, policy: &mut Policy) {
        policy.keep = match self.signature_dependent(|table| &table.keep) {
            Some(keep) => keep.value.clone(),
            None if self.is_signed() => Keep::Success,
            None => Policy::default().keep,
        };
        let kept = self.keep_list();
        let forgotten = self.status_list("forget", &FORGET_DEFAULT, |table| &table.forget);
        let released = self.status_list("release", &RELEASE_DEFAULT, |table| &table.release);
        let mut lists: Vec<NamedStatusList> =
            [kept, forgotten, released].into_iter().flatten().collect();
        self.remove_duplicates(&mut lists);
        for list in lists {
            match list.name {
                "keep" => policy.keep = Keep::Statuses(list.codes()),
                "forget" => policy.forget = StatusList::Explicit(list.codes()),
                _ => policy.release = StatusList::Explicit(list.codes()),
            }
        }
    }

    /// Removes each status that is in two lists from the list with the lower precedence. Two lists
    /// of the same source are an error.
    fn remove_duplicates(&mut self, lists: &mut [NamedStatusList]) {
        for later in 1..lists.len() {
            let (before, after) = lists.split_at_mut(later);
            let Some(other) = after.first_mut() else { return };
            for list in before {
                for ListedStatus { code, source, origin } in other.statuses.clone() {
                    let Some(first) = list.source_of(code) else { continue };
                    if first == source {
                        let name = list.name;
                        let message =
                            format!("{code} is also in `{name}`; keep it in one list only");
                        self.add_error(&origin, message);
                    }
                    if first < source {
                        list.remove(code);
                    } else {
                        other.remove(code);
                    }
                }
            }
        }
    }

    fn status_list(
        &self,
        name: &'static str,
        default: &[u16],
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<Statuses>,
    ) -> Option<NamedStatusList> {
        let written = self.source(&setting);
        let Statuses::List(items) = &self.setting(setting)?.value else { return None };
        let mut statuses = Vec::new();
        for Located { value, origin } in items {
            let put = |code: u16, source| ListedStatus { code, source, origin: origin.clone() };
            match value {
                StatusItem::Status(code) => statuses.push(put(*code, written)),
                StatusItem::Default => {
                    statuses.extend(default.iter().map(|code| put(*code, StatusSource::BuiltIn)));
                }
            }
        }
        Some(NamedStatusList { name, statuses })
    }

    /// The statuses that `keep` lists, if it is a list.
    fn keep_list(&self) -> Option<NamedStatusList> {
        let Located { value: Keep::Statuses(codes), origin } =
            self.signature_dependent(|table| &table.keep)?
        else {
            return None;
        };
        let source = self.source(|table| &table.keep);
        let put = |code| ListedStatus { code, source, origin: origin.clone() };
        Some(NamedStatusList { name: "keep", statuses: codes.iter().map(put).collect() })
    }

    fn source<T: 'l>(&self, setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>) -> StatusSource {
        if setting(&self.own.value).is_absent() {
            StatusSource::Defaults
        } else {
            StatusSource::Route
        }
    }
}
