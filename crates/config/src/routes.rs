//! Builds each route: its own settings, then `[defaults]`, then the built-in defaults.

mod policy;

use std::sync::Arc;

use semel::core::{
    BodyRule, Dialect, FingerprintRule, HostRule, OnUnknown, QueryRule, Scope,
    store::METADATA_ENTRIES_MAX,
};
use semel_tower::LookupPath;

use super::{
    CallerRule, Guard, KeyLocation, Match, Mode, OnUnmatched, Required, Route, Segment,
    SignatureScheme, Upstream, callers,
    loader::Loader,
    raw::{File, RouteTable},
    read::{Located, OneOrMore, TomlField},
    report::ValueOrigin,
    signature, verified_callers,
};

/// The settings that an unguarded route may have.
const UNGUARDED: [&str; 4] = ["match", "guard", "upstream", "upstream_timeout"];

/// Maximum number of routes; a store remembers no more.
const ROUTES_MAX: usize = METADATA_ENTRIES_MAX;

/// Builds all routes in order; `None` if one of them is invalid.
pub(super) fn routes(
    loader: &mut Loader<'_, '_>,
    raw: &File,
    gateway: Option<&Arc<Upstream>>,
) -> Option<Vec<Route>> {
    let none = RouteTable::default();
    let defaults = raw.defaults.value().unwrap_or(&none);
    refuse_in_defaults(loader, defaults);
    let implicit = [Located { value: implicit_route(), origin: ValueOrigin::Nowhere }];
    let tables = match raw.route.value() {
        Some(tables) if !tables.is_empty() => tables,
        _ if raw.route.is_bad() => return None,
        _ => {
            refuse_without_routes(loader, raw);
            &implicit[..]
        }
    };
    if let Some(first) = tables.get(ROUTES_MAX) {
        let message = format!("a configuration has at most {ROUTES_MAX} routes");
        loader.report.note(&first.origin, message);
        return None;
    }
    let mut all = Vec::new();
    let mut upstreams: Vec<Arc<Upstream>> = gateway.into_iter().cloned().collect();
    for table in tables {
        let mut layers = Layers { own: table, defaults, loader };
        all.push(layers.route(gateway, &mut upstreams));
    }
    refuse_shadowed(loader, tables, defaults);
    refuse_shared_lookups(loader, tables, defaults, &all);
    all.into_iter().collect()
}

/// Reports a path of look-ups that two scopes share: the key alone would not say which is meant.
fn refuse_shared_lookups(
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
            let message = "routes of another scope have this path too, so the key alone would not \
                           say which is meant; write \"/idempotency/{scope}/{key}\"";
            loader.report.note(&at.origin, message);
            return;
        }
        earlier.push((host, path, scope));
    }
}

/// The implicit route of a configuration without routes.
fn implicit_route() -> RouteTable {
    let matches = Match {
        methods: vec![http::Method::POST, http::Method::PATCH],
        implied: true,
        host: None,
        path: vec![Segment::Any],
    };
    let nowhere = || ValueOrigin::Nowhere;
    let scope =
        Scope::new("default").map(|value| TomlField::Good(Located { value, origin: nowhere() }));
    RouteTable {
        matches: TomlField::Good(Located { value: matches, origin: nowhere() }),
        scope: scope.unwrap_or_default(),
        ..RouteTable::default()
    }
}

/// Reports `unmatched = "refuse"` without routes: the implicit route matches only POST and PATCH.
fn refuse_without_routes(loader: &mut Loader<'_, '_>, raw: &File) {
    let unmatched = raw.gateway.value().and_then(|gateway| gateway.unmatched.get());
    if let Some(Located { value: OnUnmatched::Refuse, origin }) = unmatched {
        loader.report.note(
            origin,
            "`unmatched = \"refuse\"` needs a [[route]]: without any, it would refuse every GET",
        );
    }
}

fn refuse_in_defaults(loader: &mut Loader<'_, '_>, defaults: &RouteTable) {
    let origins = [
        ("match", defaults.matches.get().map(|at| &at.origin)),
        ("scope", defaults.scope.get().map(|at| &at.origin)),
        ("was", defaults.was.get().map(|at| &at.origin)),
        ("guard", defaults.guard.get().map(|at| &at.origin)),
    ];
    for (name, origin) in origins {
        if let Some(origin) = origin {
            loader
                .report
                .note(origin, format!("`{name}` belongs in a [[route]], not in [defaults]"));
        }
    }
}

/// Reports unreachable routes.
fn refuse_shadowed(
    loader: &mut Loader<'_, '_>,
    tables: &[Located<RouteTable>],
    defaults: &RouteTable,
) {
    let located_match = |table: &Located<RouteTable>| {
        let origin = table.value.matches.get()?.origin.clone();
        Some(Located { value: effective_match(&table.value, defaults)?, origin })
    };
    let matches: Vec<Located<Match>> = tables.iter().filter_map(located_match).collect();
    for (index, later) in matches.iter().enumerate() {
        let earlier = matches.iter().take(index).find(|earlier| earlier.value.covers(&later.value));
        if let Some(earlier) = earlier {
            loader.report.note(
                &later.origin,
                format!(
                    "this route is unreachable: the earlier `{}` matches every request that it \
                     matches; put this one first",
                    earlier.value
                ),
            );
        }
    }
}

/// The requests that a route matches, with the default methods resolved.
fn effective_match(own: &RouteTable, defaults: &RouteTable) -> Option<Match> {
    let matches = own.matches.value()?.clone();
    let signed = !own.signature.is_absent() || !defaults.signature.is_absent();
    let guarded = own.guard.value() != Some(&false);
    Some(matches.settled(signed && guarded))
}

/// The settings of one route and the defaults that it inherits.
struct Layers<'l, 'a, 'r> {
    own: &'l Located<RouteTable>,
    defaults: &'l RouteTable,
    loader: &'l mut Loader<'a, 'r>,
}

impl<'l> Layers<'l, '_, '_> {
    /// The setting of the route, or the default.
    fn field<T: 'l>(
        &self,
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>,
    ) -> &'l TomlField<T> {
        let own = setting(&self.own.value);
        if own.is_absent() { setting(self.defaults) } else { own }
    }

    fn pick<T: 'l>(
        &self,
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>,
    ) -> Option<&'l Located<T>> {
        self.field(setting).get()
    }

    /// A setting whose default depends on the signature. The signature of a route takes precedence
    /// over `[defaults]`.
    fn nearest<T: 'l>(
        &self,
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>,
    ) -> Option<&'l Located<T>> {
        if self.own.value.signature.is_absent() {
            self.pick(setting)
        } else {
            setting(&self.own.value).get()
        }
    }

    fn is_signed(&self) -> bool {
        !self.field(|table| &table.signature).is_absent()
    }

    fn note(&mut self, origin: &ValueOrigin, message: impl Into<String>) {
        self.loader.report.note(origin, message);
    }

    fn route(
        &mut self,
        gateway: Option<&Arc<Upstream>>,
        upstreams: &mut Vec<Arc<Upstream>>,
    ) -> Option<Route> {
        let own = &self.own.value;
        if own.matches.is_absent() {
            self.note(
                &self.own.origin.clone(),
                "a route needs `match`, such as match = \"POST /v1/payments/**\"",
            );
        }
        // All parts are built before returning, so that every error is reported.
        let upstream = gateway.and_then(|gateway| self.upstream(gateway, upstreams));
        let guard = match own.guard.get() {
            Some(Located { value: false, origin }) => {
                self.refuse_guard_settings(origin);
                Some(None)
            }
            _ => self.guard().map(Some),
        };
        let (mut guard, upstream) = (guard?, upstream?);
        if let Some(guard) = guard.as_mut() {
            self.refuse_propagation(guard);
        }
        // The upstream does not receive the client's host, so the fingerprint ignores it.
        if upstream.own_host
            && let Some(rule) = guard.as_mut().and_then(|guard| guard.fingerprint.as_mut())
        {
            rule.host = HostRule::Ignore;
        }
        Some(Route { matches: effective_match(own, self.defaults)?, guard, upstream })
    }

    /// Only what may run again may be cancelled by the deadline of one client.
    fn refuse_propagation(&mut self, guard: &Guard) {
        let propagates = guard.deadline.as_ref().is_some_and(|deadline| deadline.propagate);
        if propagates
            && guard.policy.on_unknown != OnUnknown::Rerun
            && let Some(at) = self.pick(|table| &table.deadline)
        {
            self.note(
                &at.origin,
                "`propagate` lets the upstream cancel an operation, whose outcome is then unknown; \
                 it needs on_unknown = \"rerun\"",
            );
        }
    }

    fn refuse_guard_settings(&mut self, origin: &ValueOrigin) {
        let mut unused = self.own.value.written();
        unused.retain(|name| !UNGUARDED.contains(name));
        if !unused.is_empty() {
            let names: Vec<String> = unused.iter().map(|name| format!("`{name}`")).collect();
            let names = names.join(", ");
            self.note(origin, format!("a route with `guard = false` cannot have {names}"));
        }
    }

    fn upstream(
        &mut self,
        gateway: &Arc<Upstream>,
        upstreams: &mut Vec<Arc<Upstream>>,
    ) -> Option<Arc<Upstream>> {
        let mut upstream = match self.defaults.upstream.get() {
            Some(rule) => self.loader.upstream(rule, Some(gateway))?,
            None => (**gateway).clone(),
        };
        if let Some(time) = self.defaults.upstream_timeout.value() {
            upstream.timeout = time.0;
        }
        let own = &self.own.value;
        if let Some(rule) = own.upstream.get() {
            let inherited = upstream.timeout;
            upstream = self.loader.upstream(rule, Some(&upstream))?;
            if rule.value.0.timeout.is_absent() && self.defaults.upstream_timeout.value().is_some()
            {
                upstream.timeout = inherited;
            }
            if let (Some(time), Some(_)) = (own.upstream_timeout.get(), rule.value.0.timeout.get())
            {
                let message =
                    "the upstream of this route also has a `timeout`; set only one of them";
                self.note(&time.origin, message);
            }
        }
        if let Some(time) = own.upstream_timeout.value() {
            upstream.timeout = time.0;
        }
        // Equal upstreams share one connection pool.
        let known = upstreams.iter().find(|known| ***known == upstream).cloned();
        Some(known.unwrap_or_else(|| {
            let upstream = Arc::new(upstream);
            upstreams.push(Arc::clone(&upstream));
            upstream
        }))
    }

    fn guard(&mut self) -> Option<Guard> {
        let scope = self.scope();
        let was = self.was();
        let written = self.field(|table| &table.signature);
        let signature = written.get().map(|at| signature::rule(self.loader, at));
        let scheme = signature.iter().flatten().map(|rule| &rule.scheme).next();
        let dialect = self.dialect();
        let (key, required) = self.key(scheme, &dialect);
        let policy = self.policy();
        let callers = match self.nearest(|table| &table.caller) {
            Some(Located { value: OneOrMore(rules), .. }) => {
                callers::refuse_shadowed(rules, self.loader.report);
                if !self.loader.trust_forwarded {
                    callers::refuse_untrusted(rules, self.loader.report);
                }
                verified_callers::resolve(self.loader, rules)
            }
            None if self.is_signed() => vec![CallerRule::Anonymous],
            None => vec![CallerRule::Authorization],
        };
        let fingerprint = self.fingerprint(&key, scheme);
        let keep_headers = self.pick(|table| &table.keep_headers);
        let keep_headers = keep_headers
            .map(|at| at.value.iter().map(|name| name.value.0.clone()).collect())
            .unwrap_or_default();
        let mode = self.mode();
        let api = self.pick(|table| &table.api).is_some_and(|at| at.value);
        let capture = self.pick(|table| &table.capture);
        let record = self.pick(|table| &table.record);
        let lookup = self.lookup(&callers);
        Some(Guard {
            cors: self.pick(|table| &table.cors).map(|at| at.value.clone()),
            lookup,
            deadline: self.pick(|table| &table.deadline).map(|at| at.value.clone()),
            mode,
            api,
            keep_under_body_keys: !self.is_signed()
                && key.iter().any(KeyLocation::may_be_in_body)
                && self.nearest(|table| &table.keep).is_some(),
            about: self.pick(|table| &table.about).map(|at| at.value).unwrap_or_default(),
            capture: capture.map(|at| at.value.0.clone()).unwrap_or_default(),
            scope: scope?,
            was,
            former_scopes: Vec::new(),
            former_retention_until: None,
            warned_since: None,
            key,
            required,
            dialect,
            callers,
            signature: match signature {
                Some(rule) => Some(rule?),
                None if written.is_bad() => return None,
                None => None,
            },
            fingerprint,
            policy,
            record: record.map(|at| at.value.0.clone()).unwrap_or_default(),
            keep_headers,
        })
    }

    fn scope(&mut self) -> Option<Scope> {
        let own = &self.own.value;
        if own.scope.is_absent() && !own.matches.is_absent() {
            let matches = own.matches.get();
            let suggested = suggested_scope(matches.map_or(&[], |matches| &matches.value.path));
            let origin = matches.map_or(&self.own.origin, |matches| &matches.origin).clone();
            self.note(
                &origin,
                format!(
                    "a guarded route needs a scope: add scope = \"{suggested}\", or guard = false"
                ),
            );
        }
        own.scope.value().cloned()
    }

    /// The path of look-ups. Anonymous callers share their keys, so nothing could be looked up.
    fn lookup(&mut self, callers: &[CallerRule]) -> Option<LookupPath> {
        let lookup = self.pick(|table| &table.lookup)?;
        if callers.iter().all(|rule| *rule == CallerRule::Anonymous) {
            if !self.own.value.lookup.is_absent() {
                let message = "every caller of this route is anonymous, so none could look up an \
                               operation; remove `lookup`, or identify the callers";
                self.note(&lookup.origin, message);
            }
            return None;
        }
        lookup.value.of(self.own.value.scope.value()?)
    }

    /// The previous scope of the route.
    fn was(&mut self) -> Option<Scope> {
        let was = self.own.value.was.get()?;
        match &was.value.scope {
            TomlField::Good(scope) if self.own.value.scope.value() == Some(&scope.value) => {
                let message = "this is the current scope of the route; write its previous scope";
                self.note(&scope.origin, message);
                None
            }
            TomlField::Good(scope) => Some(scope.value.clone()),
            TomlField::Bad => None,
            TomlField::Absent => {
                self.note(&was.origin, "write the previous scope: was = { scope = \"default\" }");
                None
            }
        }
    }

    /// The dialect, with the statuses of the route.
    fn dialect(&self) -> Dialect {
        let dialect = self.pick(|table| &table.dialect).map(|at| at.value.clone());
        let dialect = dialect.unwrap_or_default();
        match self.pick(|table| &table.statuses) {
            Some(at) => at.value.apply(dialect),
            None => dialect,
        }
    }

    /// The sources of the key, and whether a key is required. A signature requires one, and most
    /// schemes define its source.
    fn key(
        &mut self,
        scheme: Option<&SignatureScheme>,
        dialect: &Dialect,
    ) -> (Vec<KeyLocation>, Required) {
        let own = self.own.value.key.value();
        let inherited = self.defaults.key.value();
        let signed_here = !self.own.value.signature.is_absent();
        let of_scheme = scheme.and_then(SignatureScheme::key).map(|source| vec![source]);
        let mut sources = own.and_then(|key| key.sources.clone());
        if signed_here {
            sources = sources.or_else(|| of_scheme.clone());
        }
        let sources =
            sources.or_else(|| inherited.and_then(|key| key.sources.clone())).or(of_scheme);
        let required = own.and_then(|key| key.required);
        let inherited = inherited.filter(|_| !signed_here).and_then(|key| key.required);
        let usual = if self.is_signed() { Required::Yes } else { Required::No };
        let required = required.or(inherited).unwrap_or(usual);
        if let (None, Some(_), Some(at)) = (&sources, scheme, self.pick(|table| &table.signature)) {
            self.note(
                &at.origin,
                "\"hmac\" has no default source for the event id: add `key`, such as \
                 key = \"X-Event-Id\"",
            );
        }
        let sources = sources.unwrap_or_else(|| vec![KeyLocation::of_dialect(dialect)]);
        if let Some(scheme) = scheme {
            self.refuse_renaming(&sources, scheme);
        }
        (sources, required)
    }

    /// Reports unsigned sources before signed ones: they would let an attacker choose the key.
    fn refuse_renaming(&mut self, sources: &[KeyLocation], scheme: &SignatureScheme) {
        let last = sources.iter().rposition(KeyLocation::may_be_in_body);
        let before = sources.iter().take(last.unwrap_or(0));
        let unsigned = before.filter(|source| !scheme.signs(source)).map(|source| match source {
            KeyLocation::Header(name) => format!("the header `{name}`"),
            KeyLocation::Json(_) | KeyLocation::CloudEvent => "the header `ce-id`".to_owned(),
        });
        if let (Some(name), Some(at)) = (unsigned.take(1).next(), self.pick(|table| &table.key)) {
            let message = format!(
                "{name} is not signed: an attacker who captured an event could replay it under \
                 another key; put signed sources first"
            );
            self.note(&at.origin, message);
        }
    }

    /// The fingerprint rule. For a webhook it ignores the query, and the body if the event id is
    /// signed. Whether the id of a CloudEvent is signed is known only per request.
    fn fingerprint(
        &self,
        key: &[KeyLocation],
        scheme: Option<&SignatureScheme>,
    ) -> Option<FingerprintRule> {
        let Some(scheme) = scheme else {
            let written = self.pick(|table| &table.fingerprint);
            return Some(written.map(|at| at.value.0.clone()).unwrap_or_default());
        };
        if let Some(at) = self.nearest(|table| &table.fingerprint) {
            return Some(at.value.0.clone());
        }
        let signed = key.iter().all(|source| scheme.signs(source));
        let body = if signed { BodyRule::Ignore } else { BodyRule::Selected };
        let rule = FingerprintRule { body, query: QueryRule::Ignore, ..FingerprintRule::default() };
        (!key.contains(&KeyLocation::CloudEvent)).then_some(rule)
    }

    /// The mode. A route with a signature always guards, because observing would let forged
    /// requests pass.
    fn mode(&mut self) -> Mode {
        if !self.is_signed() {
            return self.pick(|table| &table.mode).map(|at| at.value).unwrap_or_default();
        }
        if let Some(Located { value: Mode::Observe, origin }) = self.own.value.mode.get() {
            self.note(
                origin,
                "a route with a signature cannot observe: forged requests would pass; remove \
                 `mode`, or remove `signature` while you observe",
            );
        }
        Mode::Guard
    }
}

/// Suggests a scope for a path: `payments.refunds` for `/v1/payments/*/refunds`.
fn suggested_scope(path: &[Segment]) -> String {
    let is_version = |text: &str| {
        let digits = text.strip_prefix('v');
        digits
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    let names: Vec<String> = path
        .iter()
        .filter_map(|segment| match segment {
            Segment::Text(text) if text != "api" && !is_version(text) => Some(plain(text)),
            Segment::Text(_) | Segment::One | Segment::Any => None,
        })
        .filter(|name| !name.is_empty())
        .collect();
    let name: String = names.join(".").chars().take(64).collect();
    if Scope::new(&name).is_ok() { name } else { "default".to_owned() }
}

fn plain(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let plain = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(*c);
    lower.chars().filter(plain).collect()
}
