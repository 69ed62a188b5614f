//! What a `[[route]]` means: its own settings, over `[defaults]`, over what is built in.

mod policy;

use std::sync::Arc;

use semel::core::{BodyRule, FingerprintRule, HostRule, QueryRule, Scope};

use super::{
    CallerRule, Guard, KeySource, Match, Mode, Piece, Required, Route, SignatureScheme, Upstream,
    callers,
    load::Loader,
    raw::{File, RouteTable},
    read::{At, OneOrMore, Slot},
    report::Place,
    signature,
};

/// The settings that say nothing about guarding.
const UNGUARDED: [&str; 4] = ["match", "guard", "upstream", "upstream_timeout"];

/// All routes in their order, or nothing if one of them is wrong.
pub(super) fn routes(
    loader: &mut Loader<'_, '_>,
    raw: &File,
    gateway: Option<&Arc<Upstream>>,
) -> Option<Vec<Route>> {
    let none = RouteTable::default();
    let defaults = raw.defaults.value().unwrap_or(&none);
    refuse_in_defaults(loader, defaults);
    let everywhere = [At { value: everywhere(), place: Place::Nowhere }];
    let tables = match raw.route.value() {
        Some(tables) if !tables.is_empty() => tables,
        _ if raw.route.is_bad() => return None,
        _ => &everywhere[..],
    };
    let mut all = Vec::new();
    let mut upstreams: Vec<Arc<Upstream>> = gateway.into_iter().cloned().collect();
    for table in tables {
        let mut layers = Layers { own: table, defaults, loader };
        all.push(layers.route(gateway, &mut upstreams));
    }
    refuse_shadowed(loader, tables, defaults);
    all.into_iter().collect()
}

/// The route of a configuration without routes.
fn everywhere() -> RouteTable {
    let matches = Match {
        methods: vec![http::Method::POST, http::Method::PATCH],
        implied: true,
        host: None,
        path: vec![Piece::Any],
    };
    let nowhere = || Place::Nowhere;
    let scope = Scope::new("default").map(|value| Slot::Good(At { value, place: nowhere() }));
    RouteTable {
        matches: Slot::Good(At { value: matches, place: nowhere() }),
        scope: scope.unwrap_or_default(),
        ..RouteTable::default()
    }
}

fn refuse_in_defaults(loader: &mut Loader<'_, '_>, defaults: &RouteTable) {
    let places = [
        ("match", defaults.matches.get().map(|at| &at.place)),
        ("scope", defaults.scope.get().map(|at| &at.place)),
        ("was", defaults.was.get().map(|at| &at.place)),
        ("guard", defaults.guard.get().map(|at| &at.place)),
    ];
    for (name, place) in places {
        if let Some(place) = place {
            loader
                .report
                .note(place, format!("`{name}` belongs in a [[route]], not in [defaults]"));
        }
    }
}

/// A route that can never be asked is a mistake in the order.
fn refuse_shadowed(loader: &mut Loader<'_, '_>, tables: &[At<RouteTable>], defaults: &RouteTable) {
    let taken = |table: &At<RouteTable>| {
        let place = table.value.matches.get()?.place.clone();
        Some(At { value: taken(&table.value, defaults)?, place })
    };
    let matches: Vec<At<Match>> = tables.iter().filter_map(taken).collect();
    for (index, later) in matches.iter().enumerate() {
        let earlier = matches.iter().take(index).find(|earlier| earlier.value.covers(&later.value));
        if let Some(earlier) = earlier {
            loader.report.note(
                &later.place,
                format!(
                    "this route is never asked: the earlier `{}` takes all that it matches; put \
                     this one first",
                    earlier.value
                ),
            );
        }
    }
}

/// Which requests a route takes.
fn taken(own: &RouteTable, defaults: &RouteTable) -> Option<Match> {
    let matches = own.matches.value()?.clone();
    let signed = !own.signature.is_absent() || !defaults.signature.is_absent();
    let guarded = own.guard.value() != Some(&false);
    Some(matches.settled(signed && guarded))
}

/// One route and what it inherits.
struct Layers<'l, 'a, 'r> {
    own: &'l At<RouteTable>,
    defaults: &'l RouteTable,
    loader: &'l mut Loader<'a, 'r>,
}

impl<'l> Layers<'l, '_, '_> {
    /// What was written for a setting: by the route, or else by the defaults.
    fn slot<T: 'l>(&self, setting: impl Fn(&'l RouteTable) -> &'l Slot<T>) -> &'l Slot<T> {
        let own = setting(&self.own.value);
        if own.is_absent() { setting(self.defaults) } else { own }
    }

    fn pick<T: 'l>(&self, setting: impl Fn(&'l RouteTable) -> &'l Slot<T>) -> Option<&'l At<T>> {
        self.slot(setting).get()
    }

    /// What was written for a setting that is another by default where there is a signature. The
    /// signature of a route is nearer to it than what `[defaults]` say.
    fn nearest<T: 'l>(&self, setting: impl Fn(&'l RouteTable) -> &'l Slot<T>) -> Option<&'l At<T>> {
        if self.own.value.signature.is_absent() {
            self.pick(setting)
        } else {
            setting(&self.own.value).get()
        }
    }

    fn is_signed(&self) -> bool {
        !self.slot(|table| &table.signature).is_absent()
    }

    fn note(&mut self, place: &Place, message: impl Into<String>) {
        self.loader.report.note(place, message);
    }

    fn route(
        &mut self,
        gateway: Option<&Arc<Upstream>>,
        upstreams: &mut Vec<Arc<Upstream>>,
    ) -> Option<Route> {
        let own = &self.own.value;
        if own.matches.is_absent() {
            self.note(
                &self.own.place.clone(),
                "a route needs `match`: which requests it takes, such as \"POST /v1/payments/**\"",
            );
        }
        // All of it is looked at before anything is given up, so that every mistake is noted.
        let upstream = gateway.and_then(|gateway| self.upstream(gateway, upstreams));
        let guard = match own.guard.get() {
            Some(At { value: false, place }) => {
                self.refuse_guard_settings(place);
                Some(None)
            }
            _ => self.guard().map(Some),
        };
        let (mut guard, upstream) = (guard?, upstream?);
        // What the upstream is not told makes no difference to it.
        if upstream.own_host
            && let Some(rule) = guard.as_mut().and_then(|guard| guard.fingerprint.as_mut())
        {
            rule.host = HostRule::Ignore;
        }
        Some(Route { matches: taken(own, self.defaults)?, guard, upstream })
    }

    fn refuse_guard_settings(&mut self, place: &Place) {
        let mut idle = self.own.value.written();
        idle.retain(|name| !UNGUARDED.contains(name));
        if !idle.is_empty() {
            let names: Vec<String> = idle.iter().map(|name| format!("`{name}`")).collect();
            let names = names.join(", ");
            self.note(place, format!("a route with `guard = false` has no use for {names}"));
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
                let message = "the upstream of this route has a `timeout` too; write one of them";
                self.note(&time.place, message);
            }
        }
        if let Some(time) = own.upstream_timeout.value() {
            upstream.timeout = time.0;
        }
        // Equal upstreams are one, so that they share their connections.
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
        let written = self.slot(|table| &table.signature);
        let signature = written.get().map(|at| signature::rule(self.loader, at));
        let scheme = signature.iter().flatten().map(|rule| &rule.scheme).next();
        let (key, required) = self.key(scheme);
        let policy = self.policy();
        let callers = match self.nearest(|table| &table.caller) {
            Some(At { value: OneOrMore(rules), .. }) => {
                callers::refuse_shadowed(rules, self.loader.report);
                rules.iter().map(|rule| rule.value.clone()).collect()
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
        let capture = self.pick(|table| &table.capture);
        let record = self.pick(|table| &table.record);
        Some(Guard {
            mode,
            keep_under_body_keys: !self.is_signed()
                && key.iter().any(KeySource::may_be_in_body)
                && self.nearest(|table| &table.keep).is_some(),
            about: self.pick(|table| &table.about).map(|at| at.value).unwrap_or_default(),
            capture: capture.map(|at| at.value.0.clone()).unwrap_or_default(),
            scope: scope?,
            was,
            former_scopes: Vec::new(),
            key,
            required,
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
            let likely = likely_scope(matches.map_or(&[], |matches| &matches.value.path));
            let place = matches.map_or(&self.own.place, |matches| &matches.place).clone();
            self.note(
                &place,
                format!(
                    "a guarded route needs a scope: add scope = \"{likely}\", or guard = false"
                ),
            );
        }
        own.scope.value().cloned()
    }

    /// The scope that the route had before.
    fn was(&mut self) -> Option<Scope> {
        let was = self.own.value.was.get()?;
        match &was.value.scope {
            Slot::Good(scope) if self.own.value.scope.value() == Some(&scope.value) => {
                let message = "this is the scope that the route has now; name the one before";
                self.note(&scope.place, message);
                None
            }
            Slot::Good(scope) => Some(scope.value.clone()),
            Slot::Bad => None,
            Slot::Absent => {
                self.note(&was.place, "write the scope before: was = { scope = \"default\" }");
                None
            }
        }
    }

    /// Where the key is, and whether there must be one. Where there is a signature, there must, and
    /// most schemes have a place for it.
    fn key(&mut self, scheme: Option<&SignatureScheme>) -> (Vec<KeySource>, Required) {
        let own = self.own.value.key.value();
        let inherited = self.defaults.key.value();
        let signed_here = !self.own.value.signature.is_absent();
        let of_scheme = scheme.and_then(SignatureScheme::key).map(|place| vec![place]);
        let mut places = own.and_then(|key| key.places.clone());
        if signed_here {
            places = places.or_else(|| of_scheme.clone());
        }
        let places = places.or_else(|| inherited.and_then(|key| key.places.clone())).or(of_scheme);
        let required = own.and_then(|key| key.required);
        let inherited = inherited.filter(|_| !signed_here).and_then(|key| key.required);
        let usual = if self.is_signed() { Required::Yes } else { Required::No };
        let required = required.or(inherited).unwrap_or(usual);
        if let (None, Some(_), Some(at)) = (&places, scheme, self.pick(|table| &table.signature)) {
            self.note(
                &at.place,
                "\"hmac\" does not say where the id of an event is: add `key`, such as \
                 key = \"X-Event-Id\"",
            );
        }
        let header = || vec![KeySource::Header(http::HeaderName::from_static("idempotency-key"))];
        let places = places.unwrap_or_else(header);
        if let Some(scheme) = scheme {
            self.refuse_renaming(&places, scheme);
        }
        (places, required)
    }

    /// What is not signed must not be asked before what is.
    fn refuse_renaming(&mut self, places: &[KeySource], scheme: &SignatureScheme) {
        let last = places.iter().rposition(KeySource::may_be_in_body);
        let before = places.iter().take(last.unwrap_or(0));
        let unsigned = before.filter(|place| !scheme.signs(place)).map(|place| match place {
            KeySource::Header(name) => format!("the header `{name}`"),
            KeySource::Json(_) | KeySource::CloudEvent => "the header `ce-id`".to_owned(),
        });
        if let (Some(name), Some(at)) = (unsigned.take(1).next(), self.pick(|table| &table.key)) {
            let message = format!(
                "{name} is not signed: whoever captured an event could send it again under a key \
                 of his own; ask what is signed first"
            );
            self.note(&at.place, message);
        }
    }

    /// What of a request counts. Of an event the query does not, and nor does the body if its id
    /// is signed; a CloudEvent shows only when it comes whether that is so.
    fn fingerprint(
        &self,
        key: &[KeySource],
        scheme: Option<&SignatureScheme>,
    ) -> Option<FingerprintRule> {
        let Some(scheme) = scheme else {
            let written = self.pick(|table| &table.fingerprint);
            return Some(written.map(|at| at.value.0.clone()).unwrap_or_default());
        };
        if let Some(at) = self.nearest(|table| &table.fingerprint) {
            return Some(at.value.0.clone());
        }
        let signed = key.iter().all(|place| scheme.signs(place));
        let body = if signed { BodyRule::Ignore } else { BodyRule::Selected };
        let rule = FingerprintRule { body, query: QueryRule::Ignore, ..FingerprintRule::default() };
        (!key.contains(&KeySource::CloudEvent)).then_some(rule)
    }

    /// Whether the route guards. Forgeries are not kept out by looking at them, so one with a
    /// signature does, whatever `[defaults]` say.
    fn mode(&mut self) -> Mode {
        if !self.is_signed() {
            return self.pick(|table| &table.mode).map(|at| at.value).unwrap_or_default();
        }
        if let Some(At { value: Mode::Observe, place }) = self.own.value.mode.get() {
            self.note(
                place,
                "a route with a signature guards: if it only observed, forgeries would pass; \
                 leave `mode` out, or `signature` for as long as you observe",
            );
        }
        Mode::Guard
    }
}

/// A name for the operations below a path: `/v1/payments/*/refunds` is `payments.refunds`.
fn likely_scope(path: &[Piece]) -> String {
    let is_version = |text: &str| {
        let digits = text.strip_prefix('v');
        digits
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    let names: Vec<String> = path
        .iter()
        .filter_map(|piece| match piece {
            Piece::Text(text) if text != "api" && !is_version(text) => Some(plain(text)),
            Piece::Text(_) | Piece::One | Piece::Any => None,
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
