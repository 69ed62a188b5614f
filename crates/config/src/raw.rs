//! The tables of a configuration file. [`Config`](super::Config) is the result of reading them.

use std::{net::SocketAddr, path::PathBuf};

use semel::core::{Dialect, Keep, OnStoreDown, OnUnknown, Policy, Scope};
use semel_tower::Network;
use serde_json::json;

use super::{
    AboutSource, ApiRole, CacheUrl, CallerRule, ClientAuth, Limits, Match, Mode, OnUnmatched,
    StoreUrl,
    capture::Captures,
    cors::CorsSetting,
    deadline::DeadlineSetting,
    dialect::ProblemStatuses,
    issued_keys::IssuedKeysSetting,
    keys::KeySetting,
    read::{CountUpTo, Located, OneOrMore},
    reconcile::ReconcileSetting,
    rules::{FingerprintSetting, RecordSetting, UpstreamSetting},
    settings::{Setting, SettingsTable as _, default, example, section, settings},
    signature::SignatureTable,
    trusted_header::TrustedHeader,
    units::{
        BodyLimit, ByteSize, HeadLimit, LeaseDuration, PositiveDuration, StoreTimeout,
        SweepInterval, WaitDuration, size_text, time_text,
    },
    urls::UrlOrEnv,
    values::{
        ApiListen, CallerSetting, EnvName, KeptHeader, LookupText, PageUrl, Statuses,
        StoreIdDigits, TokenName,
    },
    velocity::{DuplicatesSetting, VelocityList},
};

settings! {
    /// The configuration of Semel.
    ConfigFile {
        /// URL of the record store: `sqlite:PATH`; `postgres://USER@HOST/DATABASE`, which any
        /// number of gateways may share; `memory:`, which loses all records at shutdown; or
        /// `env:NAME`, the environment variable that holds one of these. A password belongs in that
        /// variable, in `PGPASSWORD` or in `PGPASSFILE`.
        store: UrlOrEnv<StoreUrl> = default("sqlite:semel.db");
        /// Refuse to start on any other store than the one with this id, and do not create a store.
        /// `semel doctor` prints the id. Use it in containers, where a volume that is not mounted
        /// looks like an empty store.
        store_id: StoreIdDigits = example("0123456789abcdef0123456789abcdef");
        /// Cache in front of a store that many gateways share, so that they replay each other's
        /// answers without a query: `redis://HOST`, `rediss://HOST` for TLS, or `env:NAME`. A
        /// password belongs in that variable or in `REDISCLI_AUTH`.
        cache: UrlOrEnv<CacheUrl> = example("redis://127.0.0.1:6379");
        /// Interval between sweeps that delete records past their retention: 1s to 7d.
        sweep_every: SweepInterval = default("15m");
        /// Environment variable that holds the secret for hashing credentials into caller names, at
        /// least 16 characters. All gateways on a shared store need the same one. Without it and
        /// without `secret_file`, the secret is in a file next to the store, created if it is
        /// missing; a PostgreSQL store has no such file.
        secret_env: EnvName = example("SEMEL_SECRET");
        /// File that holds that secret.
        secret_file: PathBuf = example("semel.secret");
        /// Environment variable that holds the previous secret. For one `retention` after the
        /// change, keys are looked up under both secrets and recorded under the current one.
        secret_before_env: EnvName = example("SEMEL_SECRET_BEFORE");
        /// File that holds the previous secret.
        secret_before_file: PathBuf = example("semel.secret.before");
        /// The gateway: listeners for clients, and the upstream.
        gateway: GatewayTable = section();
        /// The API listener: health, metrics, records, and the service API.
        api: ApiTable = section();
        /// Defaults and limits of one scope for claims of the service API: a claim may choose less,
        /// not more. A setting that is absent has its general default, and a claim may choose it.
        scope: Vec<Located<ScopeTable>> = section();
        /// Limits on sizes, times and counts.
        limits: LimitsTable = section();
        /// Default values for all settings of a route except `match`, `scope`, `was` and `guard`.
        /// Without any route, POST and PATCH requests on every path are guarded with these settings
        /// in the scope `default`. With routes, a request that matches none is handled as
        /// `unmatched` says.
        defaults: RouteTable = section();
        /// A route: which requests are guarded, and how. The first route that matches applies.
        route: Vec<Located<RouteTable>> = section();
    }
}

settings! {
    /// The gateway: listeners for clients, and the upstream.
    GatewayTable {
        /// Address to listen on, or a list of addresses.
        listen: OneOrMore<SocketAddr> = default("127.0.0.1:8080");
        /// Upstream that receives the requests: a URL, or a table with `url` and more.
        upstream: UpstreamSetting = example("http://127.0.0.1:3000");
        /// Certificate and key for TLS connections from clients. The files are read again when they
        /// change.
        tls: TlsTable = example(json!({ "certificate": "cert.pem", "key": "key.pem" }));
        /// Number of worker threads. Default: the number of cores.
        threads: CountUpTo<1024> = example(4);
        /// Grace period for in-flight requests on shutdown.
        drain: PositiveDuration = default("65s");
        /// Time on shutdown, before `drain`, in which `/readyz` answers 503 and requests are still
        /// accepted, so that load balancers stop sending them: at most 1h.
        drain_notice: WaitDuration = default("0s");
        /// Whether a proxy in front sets the headers that describe the origin of a request, and
        /// removes those that clients send. These are `Forwarded`, every `X-Forwarded*` and
        /// `X-Original-*`, `X-Rewrite-URL`, `X-Real-IP`, `X-Client-IP`, `X-Cluster-Client-IP`,
        /// `True-Client-IP`, `CF-Connecting-IP`, `CF-Connecting-IPv6` and `Fastly-Client-IP`. false
        /// removes them from every request and sets `X-Forwarded-For`, `X-Forwarded-Host`,
        /// `X-Forwarded-Proto` and `Forwarded` from the connection. true passes them on, appends to
        /// `X-Forwarded-For` and `Forwarded`, sets `X-Forwarded-Host` and `X-Forwarded-Proto` if
        /// they are missing, and lets a caller rule read them. Variants with underscores
        /// (`X_Forwarded_For`) are removed in either case. Clients behind the proxy have shares of
        /// `limits` of their own, by the last address in `X-Forwarded-For`, or in `Forwarded`.
        trust_forwarded: bool = default(false);
        /// The addresses and networks of the proxies in front: `trust_forwarded` applies to these
        /// peers only, and from others the headers are removed. For gateways that clients can
        /// reach around the proxy or through several. The address of a client is the last one in
        /// `X-Forwarded-For` that is not listed here.
        trusted_proxies: Vec<Located<Network>> = example(json!(["10.0.0.0/8"]));
        /// What to do with a request that matches no route: "pass" forwards it unguarded, "refuse"
        /// answers 404. In either case a request is refused with 400 if an upstream may read it as
        /// one for a route with a signature or a required key.
        unmatched: OnUnmatched = default("pass");
        /// URL of a page that explains retries to clients, sent in the `Link` header of every
        /// problem.
        docs: PageUrl = example("https://example.com/docs/retries");
    }
}

settings! {
    /// A TLS certificate and its key.
    TlsTable {
        /// PEM file: the certificate, followed by its intermediate certificates.
        certificate: PathBuf = example("cert.pem");
        /// PEM file: the private key.
        key: PathBuf = example("key.pem");
        /// PEM file: the authorities whose client certificates are accepted. A certificate of
        /// another authority is refused in the handshake. The file is read again when it changes.
        client_ca: PathBuf = example("client-ca.pem");
        /// With `client_ca`: whether a client needs a certificate. "optional" accepts a connection
        /// without one, "required" refuses it in the handshake.
        client_auth: ClientAuth = default("optional");
    }
}

settings! {
    /// The API listener: health, metrics, records, and the service API. It never shares the
    /// gateway's address.
    ApiTable {
        /// Address to listen on, or "off".
        listen: ApiListen = default("127.0.0.1:8081");
        /// Number of threads that serve the API. Default: the number of cores.
        threads: CountUpTo<1024> = example(4);
        /// Environment variable that holds the operator token, at least 16 characters. Requests
        /// that change something need the token. Without one the API is read-only.
        operator_token_env: EnvName = example("SEMEL_OPERATOR_TOKEN");
        /// File that holds the operator token.
        operator_token_file: PathBuf = example("operator.token");
        /// Audit log of operator actions, one JSON object per line. Default: a file next to the
        /// store.
        audit: PathBuf = example("semel.db.audit.jsonl");
        /// A header in which a proxy names the users of the dashboard after it has signed them in.
        /// With it, reading records needs a sign-in or a token.
        trusted_header: TrustedHeader = example(json!({
            "header": "X-Forwarded-User", "from": "10.0.0.7/32", "operators": ["zoe@example.com"],
        }));
        /// A token of the API, sent as `Authorization: Bearer TOKEN`, and what it allows. With any
        /// token configured here, reading records needs one. Without an upstream and without a
        /// route, a token of the role "app" makes `semel serve` serve the service API alone.
        token: Vec<Located<TokenTable>> = section();
    }
}

settings! {
    /// A token of the API, and what it allows.
    TokenTable {
        /// Name of the token: 1 to 64 of a-z, 0-9, `.`, `_` and `-`.
        name: TokenName = example("billing");
        /// "app" may claim and complete; "viewer" may read records, without answers, and metrics;
        /// "operator" may read and change records; "metrics" may read metrics, which then need a
        /// token.
        role: ApiRole = example("app");
        /// Scopes in which an "app" token may claim. Default: all that no route uses, or whose
        /// route says `api = true`.
        scopes: OneOrMore<Scope> = example(json!(["invoices"]));
        /// Caller of its claims, or "*" if each claim names its own. Default: the name. It is
        /// stored as `app:CALLER`, which no route can produce.
        caller: CallerSetting = example("billing");
        /// Environment variable that holds the token, at least 16 characters, or a list of them.
        secret_env: OneOrMore<EnvName> = example("BILLING_TOKEN");
        /// File that holds the token, or a list of files. Several tokens at once allow rotation.
        secret_file: OneOrMore<PathBuf> = example("billing.token");
    }
}

settings! {
    /// Defaults and limits of one scope for claims of the service API.
    ScopeTable {
        /// The scope.
        name: Scope = example("invoices");
        /// Longest lease of a claim, and its default: 100ms to 1h.
        lease: LeaseDuration = example("30s");
        /// Longest time that a finished record is kept, and its default.
        retention: PositiveDuration = example("24h");
        /// What to do when the outcome is unknown. A claim may say the same or "hold".
        on_unknown: OnUnknown = example("hold");
        /// Time after which a held record fails. Default: it is held until an operator resolves it.
        hold_for: PositiveDuration = example("7d");
        /// Maximum size of a stored result; a larger one is recorded as done, without the result.
        result_max: BodyLimit = default(size_text(policy().response_bytes_max as u64));
    }
}

/// More connections, or operations, than one machine has.
const MILLION: usize = 1_000_000;

/// More records than a store can have.
const TRILLION: usize = 1_000_000_000_000;

fn limits() -> Limits {
    Limits::default()
}

settings! {
    /// Limits on sizes, times and counts.
    LimitsTable {
        /// Maximum size of a request head: 8KiB to 1MiB.
        header_bytes: HeadLimit = default(size_text(limits().header_bytes as u64));
        /// Maximum number of header fields in a request.
        headers: CountUpTo<1000> = default(limits().headers);
        /// Timeout for receiving a request head, and idle timeout of client connections.
        header_timeout: PositiveDuration = default(time_text(limits().header_timeout));
        /// Timeout for receiving a guarded body. For other bodies: idle timeout between two reads.
        body_timeout: PositiveDuration = default(time_text(limits().body_timeout));
        /// Timeout for the first byte of a guarded body.
        body_start_timeout: PositiveDuration = default(time_text(limits().body_start_timeout));
        /// Minimum bytes per second of an unguarded body, applied after `body_timeout`; 0B for
        /// none. gRPC streams are exempt.
        body_rate: ByteSize = default(size_text(limits().body_rate));
        /// Write timeout: a client connection that accepts no bytes for this long is closed,
        /// a WebSocket included, and an HTTP/2 stream that accepts none of its response is reset.
        /// Kernel buffering can delay the detection on a connection by up to 1 MB.
        answer_timeout: PositiveDuration = default(time_text(limits().answer_timeout));
        /// Idle timeout of a WebSocket.
        tunnel_timeout: PositiveDuration = default(time_text(limits().tunnel_timeout));
        /// Maximum number of client connections. At the limit, a new connection replaces the one
        /// that has been idle the longest, of the client address with the most connections.
        /// One address may have seven eighths of them busy with requests; its other requests are
        /// refused with 503 `too-many-in-flight`. The same number of HTTP/2 streams, at least 1000,
        /// may be open; one address may have as many as it leaves free.
        connections: CountUpTo<MILLION> = default(limits().connections);
        /// Maximum number of running operations, and of guarded bodies being received. At the
        /// limit, a new body replaces the one that has been idle the longest, of the client address
        /// with the most; that request is refused.
        in_flight: CountUpTo<MILLION> = default(limits().in_flight);
        /// Maximum number of operations of one caller in one scope that run or wait.
        per_caller: CountUpTo<MILLION> = default(limits().per_caller);
        /// Maximum number of requests that wait for the answer of another request.
        waiting: CountUpTo<MILLION> = default(limits().waiting);
        /// Size of the in-memory cache of completed records.
        cache_bytes: ByteSize = default(size_text(limits().cache_bytes));
        /// Maximum number of records in the store. At this limit a new key is refused with 503
        /// `store-full`; known keys still work. The same applies to `store_size` and `disk_free`.
        /// All three are measured every 5 s.
        records: CountUpTo<TRILLION> = default(limits().records);
        /// Maximum size of the records in the store. Space that a sweep has freed does not count.
        /// In PostgreSQL the size is an estimate.
        store_size: ByteSize = default(size_text(limits().store_size));
        /// Free space to keep on the file system of a SQLite store, at most a twentieth of its
        /// size.
        disk_free: ByteSize = default(size_text(limits().disk_free));
        /// Maximum number of unexpired records of one caller in one scope. At this limit a new key
        /// of the caller is refused with 429 `too-many-records`; known keys still work. Each
        /// gateway counts the records that it created, from zero at its start. Callers that a
        /// client can choose freely, such as unverified tokens, are limited by `records` only.
        records_per_caller: CountUpTo<TRILLION> = default(limits().records_per_caller);
        /// Maximum size of these records: their responses, and 256 bytes for each. At this limit a
        /// new key of the caller is refused with 429 `too-many-records`.
        store_size_per_caller: ByteSize = default(size_text(limits().store_size_per_caller));
        /// Maximum number of held records of one caller in one scope, counted in the store every
        /// 15 s, up to 10000 of all callers. At this limit a new key of the caller is refused with
        /// 429 `too-many-records`. Anonymous requests are counted by client address, and only those
        /// of this gateway since its start.
        held_per_caller: CountUpTo<MILLION> = default(limits().held_per_caller);
        /// Memory for request bodies and responses of guarded routes: half for bodies, half for
        /// responses. One client address gets at most half of each, and a quarter for replayed
        /// responses. A stalled body gives way to the next one from its address. A request without
        /// room for its body, or for a response of `response_max` (at most a sixteenth of
        /// `memory`), is refused with 503 `too-many-in-flight` before it runs. A response that
        /// finds no room any more waits for it, up to the timeout of its upstream. At least eight
        /// times `request_max` and `response_max`. Default: a quarter of the machine's memory or of
        /// the cgroup limit.
        memory: ByteSize = example("1GiB");
    }
}

fn policy() -> Policy {
    Policy::default()
}

settings! {
    /// The previous identity of a route.
    WasTable {
        /// The previous scope of the route.
        scope: Scope = example("default");
    }
}

settings! {
    /// A route: which requests are guarded, and how.
    RouteTable {
        /// Requests that the route matches: methods, host and path. `*` matches one path segment,
        /// or any characters within one; `**` matches any number of segments. Default methods: POST
        /// and PATCH, or all methods if the route has a `signature`; `*` is any method. A host may
        /// begin with `*.`.
        matches as "match": Match = example("POST /v1/payments/**");
        /// Namespace of the route's keys: the same key in two scopes is two operations. Every
        /// guarded route needs one.
        scope: Scope = example("payments");
        /// Previous identity of the route: `scope`, its previous scope. For one `retention` after
        /// the change, a key that is new to the current scope is also looked up in the previous
        /// one, read-only.
        was: WasTable = example(json!({ "scope": "default" }));
        /// Whether the route guards its requests. false passes them through unguarded; use it to
        /// exempt requests that a later route would match.
        guard: bool = default(true);
        /// "guard", or "observe" to pass every request through unchanged and only count what would
        /// have been done (`semel_observed_total`): the first step in front of an API that has
        /// traffic already.
        mode: Mode = default("guard");
        /// Whether claims of the service API may name the scope of the route. Their callers never
        /// meet those of the route.
        api: bool = default(false);
        /// Source of the idempotency key: the name of a header, `{ header = … }`,
        /// `{ json = "/id" }`, `{ json = ["/contest", "/user", "/entry"] }` for several members
        /// combined, `{ cloudevents = true }`, or `{ any = [ … ] }`, tried in that order.
        /// `required` is false, true, or "warn" (a response to a request without a key announces
        /// that a key will be required). `token` is "accepted" or "required" if the gateway issues
        /// keys. The header is forwarded to the upstream unchanged.
        key: KeySetting = default(json!({ "header": "Idempotency-Key", "required": false }));
        /// Provider whose clients the route has: the longest key, and the statuses and documents of
        /// Semel's own errors, are those of "ietf" (RFC 9457), "stripe", "paypal", "adyen" or
        /// "square". It also sets the default of `key`: `PayPal-Request-Id` for "paypal",
        /// `{ json = "/idempotency_key" }` for "square".
        dialect: Dialect = default("ietf");
        /// Statuses of single errors that differ from the dialect, by the name of the error. A
        /// final error should not have a status that SDKs retry (408, 409, 429, 5xx).
        statuses: ProblemStatuses = example(json!({ "key-reused": 400 }));
        /// How the caller is identified, tried in this order: "authorization", "anonymous" (a
        /// request without any credential, and without a header or query parameter that may name
        /// its sender, such as `X-User-Id`, unless `key` or `fingerprint.headers` lists that
        /// header), "host" (where hosts are tenants), `{ header = … }` in clear,
        /// `{ credential = … }` a header, hashed, `{ cookie = … }` hashed,
        /// `{ header = …, from = ["10.0.0.0/8"] }` in clear and only from these networks,
        /// `{ jwt = { jwks = …, issuer = …, audience = … } }` a claim of a verified JSON Web Token,
        /// `{ mtls = "subject" }` the client certificate. The first one found applies. Several
        /// combined:
        /// `{ all = ["authorization", { header = "Stripe-Account", optional = true }] }`. The same
        /// key from two callers is two operations.
        caller: OneOrMore<CallerRule> = default(json!(["authorization"]));
        /// Webhook signature to verify: `scheme` "standard-webhooks", "svix", "stripe", "github" or
        /// "hmac", and `secret_env` or `secret_file`, a name or a list of names. An unsigned
        /// request is refused with 401 before the store is queried. A signature changes the
        /// defaults of the route: `key` is the event id of the scheme, required; `caller`
        /// "anonymous"; `retention` "7d"; `keep` "success"; `on_unknown` "rerun"; `fingerprint`
        /// without the query, and without the body if the id is signed; `mode` "guard". `tolerance`
        /// is the maximum clock difference of a signature, "5m". For "hmac": `header`, `prefix`,
        /// `encoding` "hex" or "base64", `algorithm` "sha256" or "sha512", `timestamp` a header,
        /// `signed` "{body}" or more, such as "{timestamp}.{body}".
        signature: SignatureTable =
            example(json!({ "scheme": "stripe", "secret_env": "STRIPE_WEBHOOK_SECRET" }));
        /// Parts of a request that must be equal in a retry: JSON Pointers `only` or `except`,
        /// `body` "ignore" if the key alone identifies the operation, `query` "whole" or "ignore",
        /// `host` "compare" or "ignore", and `headers`, a list.
        fingerprint: FingerprintSetting = default(json!({ "query": "whole", "host": "compare" }));
        /// Description stored with each record: the method, host and path of the "request", or the
        /// pattern of the "route" if paths contain data that must not be stored.
        about: AboutSource = default("request");
        /// Values of the request to store with the record, by name: a JSON Pointer, or
        /// `{ header = … }`. Names and values share 256 bytes; values that do not fit are dropped.
        capture: Captures = example(json!({ "order": "/order_id", "amount": "/amount" }));
        /// Time that a finished record is kept.
        retention: PositiveDuration = default(time_text(policy().retention));
        /// Lease of a running operation: without a renewal for this long, its process counts as
        /// crashed. 100ms to 1h.
        lease: LeaseDuration = default(time_text(policy().lease));
        /// Time that a retry waits for the answer of the running request, at most 1h; "0s" answers
        /// 409 at once.
        wait: WaitDuration = default(time_text(policy().wait));
        /// What to do when the outcome of an operation is unknown: "hold" the key until an operator
        /// resolves it, "rerun" on the next request, or "fail" permanently. With a `signature`:
        /// "rerun".
        on_unknown: OnUnknown = default("hold");
        /// Time after which a held record fails. Default: it is held until an operator resolves it.
        hold_for: PositiveDuration = example("7d");
        /// How the gateway asks the upstream what became of a held operation. It needs
        /// `on_unknown = "hold"`. An operation that is found is recorded; one that is absent is
        /// released only with `settles_within` or `fenced`.
        reconcile: ReconcileSetting =
            example(json!({ "get": "/v1/charges?order={order}" }));
        /// Responses that are recorded and replayed: "deterministic" (2xx, 3xx, and 4xx except 408
        /// and 499), "success" (2xx), "all" (200 to 599), or a list of statuses; always without
        /// those in `forget` and `release`. If the key comes from the body and neither a credential
        /// nor a signature proves the sender (as with "anonymous", "host" and `{ header = … }`),
        /// only a success is kept unless `keep` is set.
        keep: Keep = default("deterministic");
        /// Statuses that prove that nothing ran, so that the key is free for any request: a list,
        /// in which "default" stands for 307, 308 and 421. Use `["default", 400, 422]` if a
        /// corrected body may be sent with the same key.
        forget: Statuses = default("default");
        /// Statuses that are sent before the work begins, so that the key is free for the same
        /// request: a list, in which "default" stands for 401, 403, 405, 425, 429 and 501. 408, 500
        /// and 503 are not included, because timeouts send them while the work continues; use
        /// `["default", 500]` if a 500 means "rolled back". A status may be in one list only.
        release: Statuses = default("default");
        /// How much of a response is stored: "full", the "status" only (retries get 410), or
        /// `{ redact = ["/card/number"] }`, which replaces members of a JSON body before it is
        /// stored (replays carry `Idempotent-Replayed: redacted`). The first client gets the
        /// complete response.
        record: RecordSetting = default("full");
        /// Additional response headers to store and replay, besides `Content-*`, `Location`,
        /// `ETag`, `Last-Modified`, `Link`, `Vary`, `Cache-Control` and `Access-Control-*`. A
        /// replay has no other header of the first response, such as `X-Request-Id`.
        keep_headers: Vec<Located<KeptHeader>> = default(json!([]));
        /// Maximum size of a guarded request body; a larger one is refused with 413.
        request_max: BodyLimit = default(size_text(policy().request_bytes_max as u64));
        /// Maximum size of a recorded response body; a larger response cannot be replayed.
        response_max: BodyLimit = default(size_text(policy().response_bytes_max as u64));
        /// Deadlines of clients that the route obeys: a table of `headers`, `leeway` and
        /// `propagate`; `{}` for the defaults. A request does not begin, wait or join after its
        /// deadline; what has begun runs on. By default deadlines are not read.
        deadline: DeadlineSetting =
            example(json!({ "headers": ["Request-Timeout", "grpc-timeout"] }));
        /// What pages of other origins may do on the route: `origins`, as browsers send them, or
        /// `["*"]`; `headers`, request headers that a page may set besides `Content-Type`,
        /// `Authorization` and those that the route reads; `expose`, response headers that a page
        /// may read besides those of Semel; `credentials`, whether browsers send cookies (false);
        /// `max_age`, how long a browser may remember a preflight ("10m"). Preflights are answered
        /// by the gateway, and the `Access-Control-*` headers of the upstream are replaced. By
        /// default both are left to the upstream.
        cors: CorsSetting = example(json!({ "origins": ["https://shop.example"] }));
        /// Limits on how often operations may run that have values in common, in a store that
        /// decides them exactly: `by`, the values ("caller", "address", JSON Pointers,
        /// `{ header = … }`); `max` in the window `per`; `count`, what counts ("executions",
        /// "completed", "declined", a list of statuses, or `{ tag = … }`); `action` "refuse" with
        /// 429, or "report". Replays cost nothing.
        velocity: VelocityList = example(json!([
            { "by": ["/card/fingerprint", "caller"], "max": 5, "per": "1m" }
        ]));
        /// The same operation of a caller under another key: `window`, how long it is remembered,
        /// and `action`: "report" it, "mark" its answer with `Idempotency-Duplicate: possible`, or
        /// "refuse" it with 409 unless the client sends `Idempotency-Duplicate: intended`.
        duplicates: DuplicatesSetting = example(json!({ "window": "10m", "action": "report" }));
        /// Path under which a caller can GET the state and the answer of its own operation, with
        /// the key as one percent-encoded segment `{key}`; `{scope}` stands for the scope of the
        /// route. Who can be the caller and knows the key can read the answer. By default there is
        /// none.
        lookup: LookupText = example("/idempotency/{scope}/{key}");
        /// With `key = { token = … }`: `path`, under which a caller gets a key with POST, and
        /// `lifetime`, in which the key may be used for the first time. Two scopes need two paths.
        issued_keys: IssuedKeysSetting =
            example(json!({ "path": "/idempotency-tokens", "lifetime": "1h" }));
        /// Upstream of the route: a URL, or a table like `gateway.upstream`. A table without `url`
        /// changes settings of the gateway's upstream.
        upstream: UpstreamSetting = example("http://127.0.0.1:3001");
        /// Response timeout of the upstream. Default: the `timeout` of the upstream.
        upstream_timeout: PositiveDuration = example("1m");
        /// What to do with a new request while the store is unavailable: "reject" it, or "pass" it
        /// unguarded.
        on_store_down: OnStoreDown = default("reject");
        /// Timeout of a claim, reconnecting to the store included, after which the store counts as
        /// unavailable: 100ms to 1m.
        store_timeout: StoreTimeout = default(time_text(policy().store_timeout));
    }
}

/// The section that a setting of this name belongs to, for the error about a misplaced one.
pub(super) fn expected_section(name: &str) -> Option<&'static str> {
    let sections = [
        // First, because of `upstream`, which a route has only instead of the gateway's.
        ("in [gateway]", GatewayTable::all()),
        ("in [[route]] or [defaults]", RouteTable::all()),
        ("in [api]", ApiTable::all()),
        ("in [limits]", LimitsTable::all()),
        ("in [[api.token]]", TokenTable::all()),
        ("in [[scope]]", ScopeTable::all()),
        ("at the top of the file, before the first [table]", ConfigFile::all()),
    ];
    let is_here = |settings: &[Setting]| settings.iter().any(|setting| setting.name == name);
    sections
        .into_iter()
        .find(|(_, settings)| is_here(settings))
        .map(|(expected_section, _)| expected_section)
}
