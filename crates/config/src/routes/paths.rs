//! What routes must agree on: a path that the gateway answers itself belongs to one scope, and a
//! scope is reconciled in one way.

use std::sync::Arc;

use semel::core::Scope;
use semel_tower::LookupPath;

use super::{Loader, Located, ReconcileRule, Route, RouteTable, Upstream};

/// Reports a lookup path that routes of two scopes share: a request with only a key would be
/// ambiguous.
pub(super) fn report_ambiguous_lookups(
    loader: &mut Loader<'_, '_>,
    tables: &[Located<RouteTable>],
    defaults: &RouteTable,
    routes: &[Option<Route>],
) {
    let mut earlier: Vec<(&Option<String>, &LookupPath, &Scope)> = Vec::new();
    for (table, route) in tables.iter().zip(routes) {
        let Some(Route { matches, guard: Some(guard), .. }) = route else { continue };
        let Some(path) = &guard.lookup else { continue };
        let (host, scope) = (&matches.host, &guard.scope);
        if earlier.iter().any(|other| (other.0, other.1) == (host, path) && other.2 != scope)
            && let Some(at) = table.value.lookup.get().or(defaults.lookup.get())
        {
            let message = "a route of another scope has the same lookup path, so a key alone is \
                           ambiguous; use \"/idempotency/{scope}/{key}\"";
            loader.report.add_error(&at.origin, message);
            return;
        }
        earlier.push((host, path, scope));
    }
}

/// Reports a path under which two scopes issue keys: a key belongs to one of them.
pub(super) fn report_ambiguous_issuers(
    loader: &mut Loader<'_, '_>,
    tables: &[Located<RouteTable>],
    routes: &[Option<Route>],
) {
    let mut earlier: Vec<(&Option<String>, &str, &Scope)> = Vec::new();
    for (table, route) in tables.iter().zip(routes) {
        let Some(Route { matches, guard: Some(guard), .. }) = route else { continue };
        let Some(keys) = &guard.issued_keys else { continue };
        let (host, path, scope) = (&matches.host, &*keys.path, &guard.scope);
        if earlier.iter().any(|other| (other.0, other.1) == (host, path) && other.2 != scope) {
            let key = table.value.key.get().map(|at| &at.origin);
            let at = table.value.issued_keys.get().map(|at| &at.origin).or(key);
            let message = format!(
                "a route of another scope issues keys under {path} too; give this one a path of \
                 its own: issued_keys = {{ path = \"{path}/{scope}\" }}"
            );
            loader.report.add_error(at.unwrap_or(&table.origin), message);
            return;
        }
        earlier.push((host, path, scope));
    }
}

/// Reports routes of one scope that would be reconciled in different ways: a record does not say
/// which route made it.
pub(super) fn report_reconcile_conflicts(
    loader: &mut Loader<'_, '_>,
    tables: &[Located<RouteTable>],
    routes: &[Option<Route>],
) {
    let of = |route: &Option<Route>| {
        let Route { guard, upstream, .. } = route.as_ref()?;
        let guard = guard.as_ref()?;
        Some((guard.scope.clone(), guard.reconcile.clone(), upstream.clone()))
    };
    let mut known: Vec<(Scope, Option<Arc<ReconcileRule>>, Arc<Upstream>)> = Vec::new();
    for (table, route) in tables.iter().zip(routes) {
        let Some((scope, rule, upstream)) = of(route) else { continue };
        let differs = |one: &(Scope, Option<Arc<ReconcileRule>>, Arc<Upstream>)| {
            let same = one.1 == rule && (rule.is_none() || one.2 == upstream);
            one.0 == scope && !same
        };
        if known.iter().any(differs) {
            let message = format!(
                "all routes of the scope {scope} need the same `reconcile` and upstream: a record \
                 does not say which of them made it"
            );
            let at = table.value.reconcile.get().map_or(&table.origin, |at| &at.origin);
            loader.report.add_error(at, message);
            return;
        }
        known.push((scope, rule, upstream));
    }
}
