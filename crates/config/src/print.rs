//! Prints the effective configuration as TOML, with all defaults.

use std::path::{self, Path};

use semel::core::{
    FingerprintHeader, FingerprintRule, Keep, Scope, StatusList,
    canonical::{Pointer, Selection},
};
use semel_tower::{CaptureSource, RecordContent};
use serde_json::{Map, Value, json};

use super::{
    Api, ApiRole, ApiToken, CacheUrl, CallerPart, CallerRule, Config, DeadlineSetting, Gateway,
    Guard, IssuedKeyUse, IssuedKeysRule, KeyLocation, Limits, Required, Route, ScopeRule,
    SecretSource, SignatureRule, SignatureScheme, StoreUrl, TokenSource, Upstream,
    WebhookSecretSource,
    explain::toml_text,
    read::merge,
    units::{size_text, time_text},
    values::{ForwardedHost, Keyword as _},
};

/// Settings of a table, in the order in which they are printed.
type Lines = Vec<(&'static str, Value)>;

impl Config {
    /// The configuration as TOML with all defaults. Paths are absolute, so that the output is valid
    /// in any folder. Secrets are printed as their location only.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        table(&mut text, "", self.top());
        table(&mut text, "[gateway]", gateway(&self.gateway));
        if let Some(all_else) = &self.gateway.upstream {
            table(&mut text, "[gateway.upstream]", upstream(all_else));
        }
        table(&mut text, "[api]", self.api.as_ref().map_or_else(api_off, api));
        for token in self.api.iter().flat_map(|api| &api.tokens) {
            table(&mut text, "[[api.token]]", api_token(token));
        }
        for rule in &self.scopes {
            table(&mut text, "[[scope]]", scope_rule(rule));
        }
        table(&mut text, "[limits]", limits(&self.limits));
        for route in &self.routes {
            table(&mut text, "[[route]]", lines_of(route));
            table(&mut text, "[route.upstream]", upstream(&route.upstream));
        }
        text
    }

    fn top(&self) -> Lines {
        let store = match &self.store {
            StoreUrl::Sqlite(path) => format!("sqlite:{}", absolute(path)),
            StoreUrl::Postgres(server) => server.to_string(),
            StoreUrl::Memory => "memory:".to_owned(),
        };
        let mut lines = vec![("store", store.into())];
        if let Some(id) = &self.store_id {
            lines.push(("store_id", id.clone().into()));
        }
        if let Some(CacheUrl(server)) = &self.cache {
            lines.push(("cache", server.to_string().into()));
        }
        lines.push(("sweep_every", time_text(self.sweep_every).into()));
        lines.extend(secret(&self.secret, ["secret_env", "secret_file"]));
        let before = self.secret_before.as_ref();
        let names = ["secret_before_env", "secret_before_file"];
        lines.extend(before.and_then(|before| secret(before, names)));
        lines
    }
}

fn table(text: &mut String, name: &str, lines: Lines) {
    if !name.is_empty() {
        text.push_str(&format!("\n{name}\n"));
    }
    for (name, value) in lines {
        text.push_str(&format!("{name} = {}\n", toml_text(&value)));
    }
}

fn secret(source: &SecretSource, [env, file]: [&'static str; 2]) -> Option<(&'static str, Value)> {
    match source {
        SecretSource::Env(name) => Some((env, name.clone().into())),
        SecretSource::File(path) => Some((file, absolute(path).into())),
        SecretSource::BesideStore => None,
    }
}

fn absolute(path: &Path) -> String {
    path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn gateway(gateway: &Gateway) -> Lines {
    let listen: Vec<String> = gateway.listen.iter().map(ToString::to_string).collect();
    let mut lines = vec![
        ("listen", listen.into()),
        ("threads", gateway.threads.into()),
        ("drain", time_text(gateway.drain).into()),
        ("trust_forwarded", gateway.trust_forwarded.into()),
        ("unmatched", gateway.unmatched.keyword().into()),
    ];
    if !gateway.trusted_proxies.is_empty() {
        let networks: Vec<String> =
            gateway.trusted_proxies.iter().map(ToString::to_string).collect();
        lines.push(("trusted_proxies", networks.into()));
    }
    if let Some(docs) = &gateway.docs {
        lines.push(("docs", docs.clone().into()));
    }
    if let Some(tls) = &gateway.tls {
        let (certificate, key) = (absolute(&tls.certificate), absolute(&tls.key));
        let mut table = json!({ "certificate": certificate, "key": key });
        if let Some(ca) = &tls.client_ca {
            let auth = tls.client_auth.keyword();
            merge(&mut table, json!({ "client_ca": absolute(ca), "client_auth": auth }));
        }
        lines.push(("tls", table));
    }
    lines
}

fn upstream(upstream: &Upstream) -> Lines {
    let host =
        if upstream.sends_upstream_host { ForwardedHost::Upstream } else { ForwardedHost::Client };
    let mut lines = vec![
        ("url", upstream.url().into()),
        ("protocol", upstream.protocol.keyword().into()),
        ("host", host.keyword().into()),
        ("connect_timeout", time_text(upstream.connect_timeout).into()),
        ("timeout", time_text(upstream.timeout).into()),
        ("pool_idle", time_text(upstream.pool_idle).into()),
        ("pool_max", upstream.pool_max.into()),
    ];
    if let Some(ca) = &upstream.ca {
        lines.push(("ca", absolute(ca).into()));
    }
    lines
}

fn api(api: &Api) -> Lines {
    let mut lines =
        vec![("listen", api.listen.to_string().into()), ("threads", api.threads.into())];
    if let Some(name) = &api.operator_token_env {
        lines.push(("operator_token_env", name.clone().into()));
    }
    if let Some(file) = &api.operator_token_file {
        lines.push(("operator_token_file", absolute(file).into()));
    }
    lines.push(("audit", absolute(&api.audit).into()));
    if let Some(trusted) = &api.trusted_header {
        lines.push(("trusted_header", trusted.to_json()));
    }
    lines
}

/// Secrets are printed as their location only.
fn api_token(token: &ApiToken) -> Lines {
    let mut lines =
        vec![("name", token.name.clone().into()), ("role", token.role.keyword().into())];
    if token.role == ApiRole::App {
        lines.push(("caller", token.caller.as_deref().unwrap_or("*").into()));
    }
    if let Some(scopes) = &token.scopes {
        lines.push(("scopes", scopes.iter().map(Scope::as_str).collect::<Vec<_>>().into()));
    }
    let (mut names, mut files) = (Vec::new(), Vec::new());
    for secret in &token.secrets {
        match secret {
            TokenSource::Env(name, _) => names.push(name.clone()),
            TokenSource::File(path) => files.push(absolute(path)),
        }
    }
    for (name, list) in [("secret_env", names), ("secret_file", files)] {
        if !list.is_empty() {
            lines.push((name, list.into()));
        }
    }
    lines
}

fn scope_rule(rule: &ScopeRule) -> Lines {
    let mut lines = vec![("name", rule.name.as_str().into())];
    lines.extend(rule.lease.map(|time| ("lease", time_text(time).into())));
    lines.extend(rule.retention.map(|time| ("retention", time_text(time).into())));
    lines.extend(rule.on_unknown.map(|word| ("on_unknown", word.keyword().into())));
    lines.extend(rule.hold_for.map(|time| ("hold_for", time_text(time).into())));
    lines.extend(rule.result_bytes_max.map(|bytes| ("result_max", bytes_text(bytes))));
    lines
}

fn api_off() -> Lines {
    vec![("listen", "off".into())]
}

fn limits(limits: &Limits) -> Lines {
    vec![
        ("header_bytes", bytes_text(limits.header_bytes)),
        ("headers", limits.headers.into()),
        ("header_timeout", time_text(limits.header_timeout).into()),
        ("body_timeout", time_text(limits.body_timeout).into()),
        ("body_start_timeout", time_text(limits.body_start_timeout).into()),
        ("body_rate", size_text(limits.body_rate).into()),
        ("answer_timeout", time_text(limits.answer_timeout).into()),
        ("tunnel_timeout", time_text(limits.tunnel_timeout).into()),
        ("connections", limits.connections.into()),
        ("in_flight", limits.in_flight.into()),
        ("per_caller", limits.per_caller.into()),
        ("waiting", limits.waiting.into()),
        ("cache_bytes", size_text(limits.cache_bytes).into()),
        ("records", limits.records.into()),
        ("store_size", size_text(limits.store_size).into()),
        ("disk_free", size_text(limits.disk_free).into()),
        ("records_per_caller", limits.records_per_caller.into()),
        ("store_size_per_caller", size_text(limits.store_size_per_caller).into()),
        ("held_per_caller", limits.held_per_caller.into()),
        ("memory", bytes_text(limits.memory)),
    ]
}

fn bytes_text(bytes: usize) -> Value {
    size_text(u64::try_from(bytes).unwrap_or(u64::MAX)).into()
}

fn lines_of(route: &Route) -> Lines {
    let mut lines = vec![("match", route.matches.to_string().into())];
    match &route.guard {
        None => lines.push(("guard", false.into())),
        Some(guard) => lines.extend(guarded(guard)),
    }
    lines
}

fn guarded(guard: &Guard) -> Lines {
    let policy = &guard.policy;
    let keep_headers: Vec<&str> = guard.keep_headers.iter().map(|name| name.as_str()).collect();
    let mut lines = vec![
        ("scope", guard.scope.as_str().into()),
        ("guard", true.into()),
        ("mode", guard.mode.keyword().into()),
        ("api", guard.api.into()),
        ("key", key(guard)),
        ("dialect", guard.dialect.name().into()),
        ("caller", guard.callers.iter().map(caller).collect::<Vec<_>>().into()),
    ];
    let problems = guard.statuses();
    if !problems.is_empty() {
        lines.push(("statuses", problems.into_iter().collect()));
    }
    lines.extend(guard.was.as_ref().map(|scope| ("was", json!({ "scope": scope.as_str() }))));
    lines.extend(guard.fingerprint.as_ref().map(|rule| ("fingerprint", fingerprint(rule))));
    lines.push(("about", guard.about.keyword().into()));
    if !guard.capture.is_empty() {
        lines.push(("capture", capture(&guard.capture)));
    }
    lines.extend([
        ("retention", time_text(policy.retention).into()),
        ("lease", time_text(policy.lease).into()),
        ("wait", time_text(policy.wait).into()),
        ("on_unknown", policy.on_unknown.keyword().into()),
        ("forget", statuses(&policy.forget)),
        ("release", statuses(&policy.release)),
        ("record", record(&guard.record)),
        ("keep_headers", keep_headers.into()),
        ("request_max", bytes_text(policy.request_bytes_max)),
        ("response_max", bytes_text(policy.response_bytes_max)),
        ("on_store_down", policy.on_store_down.keyword().into()),
        ("store_timeout", time_text(policy.store_timeout).into()),
    ]);
    lines.extend(guard.deadline.as_ref().map(|rule| ("deadline", deadline(rule))));
    lines.extend(guard.cors.as_ref().map(|rule| ("cors", rule.to_json())));
    lines.extend(guard.lookup.as_ref().map(|path| ("lookup", path.to_string().into())));
    lines.extend(guard.issued_keys.as_ref().map(|rule| ("issued_keys", issued_keys(rule))));
    lines.extend(guard.reconcile.as_ref().map(|rule| ("reconcile", rule.to_json(absolute))));
    lines.extend(policy.hold_for.map(|time| ("hold_for", time_text(time).into())));
    if guard.keep_is_printed() {
        lines.push(("keep", keep(&policy.keep)));
    }
    lines.extend(guard.signature.as_ref().map(|rule| ("signature", signature(rule))));
    lines
}

impl Guard {
    /// Whether `keep` may be printed. Where it is not set, and less is kept under a key from the
    /// body, printing it would change that.
    fn keep_is_printed(&self) -> bool {
        let in_body = self.key.iter().any(KeyLocation::may_be_in_body);
        !in_body || self.signature.is_some() || self.keep_under_body_keys
    }
}

fn deadline(rule: &DeadlineSetting) -> Value {
    let headers: Vec<&str> = rule.headers.iter().map(|header| header.as_str()).collect();
    let leeway = time_text(rule.leeway);
    json!({ "headers": headers, "leeway": leeway, "propagate": rule.propagate })
}

/// Secrets are printed as their location only.
fn signature(rule: &SignatureRule) -> Value {
    let mut table = Map::new();
    let mut put = |name: &str, value: Value| table.insert(name.to_owned(), value);
    put("scheme", rule.scheme.keyword().into());
    if let SignatureScheme::Hmac(hmac) = &rule.scheme {
        put("header", hmac.header.as_str().into());
        if !hmac.prefix.is_empty() {
            put("prefix", hmac.prefix.as_str().into());
        }
        put("encoding", hmac.encoding.keyword().into());
        put("algorithm", hmac.algorithm.keyword().into());
        if let Some(timestamp) = &hmac.timestamp {
            put("timestamp", timestamp.as_str().into());
        }
        put("signed", hmac.signed.as_str().into());
    }
    let (mut names, mut files) = (Vec::new(), Vec::new());
    for place in &rule.secrets {
        match place {
            WebhookSecretSource::Env(name, _) => names.push(name.clone()),
            WebhookSecretSource::File(path) => files.push(absolute(path)),
        }
    }
    for (name, list) in [("secret_env", names), ("secret_file", files)] {
        if !list.is_empty() {
            put(name, list.into());
        }
    }
    if let Some(tolerance) = rule.tolerance {
        put("tolerance", time_text(tolerance).into());
    }
    Value::Object(table)
}

impl Guard {
    /// What the names of callers depend on: the caller rules without the parts that decide only
    /// which requests are believed, such as keys, audiences and networks.
    pub fn caller_text(&self) -> String {
        toml_text(&self.callers.iter().map(caller_identity).collect::<Vec<_>>().into())
    }

    /// Where the key is, as it is written. Whether there must be one is not part of it.
    pub fn key_text(&self) -> String {
        toml_text(&self.key.iter().map(key_source).collect::<Vec<_>>().into())
    }

    /// What of a request counts, as it is written.
    pub fn fingerprint_text(&self) -> String {
        let rule = self.fingerprint.as_ref().map(|rule| toml_text(&fingerprint(rule)));
        rule.unwrap_or_else(|| "the rule for CloudEvents".to_owned())
    }
}

fn key_source(source: &KeyLocation) -> Value {
    match source {
        KeyLocation::Header(name) => json!({ "header": name.as_str() }),
        KeyLocation::Json(pointers) => match &pointers[..] {
            [only] => json!({ "json": only.as_str() }),
            several => json!({ "json": pointers_of(several) }),
        },
        KeyLocation::CloudEvent => json!({ "cloudevents": true }),
    }
}

fn key(guard: &Guard) -> Value {
    let required = match guard.required {
        Required::No => json!(false),
        Required::Warn => json!("warn"),
        Required::Yes => json!(true),
    };
    let any: Vec<Value> = guard.key.iter().map(key_source).collect();
    match &guard.issued_keys {
        Some(IssuedKeysRule { token: IssuedKeyUse::Required, .. }) => {
            json!({ "any": any, "token": "required" })
        }
        Some(_) => json!({ "any": any, "required": required, "token": "accepted" }),
        None => json!({ "any": any, "required": required }),
    }
}

fn issued_keys(rule: &IssuedKeysRule) -> Value {
    json!({ "path": rule.path, "lifetime": time_text(rule.lifetime) })
}

fn caller(rule: &CallerRule) -> Value {
    match rule {
        CallerRule::Authorization => "authorization".into(),
        CallerRule::Header(name) => json!({ "header": name.as_str() }),
        CallerRule::TrustedHeader { name, from } => {
            let from: Vec<String> = from.iter().map(ToString::to_string).collect();
            json!({ "header": name.as_str(), "from": from })
        }
        CallerRule::Jwt(rule) => json!({ "jwt": rule.to_json(absolute) }),
        CallerRule::Certificate(field) => json!({ "mtls": field.as_str() }),
        CallerRule::CredentialHeader(name) => json!({ "credential": name.as_str() }),
        CallerRule::Cookie(name) => json!({ "cookie": name }),
        CallerRule::Host => "host".into(),
        CallerRule::Anonymous => "anonymous".into(),
        CallerRule::All(parts) => {
            let parts = parts.iter().map(|part| caller_part(part, caller(&part.rule)));
            json!({ "all": parts.collect::<Vec<_>>() })
        }
    }
}

/// The part of a rule that is in the names of callers.
fn caller_identity(rule: &CallerRule) -> Value {
    match rule {
        CallerRule::TrustedHeader { name, .. } => json!({ "header": name.as_str() }),
        CallerRule::Jwt(rule) => json!({ "jwt": rule.identity() }),
        CallerRule::All(parts) => {
            let parts = parts.iter().map(|part| caller_part(part, caller_identity(&part.rule)));
            json!({ "all": parts.collect::<Vec<_>>() })
        }
        CallerRule::Authorization
        | CallerRule::Header(_)
        | CallerRule::CredentialHeader(_)
        | CallerRule::Cookie(_)
        | CallerRule::Certificate(_)
        | CallerRule::Host
        | CallerRule::Anonymous => caller(rule),
    }
}

fn caller_part(part: &CallerPart, mut value: Value) -> Value {
    if part.optional {
        if let Value::String(word) = &value {
            value = json!({ word: true });
        }
        merge(&mut value, json!({ "optional": true }));
    }
    value
}

fn pointers_of(pointers: &[Pointer]) -> Value {
    pointers.iter().map(Pointer::as_str).collect::<Vec<_>>().into()
}

fn capture(captures: &[(String, CaptureSource)]) -> Value {
    let source = |source: &CaptureSource| match source {
        CaptureSource::Json(pointer) => pointer.as_str().into(),
        CaptureSource::Header(name) => json!({ "header": name.as_str() }),
        _ => Value::Null,
    };
    let captures = captures.iter().map(|(name, from)| (name.clone(), source(from)));
    Value::Object(captures.collect())
}

fn fingerprint(rule: &FingerprintRule) -> Value {
    let mut table = Map::new();
    match &rule.selection {
        Selection::Whole => {}
        Selection::Only(pointers) => {
            table.insert("only".to_owned(), pointers_of(pointers));
        }
        Selection::Except(pointers) => {
            table.insert("except".to_owned(), pointers_of(pointers));
        }
    }
    table.insert("body".to_owned(), rule.body.keyword().into());
    table.insert("query".to_owned(), rule.query.keyword().into());
    table.insert("host".to_owned(), rule.host.keyword().into());
    if !rule.headers.is_empty() {
        let names: Vec<&str> = rule.headers.iter().map(FingerprintHeader::as_str).collect();
        table.insert("headers".to_owned(), names.into());
    }
    Value::Object(table)
}

/// The default list is a word: it counts for gRPC in its own way.
fn statuses(list: &StatusList) -> Value {
    match list {
        StatusList::Default => "default".into(),
        StatusList::Explicit(statuses) => statuses.iter().collect::<Vec<_>>().into(),
    }
}

fn record(content: &RecordContent) -> Value {
    match content {
        RecordContent::Status => "status".into(),
        RecordContent::Redacted(pointers) => json!({ "redact": pointers_of(pointers) }),
        RecordContent::Full | _ => "full".into(),
    }
}

fn keep(keep: &Keep) -> Value {
    match keep {
        Keep::Deterministic => "deterministic".into(),
        Keep::Success => "success".into(),
        Keep::All => "all".into(),
        Keep::Statuses(statuses) => statuses.iter().collect::<Vec<_>>().into(),
    }
}

#[cfg(test)]
mod tests;
