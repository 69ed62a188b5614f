//! A configuration as it is written. What it means is in [`Config`](super::Config).

use std::{net::SocketAddr, path::PathBuf};

use semel::core::{Keep, OnStoreDown, OnUnknown, Policy, Scope};
use serde_json::json;

use super::{
    About, CacheUrl, CallerRule, Limits, Match, Mode, StoreUrl,
    capture::Captures,
    keys::KeyRule,
    read::{At, Count, OneOrMore},
    rules::{Fingerprint, Record, UpstreamRule},
    settings::{Setting, Settings as _, default, example, section, settings},
    signature::SignatureTable,
    units::{
        BodyMax, HeadMax, Lease, Size, StoreTimeout, SweepEvery, Time, Wait, size_text, time_text,
    },
    urls::Written,
    values::{ApiListen, EnvName, KeptHeader, PageUrl, Statuses, StoreIdDigits},
};

settings! {
    /// A configuration of Semel.
    File {
        /// Where records live: `sqlite:PATH`; `postgres://USER@HOST/DATABASE`, which any number of
        /// gateways may share; `memory:`, which forgets everything at the end; or `env:NAME`, the
        /// environment variable that holds one of these. A password comes from there, or from
        /// `PGPASSWORD` or `PGPASSFILE`.
        store: Written<StoreUrl> = default("sqlite:semel.db");
        /// Refuse to start on any other store than this one, and to create one: the id that
        /// `semel doctor` prints. For containers, where a volume that is not mounted looks like a
        /// store that was never there.
        store_id: StoreIdDigits = example("0123456789abcdef0123456789abcdef");
        /// What is in front of the store, where many gateways replay each other's answers:
        /// `redis://HOST`, `rediss://HOST` by TLS, or `env:NAME`. A password comes from there, or
        /// from `REDISCLI_AUTH`.
        cache: Written<CacheUrl> = example("redis://127.0.0.1:6379");
        /// How often records past retention are looked for: 1s to 7d.
        sweep_every: SweepEvery = default("15m");
        /// The environment variable with the secret that turns a credential into a caller's name,
        /// at least 16 characters. It must be the same wherever a store is shared. By default, and
        /// without `secret_file`: a file beside the store, made when it is not there. A PostgreSQL
        /// store has no such file.
        secret_env: EnvName = example("SEMEL_SECRET");
        /// A file with that secret.
        secret_file: PathBuf = example("semel.secret");
        /// The environment variable with the secret that was in use before. For one `retention`
        /// after the change of the secret, keys are looked up under both; they are recorded under
        /// the present one.
        secret_before_env: EnvName = example("SEMEL_SECRET_BEFORE");
        /// A file with that former secret.
        secret_before_file: PathBuf = example("semel.secret.before");
        /// The listeners that clients reach.
        gateway: GatewayTable = section();
        /// The listener for operators: health, metrics, records.
        api: ApiTable = section();
        /// What is bounded, and by how much.
        limits: LimitsTable = section();
        /// Any setting of a route but `match`, `scope`, `was` and `guard`, for those that do not
        /// say it themselves. With no route at all, one guards POST and PATCH everywhere with
        /// these, in the scope `default`; with routes, what matches none passes unguarded.
        defaults: RouteTable = section();
        /// Which requests are guarded, and how. The first that matches counts.
        route: Vec<At<RouteTable>> = section();
    }
}

settings! {
    /// The listeners that clients reach.
    GatewayTable {
        /// Where to listen: one address or a list.
        listen: OneOrMore<SocketAddr> = default("127.0.0.1:8080");
        /// Where requests go: a URL, or a table with `url` and more.
        upstream: UpstreamRule = example("http://127.0.0.1:3000");
        /// The certificate, if clients come by TLS. The files are read again when they change.
        tls: TlsTable = example(json!({ "certificate": "cert.pem", "key": "key.pem" }));
        /// How many threads serve; by default, as many as there are cores.
        threads: Count<1024> = example(4);
        /// How long what runs may go on after the order to stop.
        drain: Time = default("65s");
        /// Whether `X-Forwarded-*` and `Forwarded` of a request are believed and added to; if not,
        /// they are replaced. Only behind a proxy that sets them.
        trust_forwarded: bool = default(false);
        /// The page that tells clients how to retry, for the `Link` header of every problem.
        docs: PageUrl = example("https://example.com/docs/retries");
    }
}

settings! {
    /// A certificate and its key.
    TlsTable {
        /// A PEM file: the certificate, then those that lead to its issuer.
        certificate: PathBuf = example("cert.pem");
        /// A PEM file: the private key.
        key: PathBuf = example("key.pem");
    }
}

settings! {
    /// The listener for operators: health, metrics, records. Never on the gateway's own address.
    ApiTable {
        /// Where to listen, or "off".
        listen: ApiListen = default("127.0.0.1:8081");
        /// The environment variable with the token that an operator sends to change something, at
        /// least 16 characters. Without one the listener is read-only.
        operator_token_env: EnvName = example("SEMEL_OPERATOR_TOKEN");
        /// A file with that token.
        operator_token_file: PathBuf = example("operator.token");
        /// Where operators' acts are written down, a line of JSON each; by default, beside the
        /// store.
        audit: PathBuf = example("semel.db.audit.jsonl");
    }
}

/// More connections, or operations, than one machine has.
const MILLION: usize = 1_000_000;

fn limits() -> Limits {
    Limits::default()
}

settings! {
    /// What is bounded, and by how much.
    LimitsTable {
        /// The bytes of a request's head: 8KiB to 1MiB.
        header_bytes: HeadMax = default(size_text(limits().header_bytes as u64));
        /// The fields of a request's head.
        headers: Count<1000> = default(limits().headers);
        /// How long a head may take to arrive, and how long a connection may be idle.
        header_timeout: Time = default(time_text(limits().header_timeout));
        /// How long a guarded body may take to arrive, and how long the sender of any other may be
        /// silent.
        body_timeout: Time = default(time_text(limits().body_timeout));
        /// How long a client may take nothing of what is sent on its connection, be it a WebSocket.
        /// What it takes shows in steps, of up to a megabyte on a fast line.
        answer_timeout: Time = default(time_text(limits().answer_timeout));
        /// Connections of clients.
        connections: Count<MILLION> = default(limits().connections);
        /// Operations that run.
        in_flight: Count<MILLION> = default(limits().in_flight);
        /// Operations that one caller has running or waiting.
        per_caller: Count<MILLION> = default(limits().per_caller);
        /// Requests that wait for another's answer.
        waiting: Count<MILLION> = default(limits().waiting);
        /// Bytes of completed records that are cached.
        cache_bytes: Size = default(size_text(limits().cache_bytes));
    }
}

fn policy() -> Policy {
    Policy::default()
}

settings! {
    /// What a route was before.
    WasTable {
        /// The scope that its requests had.
        scope: Scope = example("default");
    }
}

settings! {
    /// Which requests are guarded, and how.
    RouteTable {
        /// Which requests the route takes: methods, host and path. `*` is one piece of the path, in
        /// a piece any characters; `**` is any number of pieces. Without methods: POST and PATCH,
        /// and with a `signature` all; `*` is any method. A host may begin with `*.`.
        matches as "match": Match = example("POST /v1/payments/**");
        /// The family of operations that the route belongs to: keys of different scopes never
        /// meet. A guarded route has one.
        scope: Scope = example("payments");
        /// What the route was before: `scope`, the scope that its requests had. For one `retention`
        /// after the change, a key that is new to this scope is looked up there too. Nothing is
        /// written there.
        was: WasTable = example(json!({ "scope": "default" }));
        /// Whether the route guards; false lets its requests pass, for what a later route would
        /// take.
        guard: bool = default(true);
        /// "guard", or "observe" to let every request pass as if there were no Semel and count what
        /// would have been done with it (`semel_would_total`): the first step in front of an API
        /// that has traffic already.
        mode: Mode = default("guard");
        /// Where the key is: the name of a header, `{ header = … }`, `{ json = "/id" }`,
        /// `{ json = ["/contest", "/user", "/entry"] }` for several members together,
        /// `{ cloudevents = true }`, or `{ any = [ … ] }`, asked in that order. `required` is
        /// false, true, or "warn" (an answer without a key says that this will end). The upstream
        /// gets the header as the client sent it.
        key: KeyRule = default(json!({ "header": "Idempotency-Key", "required": false }));
        /// Who the caller is, asked in this order: "authorization", "anonymous" (whoever sends no
        /// credential at all), "host" (where hosts are tenants), `{ header = … }` in clear,
        /// `{ credential = … }` a header, hashed, `{ cookie = … }` hashed. The first that is found
        /// counts. Several together:
        /// `{ all = ["authorization", { header = "Stripe-Account", optional = true }] }`. Keys of
        /// different callers never meet.
        caller: OneOrMore<CallerRule> = default(json!(["authorization"]));
        /// How a webhook proves who sent it: `scheme` "standard-webhooks", "svix", "stripe",
        /// "github" or "hmac", and `secret_env` or `secret_file`, a name or a list of them. What is
        /// not signed is refused with 401 before the store is asked. Where a route has one, what it
        /// does not say itself becomes: `key` where the scheme has the id of an event, required;
        /// `caller` "anonymous"; `retention` "7d"; `keep` "success"; `on_unknown` "rerun";
        /// `fingerprint` without the query, and without the body if the id is signed; `mode`
        /// "guard". `tolerance` is how far the time of a signature may be from now, "5m". For
        /// "hmac": `header`, `prefix`, `encoding` "hex" or "base64", `algorithm` "sha256" or
        /// "sha512", `timestamp` a header, `signed` "{body}" or more, such as "{timestamp}.{body}".
        signature: SignatureTable =
            example(json!({ "scheme": "stripe", "secret_env": "STRIPE_WEBHOOK_SECRET" }));
        /// What of a request counts when a repeat is compared with the first: JSON Pointers `only`
        /// or `except`, `body` "ignore" where the key alone says which operation it is, `query`
        /// "whole" or "ignore", `host` "count" or "ignore", and `headers`, a list.
        fingerprint: Fingerprint = default(json!({ "query": "whole", "host": "count" }));
        /// What a record says that it is about: the method, the host and the path of the "request",
        /// or what the "route" matches, where paths hold what must not be stored.
        about: About = default("request");
        /// Values of the request that its record keeps, by name: a JSON Pointer, or
        /// `{ header = … }`. Names and values have 256 bytes together; what does not fit is left
        /// out.
        capture: Captures = example(json!({ "order": "/order_id", "amount": "/amount" }));
        /// How long a finished record is kept.
        retention: Time = default(time_text(policy().retention));
        /// How long the one who runs an operation may stay silent before it counts as gone: 100ms
        /// to 1h.
        lease: Lease = default(time_text(policy().lease));
        /// How long a repeat waits for the first answer, at most 1h; "0s" answers 409 at once.
        wait: Wait = default(time_text(policy().wait));
        /// What to do when an answer, or none, does not prove whether the operation took effect:
        /// "hold" the key until an operator resolves it, "rerun" at the next request, or "fail" for
        /// good. With a `signature`: "rerun".
        on_unknown: OnUnknown = default("hold");
        /// How long a record is held before it ends as failed. By default, until an operator
        /// resolves it.
        hold_for: Time = example("7d");
        /// Which answers are recorded and replayed: "deterministic" (2xx, 3xx and 4xx but 408 and
        /// 499), "success" (2xx), "all" (200 to 599), or a list of statuses; always less what
        /// `forget` and `release` list. Under a key from the body only a success is kept where
        /// nothing proves who sent it, neither the caller (as "anonymous", "host" and
        /// `{ header = … }`) nor a signature, unless `keep` is written.
        keep: Keep = default("deterministic");
        /// Which statuses say that nothing ran, so that the key is free for any request: a list, in
        /// which "default" is 307, 308 and 421. `["default", 400, 422]` where a corrected body may
        /// come under the same key.
        forget: Statuses = default("default");
        /// Which statuses are sent before the work begins, so that the key is free for the same
        /// request: a list, in which "default" is 401, 403, 405, 425, 429 and 501. Not 408, 500 and
        /// 503, because timeouts send them while the work goes on; `["default", 500]` where a 500
        /// means "rolled back". A status stands in one list.
        release: Statuses = default("default");
        /// How much of an answer is stored: "full", the "status" alone (repeats get 410), or
        /// `{ redact = ["/card/number"] }`, which replaces members of a JSON body before it is
        /// stored (replays say `Idempotent-Replayed: redacted`). The first client gets all of it.
        record: Record = default("full");
        /// Headers of an answer that are kept besides the usual.
        keep_headers: Vec<At<KeptHeader>> = default(json!([]));
        /// The largest request body that is guarded; a larger one is refused with 413.
        request_max: BodyMax = default(size_text(policy().request_bytes_max as u64));
        /// The largest answer whose body is recorded; a larger one cannot be replayed.
        response_max: BodyMax = default(size_text(policy().response_bytes_max as u64));
        /// Where the requests of the route go: a URL, or a table as `gateway.upstream` is. Without
        /// a `url` it changes the gateway's own.
        upstream: UpstreamRule = example("http://127.0.0.1:3001");
        /// How long the upstream may take to answer; by default, the `timeout` of the upstream.
        upstream_timeout: Time = example("1m");
        /// What to do with a new request while the store is away: "reject" it, or let it "pass"
        /// unguarded.
        on_store_down: OnStoreDown = default("reject");
        /// How long a claim may take, reconnecting to the store included, before that happens:
        /// 100ms to 1m.
        store_timeout: StoreTimeout = default(time_text(policy().store_timeout));
    }
}

/// Where a setting of this name belongs, for whoever wrote it elsewhere.
pub(super) fn home(name: &str) -> Option<&'static str> {
    let homes = [
        // First, because of `upstream`, which a route has only instead of the gateway's.
        ("in [gateway]", GatewayTable::all()),
        ("in [[route]] or [defaults]", RouteTable::all()),
        ("in [api]", ApiTable::all()),
        ("in [limits]", LimitsTable::all()),
        ("at the top of the file, before the first [table]", File::all()),
    ];
    let is_here = |settings: &[Setting]| settings.iter().any(|setting| setting.name == name);
    homes.into_iter().find(|(_, settings)| is_here(settings)).map(|(home, _)| home)
}
