//! Former identities of a layer's records: earlier scopes and caller rules.

use std::time::SystemTime;

use http::request::Parts;
use semel::core::{Caller, RecordId, Scope};

use crate::Callers;

/// Former scopes and former caller rules, each with its expiry.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormerIdentity {
    pub(crate) scopes: Vec<(Scope, Option<SystemTime>)>,
    pub(crate) callers: Vec<(Callers, Option<SystemTime>)>,
}

impl FormerIdentity {
    /// The former ids of a record: each scope with each caller, except the current id.
    pub(crate) fn ids(&self, id: &RecordId, parts: &Parts) -> Vec<RecordId> {
        if self.scopes.is_empty() && self.callers.is_empty() {
            return Vec::new();
        }
        self.ids_at(id, parts, now())
    }

    fn ids_at(&self, id: &RecordId, parts: &Parts, now: SystemTime) -> Vec<RecordId> {
        let counts = |until: &Option<SystemTime>| until.is_none_or(|until| now < until);
        let mut callers: Vec<Caller> = vec![id.caller.clone()];
        for (former, _) in self.callers.iter().filter(|(_, until)| counts(until)) {
            // A caller that the former rules do not identify had no former name.
            callers.extend(former.identify(parts).ok().map(|identified| identified.caller));
        }
        let scopes = self.scopes.iter().filter(|(_, until)| counts(until)).map(|(scope, _)| scope);
        let mut ids: Vec<RecordId> = Vec::new();
        for scope in std::iter::once(&id.scope).chain(scopes) {
            for caller in &callers {
                let former = RecordId::new(scope.clone(), caller.clone(), id.key.clone());
                if former != *id && !ids.contains(&former) {
                    ids.push(former);
                }
            }
        }
        ids
    }
}

#[expect(clippy::disallowed_methods, reason = "compared with a time that an operator can tell")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Request;
    use semel::core::Key;

    use super::*;
    use crate::Secret;

    fn scope(name: &str) -> Scope {
        Scope::new(name).unwrap()
    }

    fn callers(secret: &str) -> Callers {
        Callers::authorization(&Secret::new(secret).unwrap())
    }

    #[test]
    fn each_former_scope_is_joined_with_each_former_caller_while_it_counts() {
        let request = Request::post("/").header("authorization", "Bearer opaque");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let (new, old) = (callers("the new secret, long"), callers("the old secret, long"));
        let name = |callers: &Callers| callers.identify(&parts).unwrap().caller;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let until = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let key = Key::new("k").unwrap();
        let id = RecordId::new(scope("payments"), name(&new), key.clone());
        let former =
            |scopes: &[(&str, Option<SystemTime>)], before: Option<SystemTime>| FormerIdentity {
                scopes: scopes.iter().map(|(name, until)| (scope(name), *until)).collect(),
                callers: vec![(old.clone(), before)],
            };
        let ids = |former: &FormerIdentity| {
            let ids = former.ids_at(&id, &parts, now);
            let short = |id: &RecordId| {
                assert_eq!(id.key, key);
                let caller = if id.caller == name(&old) { "old" } else { "new" };
                format!("{} {caller}", id.scope)
            };
            ids.iter().map(short).collect::<Vec<_>>()
        };
        let all = ids(&former(&[("default", None)], None));
        assert_eq!(all, ["payments old", "default new", "default old"]);
        let ended = [("default", until(1000)), ("payments", None), ("orders", until(1001))];
        assert_eq!(ids(&former(&ended, until(999))), ["orders new"]);
        assert_eq!(ids(&FormerIdentity::default()), [""; 0]);
        assert_eq!(FormerIdentity::default().ids(&id, &parts), []);
    }
}
