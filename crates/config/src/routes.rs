//! Builds each route: its own settings, then `[defaults]`, then the built-in defaults.

mod paths;
mod policy;

use std::sync::Arc;

use semel::core::{
    BodyRule, Dialect, FingerprintRule, HostRule, OnUnknown, Policy, QueryRule, Scope,
    store::METADATA_ENTRIES_MAX,
};
use semel_tower::{CaptureSource, LookupPath, RecordContent};

use super::{
    CallerRule, Guard, IssuedKeysRule, KeyLocation, Match, Mode, OnUnmatched, ReconcileRule,
    Required, Route, Segment, SignatureScheme, Upstream, callers, issued_keys,
    loader::Loader,
    raw::{ConfigFile, RouteTable},
    read::{Located, OneOrMore, TomlField},
    report::ValueOrigin,
    signature, verified_callers,
};

/// The settings that an unguarded route may have.
const UNGUARDED_SETTINGS: [&str; 4] = ["match", "guard", "upstream", "upstream_timeout"];

/// Maximum number of routes: the store keeps one metadata entry per route, at most this many.
const ROUTES_MAX: usize = METADATA_ENTRIES_MAX;

/// Builds all routes in order; `None` if one of them is invalid.
pub(super) fn routes(
    loader: &mut Loader<'_, '_>,
    raw: &ConfigFile,
    gateway: Option<&Arc<Upstream>>,
) -> Option<Vec<Route>> {
    let none = RouteTable::default();
    let defaults = raw.defaults.value().unwrap_or(&none);
    report_route_settings_in_defaults(loader, defaults);
    let implicit = [Located { value: implicit_route(), origin: ValueOrigin::Missing }];
    let tables = match raw.route.value() {
        Some(tables) if !tables.is_empty() => tables,
        _ if raw.route.is_bad() => return None,
        _ => {
            report_unmatched_without_routes(loader, raw);
            &implicit[..]
        }
    };
    if let Some(first) = tables.get(ROUTES_MAX) {
        let message = format!("a configuration has at most {ROUTES_MAX} routes");
        loader.report.add_error(&first.origin, message);
        return None;
    }
    let mut all = Vec::new();
    let mut upstreams: Vec<Arc<Upstream>> = gateway.into_iter().cloned().collect();
    for table in tables {
        let mut builder = RouteBuilder { own: table, defaults, loader };
        all.push(builder.route(gateway, &mut upstreams));
    }
    report_unreachable_routes(loader, tables, defaults);
    paths::report_ambiguous_lookups(loader, tables, defaults, &all);
    paths::report_ambiguous_issuers(loader, tables, &all);
    paths::report_reconcile_conflicts(loader, tables, &all);
    all.into_iter().collect()
}

/// The implicit route of a configuration without routes.
fn implicit_route() -> RouteTable {
    let matches = Match {
        methods: vec![http::Method::POST, http::Method::PATCH],
        has_default_methods: true,
        host: None,
        path: vec![Segment::Any],
    };
    let missing = || ValueOrigin::Missing;
    let scope =
        Scope::new("default").map(|value| TomlField::Good(Located { value, origin: missing() }));
    RouteTable {
        matches: TomlField::Good(Located { value: matches, origin: missing() }),
        scope: scope.unwrap_or_default(),
        ..RouteTable::default()
    }
}

/// Reports `unmatched = "refuse"` without routes: the implicit route matches only POST and PATCH.
fn report_unmatched_without_routes(loader: &mut Loader<'_, '_>, raw: &ConfigFile) {
    let unmatched = raw.gateway.value().and_then(|gateway| gateway.unmatched.get());
    if let Some(Located { value: OnUnmatched::Refuse, origin }) = unmatched {
        loader.report.add_error(
            origin,
            "`unmatched = \"refuse\"` needs a [[route]]: without one, only POST and PATCH would be \
             accepted",
        );
    }
}

fn report_route_settings_in_defaults(loader: &mut Loader<'_, '_>, defaults: &RouteTable) {
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
                .add_error(origin, format!("`{name}` belongs in a [[route]], not in [defaults]"));
        }
    }
}

/// Reports unreachable routes.
fn report_unreachable_routes(
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
            loader.report.add_error(
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
    Some(matches.with_default_methods(signed && guarded))
}

/// The settings of one route and the defaults that it inherits.
struct RouteBuilder<'l, 'a, 'r> {
    own: &'l Located<RouteTable>,
    defaults: &'l RouteTable,
    loader: &'l mut Loader<'a, 'r>,
}

impl<'l> RouteBuilder<'l, '_, '_> {
    /// The setting of the route, or the default.
    fn field<T: 'l>(
        &self,
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>,
    ) -> &'l TomlField<T> {
        let own = setting(&self.own.value);
        if own.is_absent() { setting(self.defaults) } else { own }
    }

    fn setting<T: 'l>(
        &self,
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>,
    ) -> Option<&'l Located<T>> {
        self.field(setting).get()
    }

    /// The value of a setting, without `[defaults]` if the route itself has a signature: then the
    /// default follows from the signature.
    fn signature_dependent<T: 'l>(
        &self,
        setting: impl Fn(&'l RouteTable) -> &'l TomlField<T>,
    ) -> Option<&'l Located<T>> {
        if self.own.value.signature.is_absent() {
            self.setting(setting)
        } else {
            setting(&self.own.value).get()
        }
    }

    fn is_signed(&self) -> bool {
        !self.field(|table| &table.signature).is_absent()
    }

    fn add_error(&mut self, origin: &ValueOrigin, message: impl Into<String>) {
        self.loader.report.add_error(origin, message);
    }

    fn route(
        &mut self,
        gateway: Option<&Arc<Upstream>>,
        upstreams: &mut Vec<Arc<Upstream>>,
    ) -> Option<Route> {
        let own = &self.own.value;
        if own.matches.is_absent() {
            self.add_error(
                &self.own.origin.clone(),
                "a route needs `match`, such as match = \"POST /v1/payments/**\"",
            );
        }
        // All parts are built before returning, so that every error is reported.
        let upstream = gateway.and_then(|gateway| self.upstream(gateway, upstreams));
        let guard = match own.guard.get() {
            Some(Located { value: false, origin }) => {
                self.report_guard_settings(origin);
                Some(None)
            }
            _ => self.guard().map(Some),
        };
        let (mut guard, upstream) = (guard?, upstream?);
        if let Some(guard) = guard.as_mut() {
            self.report_unsafe_propagation(guard);
        }
        // The upstream does not receive the client's host, so the fingerprint ignores it.
        if upstream.sends_upstream_host
            && let Some(rule) = guard.as_mut().and_then(|guard| guard.fingerprint.as_mut())
        {
            rule.host = HostRule::Ignore;
        }
        Some(Route { matches: effective_match(own, self.defaults)?, guard, upstream })
    }

    /// Reports `propagate` on a route whose operations may not run again: the deadline of one
    /// client could cancel them.
    fn report_unsafe_propagation(&mut self, guard: &Guard) {
        let propagates = guard.deadline.as_ref().is_some_and(|deadline| deadline.propagate);
        if propagates
            && guard.policy.on_unknown != OnUnknown::Rerun
            && let Some(at) = self.setting(|table| &table.deadline)
        {
            self.add_error(
                &at.origin,
                "`propagate` lets the upstream cancel an operation, whose outcome is then unknown; \
                 it needs on_unknown = \"rerun\"",
            );
        }
    }

    fn report_guard_settings(&mut self, origin: &ValueOrigin) {
        let mut unused = self.own.value.written();
        unused.retain(|name| !UNGUARDED_SETTINGS.contains(name));
        if !unused.is_empty() {
            let names: Vec<String> = unused.iter().map(|name| format!("`{name}`")).collect();
            let names = names.join(", ");
            self.add_error(origin, format!("a route with `guard = false` cannot have {names}"));
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
                self.add_error(&time.origin, message);
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
        let signature_field = self.field(|table| &table.signature);
        let signature = signature_field.get().map(|at| signature::build_rule(self.loader, at));
        let scheme = signature.iter().flatten().map(|rule| &rule.scheme).next();
        let dialect = self.dialect();
        let (key, required) = self.key(scheme, &dialect);
        let policy = self.policy();
        let callers = match self.signature_dependent(|table| &table.caller) {
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
        let keep_headers = self.setting(|table| &table.keep_headers);
        let keep_headers = keep_headers
            .map(|at| at.value.iter().map(|name| name.value.0.clone()).collect())
            .unwrap_or_default();
        let mode = self.mode();
        let api = self.setting(|table| &table.api).is_some_and(|at| at.value);
        let capture = self.setting(|table| &table.capture);
        let record = self.setting(|table| &table.record);
        let lookup = self.lookup(&callers);
        let issued_keys = self.issued_keys(&key, &callers, &dialect);
        let capture = capture.map(|at| at.value.0.clone()).unwrap_or_default();
        let record = record.map(|at| at.value.0.clone()).unwrap_or_default();
        let reconcile = self.reconcile(&policy, &record, &capture, &callers);
        Some(Guard {
            reconcile,
            cors: self.setting(|table| &table.cors).map(|at| at.value.clone()),
            lookup,
            issued_keys,
            deadline: self.setting(|table| &table.deadline).map(|at| at.value.clone()),
            mode,
            api,
            keep_under_body_keys: !self.is_signed()
                && key.iter().any(KeyLocation::may_be_in_body)
                && self.signature_dependent(|table| &table.keep).is_some(),
            about: self.setting(|table| &table.about).map(|at| at.value).unwrap_or_default(),
            capture,
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
                None if signature_field.is_bad() => return None,
                None => None,
            },
            fingerprint,
            policy,
            record,
            keep_headers,
        })
    }

    fn scope(&mut self) -> Option<Scope> {
        let own = &self.own.value;
        if own.scope.is_absent() && !own.matches.is_absent() {
            let matches = own.matches.get();
            let suggested = suggested_scope(matches.map_or(&[], |matches| &matches.value.path));
            let origin = matches.map_or(&self.own.origin, |matches| &matches.origin).clone();
            self.add_error(
                &origin,
                format!(
                    "a guarded route needs a scope: add scope = \"{suggested}\", or guard = false"
                ),
            );
        }
        own.scope.value().cloned()
    }

    /// The lookup path; `None` if all callers are anonymous or a host alone: they share their keys,
    /// so a lookup could return the operation of another client.
    fn lookup(&mut self, callers: &[CallerRule]) -> Option<LookupPath> {
        let lookup = self.setting(|table| &table.lookup)?;
        if callers.iter().all(CallerRule::is_shared) {
            if !self.own.value.lookup.is_absent() {
                let message = "every caller of this route is anonymous or a host alone, so \
                               lookups are not possible; remove `lookup`, or identify the callers";
                self.add_error(&lookup.origin, message);
            }
            return None;
        }
        lookup.value.of(self.own.value.scope.value()?)
    }

    /// How the upstream is asked about held operations.
    fn reconcile(
        &mut self,
        policy: &Policy,
        record: &RecordContent,
        captures: &[(String, CaptureSource)],
        callers: &[CallerRule],
    ) -> Option<Arc<ReconcileRule>> {
        let setting = self.setting(|table| &table.reconcile)?.clone();
        if policy.on_unknown != OnUnknown::Hold {
            let message = "only held records are reconciled: this needs on_unknown = \"hold\"";
            self.add_error(&setting.origin, message);
            return None;
        }
        if *record != RecordContent::Full {
            let message = "the answer of the upstream would be recorded in full; this needs \
                           record = \"full\"";
            self.add_error(&setting.origin, message);
            return None;
        }
        setting.resolve(self.loader, captures, callers).map(Arc::new)
    }

    /// The keys that the gateway issues for the route.
    fn issued_keys(
        &mut self,
        sources: &[KeyLocation],
        callers: &[CallerRule],
        dialect: &Dialect,
    ) -> Option<IssuedKeysRule> {
        let own = self.own.value.key.value().and_then(|key| key.token.clone());
        let inherited = self.defaults.key.value().and_then(|key| key.token.clone());
        let token = own.or_else(|| inherited.filter(|_| !self.is_signed()))?;
        let limit = dialect.key_bytes_max();
        if let Some(obstacle) = issued_keys::obstacle(sources, callers, self.is_signed(), limit) {
            self.add_error(&token.origin, obstacle);
            return None;
        }
        let setting = self.setting(|table| &table.issued_keys).map(|at| at.value.clone());
        Some(setting.unwrap_or_default().rule(token.value))
    }

    /// The previous scope of the route.
    fn was(&mut self) -> Option<Scope> {
        let was = self.own.value.was.get()?;
        match &was.value.scope {
            TomlField::Good(scope) if self.own.value.scope.value() == Some(&scope.value) => {
                let message = "this is the current scope of the route; write its previous scope";
                self.add_error(&scope.origin, message);
                None
            }
            TomlField::Good(scope) => Some(scope.value.clone()),
            TomlField::Bad => None,
            TomlField::Absent => {
                self.add_error(
                    &was.origin,
                    "write the previous scope: was = { scope = \"default\" }",
                );
                None
            }
        }
    }

    /// The dialect (the error format of a provider such as Stripe), with the statuses that the
    /// route overrides.
    fn dialect(&self) -> Dialect {
        let dialect = self.setting(|table| &table.dialect).map(|at| at.value.clone());
        let dialect = dialect.unwrap_or_default();
        match self.setting(|table| &table.statuses) {
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
        let has_own_signature = !self.own.value.signature.is_absent();
        let scheme_sources =
            scheme.and_then(SignatureScheme::event_id_location).map(|source| vec![source]);
        let mut sources = own.and_then(|key| key.sources.clone());
        if has_own_signature {
            sources = sources.or_else(|| scheme_sources.clone());
        }
        let sources =
            sources.or_else(|| inherited.and_then(|key| key.sources.clone())).or(scheme_sources);
        let required = own.and_then(|key| key.required);
        let inherited = inherited.filter(|_| !has_own_signature).and_then(|key| key.required);
        let default_required = if self.is_signed() { Required::Yes } else { Required::No };
        let required = required.or(inherited).unwrap_or(default_required);
        if let (None, Some(_), Some(at)) =
            (&sources, scheme, self.setting(|table| &table.signature))
        {
            self.add_error(
                &at.origin,
                "\"hmac\" has no default source for the event id: add `key`, such as \
                 key = \"X-Event-Id\"",
            );
        }
        let sources = sources.unwrap_or_else(|| vec![KeyLocation::of_dialect(dialect)]);
        if let Some(scheme) = scheme {
            self.report_unsigned_key_sources(&sources, scheme);
        }
        (sources, required)
    }

    /// Reports key sources that are not signed and take precedence over a source in the signed
    /// body: an attacker could choose the key.
    fn report_unsigned_key_sources(&mut self, sources: &[KeyLocation], scheme: &SignatureScheme) {
        let last = sources.iter().rposition(KeyLocation::may_be_in_body);
        let before = sources.iter().take(last.unwrap_or(0));
        let unsigned =
            before.filter(|source| !scheme.is_always_signed(source)).map(|source| match source {
                KeyLocation::Header(name) => format!("the header `{name}`"),
                KeyLocation::Json(_) | KeyLocation::CloudEvent => "the header `ce-id`".to_owned(),
            });
        if let (Some(name), Some(at)) = (unsigned.take(1).next(), self.setting(|table| &table.key))
        {
            let message = format!(
                "{name} is not signed: an attacker who captured an event could replay it under \
                 another key; put signed sources first"
            );
            self.add_error(&at.origin, message);
        }
    }

    /// The fingerprint rule. For a webhook it ignores the query, and the body if the event id is
    /// signed. `None` for CloudEvents: whether their id is signed depends on the request.
    fn fingerprint(
        &self,
        key: &[KeyLocation],
        scheme: Option<&SignatureScheme>,
    ) -> Option<FingerprintRule> {
        let Some(scheme) = scheme else {
            let written = self.setting(|table| &table.fingerprint);
            return Some(written.map(|at| at.value.0.clone()).unwrap_or_default());
        };
        if let Some(at) = self.signature_dependent(|table| &table.fingerprint) {
            return Some(at.value.0.clone());
        }
        let signed = key.iter().all(|source| scheme.is_always_signed(source));
        let body = if signed { BodyRule::Ignore } else { BodyRule::Selected };
        let rule = FingerprintRule { body, query: QueryRule::Ignore, ..FingerprintRule::default() };
        (!key.contains(&KeyLocation::CloudEvent)).then_some(rule)
    }

    /// The mode. A route with a signature always guards, because observing would let forged
    /// requests pass.
    fn mode(&mut self) -> Mode {
        if !self.is_signed() {
            return self.setting(|table| &table.mode).map(|at| at.value).unwrap_or_default();
        }
        if let Some(Located { value: Mode::Observe, origin }) = self.own.value.mode.get() {
            self.add_error(
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
            Segment::Text(text) if text != "api" && !is_version(text) => Some(scope_part(text)),
            Segment::Text(_) | Segment::One | Segment::Any => None,
        })
        .filter(|name| !name.is_empty())
        .collect();
    let name: String = names.join(".").chars().take(64).collect();
    if Scope::new(&name).is_ok() { name } else { "default".to_owned() }
}

fn scope_part(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let is_allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(*c);
    lower.chars().filter(is_allowed).collect()
}
