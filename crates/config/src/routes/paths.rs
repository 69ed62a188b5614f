//! Paths that the gateway answers itself: no two scopes may share one.

use semel::core::Scope;
use semel_tower::LookupPath;

use super::{Loader, Located, Route, RouteTable};

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
