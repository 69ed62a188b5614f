//! What a route says about its records: how long they are kept, and what each answer makes of them.

use semel::core::{
    FORGET_DEFAULT, Keep, OnUnknown, Policy, RELEASE_DEFAULT, StatusList, StatusSet,
};
use semel_tower::INBOX_RETENTION;

use super::Layers;
use crate::config::{
    raw::RouteTable,
    read::{At, Slot},
    report::Place,
    values::{StatusItem, Statuses},
};

/// Who put a status on a list. Of two lists that have it, the one where it was put by the later of
/// these keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// The word "default".
    BuiltIn,
    Defaults,
    Route,
}

/// A list of statuses from the configuration file.
struct List {
    name: &'static str,
    statuses: Vec<Listed>,
}

#[derive(Clone)]
struct Listed {
    code: u16,
    level: Level,
    place: Place,
}

impl List {
    fn codes(&self) -> StatusSet {
        StatusSet::new(self.statuses.iter().map(|listed| listed.code))
    }

    fn level_of(&self, code: u16) -> Option<Level> {
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
            // Senders deliver at least once, so a service that takes webhooks can take one twice.
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
        if let Some(At { value, .. }) = lease {
            policy.lease = value.0;
        }
        if let Some(At { value, .. }) = retention {
            policy.retention = value.0;
        }
        let place = retention.map(|at| &at.place).or_else(|| lease.map(|at| &at.place));
        let known = !self.slot(|table| &table.retention).is_bad()
            && !self.slot(|table| &table.lease).is_bad();
        if policy.retention < policy.lease
            && known
            && let Some(place) = place
        {
            self.note(place, "the retention is shorter than the lease");
        }
        if let Some(wait) = self.pick(|table| &table.wait) {
            policy.wait = wait.value.0;
        }
        if let Some(time) = self.pick(|table| &table.store_timeout) {
            policy.store_timeout = time.value.0;
        }
    }

    /// How long a record is held. Where nothing is held, the setting is a mistake of the route; one
    /// that is inherited is for other routes.
    fn hold_for(&mut self, policy: &mut Policy) {
        let Some(time) = self.pick(|table| &table.hold_for) else { return };
        if policy.on_unknown == OnUnknown::Hold {
            policy.hold_for = Some(time.value.0);
        } else if !self.own.value.hold_for.is_absent() {
            self.note(&time.place, "a route holds records only with on_unknown = \"hold\"");
        }
    }

    /// What answers make of a record: `keep`, `forget` and `release`.
    fn answers(&mut self, policy: &mut Policy) {
        policy.keep = match self.nearest(|table| &table.keep) {
            Some(keep) => keep.value.clone(),
            None if self.is_signed() => Keep::Success,
            None => Policy::default().keep,
        };
        let kept = self.kept();
        let forgotten = self.list("forget", &FORGET_DEFAULT, |table| &table.forget);
        let released = self.list("release", &RELEASE_DEFAULT, |table| &table.release);
        let mut lists: Vec<List> = [kept, forgotten, released].into_iter().flatten().collect();
        self.settle(&mut lists);
        for list in lists {
            match list.name {
                "keep" => policy.keep = Keep::Statuses(list.codes()),
                "forget" => policy.forget = StatusList::Explicit(list.codes()),
                _ => policy.release = StatusList::Explicit(list.codes()),
            }
        }
    }

    /// A status stands in one list: what is nearer to the route takes it from the other. Two lists
    /// as near as each other contradict themselves.
    fn settle(&mut self, lists: &mut [List]) {
        for later in 1..lists.len() {
            let (before, after) = lists.split_at_mut(later);
            let Some(other) = after.first_mut() else { return };
            for list in before {
                for Listed { code, level, place } in other.statuses.clone() {
                    let Some(first) = list.level_of(code) else { continue };
                    if first == level {
                        let name = list.name;
                        let message = format!("{code} is in `{name}` too; write it in one of them");
                        self.note(&place, message);
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
        setting: impl Fn(&'l RouteTable) -> &'l Slot<Statuses>,
    ) -> Option<List> {
        let written = self.level(&setting);
        let Statuses::List(items) = &self.pick(setting)?.value else { return None };
        let mut statuses = Vec::new();
        for At { value, place } in items {
            let put = |code: u16, level| Listed { code, level, place: place.clone() };
            match value {
                StatusItem::Status(code) => statuses.push(put(*code, written)),
                StatusItem::Default => {
                    statuses.extend(default.iter().map(|code| put(*code, Level::BuiltIn)));
                }
            }
        }
        Some(List { name, statuses })
    }

    /// The statuses that `keep` lists, if it is a list.
    fn kept(&self) -> Option<List> {
        let At { value: Keep::Statuses(codes), place } = self.nearest(|table| &table.keep)? else {
            return None;
        };
        let level = self.level(|table| &table.keep);
        let put = |code| Listed { code, level, place: place.clone() };
        Some(List { name: "keep", statuses: codes.iter().map(put).collect() })
    }

    fn level<T: 'l>(&self, setting: impl Fn(&'l RouteTable) -> &'l Slot<T>) -> Level {
        if setting(&self.own.value).is_absent() { Level::Defaults } else { Level::Route }
    }
}
