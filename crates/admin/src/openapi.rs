//! The `OpenAPI` 3.1 document of the API and an HTML page, both generated from one table of
//! endpoints.

mod schemas;

use std::sync::LazyLock;

use axum::{
    http::{HeaderName, header},
    response::{Html, IntoResponse},
};
use serde_json::{Map, Value, json};

use semel_telemetry::metrics::Exposition;

use crate::tokens::Permission;

/// One operation of the API.
pub(crate) struct Endpoint {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// The permission that a request needs; `None` if it needs none.
    pub(crate) permission: Option<Permission>,
    name: &'static str,
    summary: &'static str,
    /// The name of the schema of the request body.
    request: Option<&'static str>,
    reply: ReplyKind,
    /// The error statuses, without 401 and 403, which follow from the permission, and 421, which
    /// every endpoint has.
    problems: &'static [u16],
}

/// The content type of a successful response.
enum ReplyKind {
    /// JSON with the schema of this name.
    Json(&'static str),
    /// Text of this media type.
    Text(&'static str),
    /// Text in each format of metrics.
    Metrics,
}

const CLAIM_STATUSES: &[u16] = &[400, 409, 413, 415, 422, 423, 429, 500, 503, 504];
const CLAIM_CALL_STATUSES: &[u16] = &[400, 409, 413, 415, 422, 503, 504];
const CHANGE_STATUSES: &[u16] = &[400, 404, 409, 413, 415, 422, 500, 503, 504];

macro_rules! endpoints {
    ($($name:ident $method:literal $path:literal $permission:expr, $request:expr, $reply:expr,
        $problems:expr, $summary:literal;)+) => {
        /// Every operation.
        pub(crate) const ENDPOINTS: &[Endpoint] = &[$(Endpoint {
            method: $method,
            path: $path,
            permission: $permission,
            name: stringify!($name),
            summary: $summary,
            request: $request,
            reply: $reply,
            problems: $problems,
        }),+];
    };
}

endpoints! {
    claim "post" "/v1/claims" Some(Permission::Claims), Some("Claim"),
        ReplyKind::Json("ClaimReply"), CLAIM_STATUSES,
        "Claims a key: run the operation, or get the result of the one that ran";
    complete "post" "/v1/claims/complete" Some(Permission::Claims), Some("Complete"),
        ReplyKind::Json("Completed"), CLAIM_CALL_STATUSES,
        "Records the result of a claimed operation";
    renew "post" "/v1/claims/renew" Some(Permission::Claims), Some("Renew"),
        ReplyKind::Json("Renewed"), CLAIM_CALL_STATUSES, "Extends the lease of a claim";
    release "post" "/v1/claims/release" Some(Permission::Claims), Some("Release"),
        ReplyKind::Json("Released"), CLAIM_CALL_STATUSES,
        "Ends a claim whose operation did not happen";
    hold "post" "/v1/claims/hold" Some(Permission::Claims), Some("Hold"),
        ReplyKind::Json("Held"), CLAIM_CALL_STATUSES, "Ends a claim whose outcome is unknown";
    batch "post" "/v1/batch" Some(Permission::Claims), Some("Batch"),
        ReplyKind::Json("BatchReply"), &[400, 413, 415, 504], "Runs up to 500 of these operations";
    records "get" "/v1/records" Some(Permission::Records), None,
        ReplyKind::Json("Records"), &[400, 503, 504], "Lists records";
    record "get" "/v1/record" Some(Permission::Records), None,
        ReplyKind::Json("Record"), &[400, 404, 503, 504], "Shows one record";
    resolve "post" "/v1/resolve" Some(Permission::Operations), Some("Resolve"),
        ReplyKind::Json("ActionResult"), CHANGE_STATUSES, "Resolves a held record";
    resolve_many "post" "/v1/resolve-many" Some(Permission::Operations), Some("ResolveMany"),
        ReplyKind::Json("ResolveManyResult"), CHANGE_STATUSES,
        "Resolves held records that a listing showed";
    delete "post" "/v1/delete" Some(Permission::Operations), Some("Delete"),
        ReplyKind::Json("ActionResult"), CHANGE_STATUSES, "Deletes a record";
    sweep "post" "/v1/sweep" Some(Permission::Operations), Some("AuditNote"),
        ReplyKind::Json("Swept"), CHANGE_STATUSES, "Deletes records past their retention now";
    reload "post" "/v1/reload" Some(Permission::Operations), Some("Reload"),
        ReplyKind::Json("ActionResult"), CHANGE_STATUSES, "Applies a changed configuration";
    metrics "get" "/metrics" Some(Permission::Metrics), None,
        ReplyKind::Metrics, &[504],
        "Metrics for Prometheus, as OpenMetrics if Accept names it";
    healthz "get" "/healthz" None, None, ReplyKind::Text("text/plain; charset=utf-8"), &[504],
        "Liveness";
    readyz "get" "/readyz" None, None, ReplyKind::Text("text/plain; charset=utf-8"), &[503, 504],
        "Readiness: the store answers, and the server is not draining";
    openapi "get" "/openapi.json" None, None, ReplyKind::Json("OpenApiDocument"), &[504],
        "This description";
    docs_page "get" "/docs" None, None, ReplyKind::Text("text/html; charset=utf-8"), &[504],
        "This description as a page";
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", document()));
static PAGE: LazyLock<String> = LazyLock::new(page);

/// `GET /openapi.json`
pub(crate) async fn openapi_json() -> impl IntoResponse {
    const CONTENT_TYPE: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];
    (CONTENT_TYPE, DOCUMENT.as_str())
}

/// `GET /docs`
pub(crate) async fn docs() -> Html<&'static str> {
    Html(PAGE.as_str())
}

fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Value::Object(path) = path {
            path.insert(endpoint.method.to_owned(), endpoint.operation());
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Semel",
            "version": "1",
            "description": "The API listener of Semel: the service API, records, metrics.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas::all(),
        },
    })
}

impl ReplyKind {
    /// Whether a reply may have a claim, which other operations take.
    fn grants_claim(&self) -> bool {
        matches!(self, Self::Json("ClaimReply"))
    }
}

/// The operations that take the claim of a reply.
fn claim_links() -> Value {
    let link = |endpoint: &Endpoint| {
        let body = json!({ "claim": "$response.body#/claim" });
        let link = json!({ "operationId": endpoint.name, "requestBody": body });
        (endpoint.name.to_owned(), link)
    };
    let takes_claim = |endpoint: &&Endpoint| endpoint.path.starts_with("/v1/claims/");
    Value::Object(ENDPOINTS.iter().filter(takes_claim).map(link).collect())
}

impl Endpoint {
    fn operation(&self) -> Value {
        let mut operation = json!({
            "operationId": self.name,
            "summary": self.summary,
            "responses": self.responses(),
        });
        let Value::Object(members) = &mut operation else { return operation };
        if let Some(name) = self.request {
            let content = json!({ "application/json": { "schema": reference(name) } });
            let body = json!({ "required": true, "content": content });
            members.insert("requestBody".to_owned(), body);
        }
        if let Some(parameters) = schemas::parameters(self.name) {
            members.insert("parameters".to_owned(), parameters);
        }
        match self.permission {
            None => {}
            Some(Permission::Records | Permission::Metrics) => {
                members.insert("security".to_owned(), json!([{}, { "token": [] }]));
            }
            Some(Permission::Claims | Permission::Operations) => {
                members.insert("security".to_owned(), json!([{ "token": [] }]));
            }
        }
        operation
    }

    fn responses(&self) -> Value {
        let content = match self.reply {
            ReplyKind::Json(name) => json!({ "application/json": { "schema": reference(name) } }),
            ReplyKind::Text(kind) => json!({ kind: { "schema": { "type": "string" } } }),
            ReplyKind::Metrics => {
                let formats = [Exposition::Prometheus, Exposition::OpenMetrics];
                let text = json!({ "schema": { "type": "string" } });
                formats
                    .map(|format| (format.content_type().to_owned(), text.clone()))
                    .into_iter()
                    .collect::<Map<_, _>>()
                    .into()
            }
        };
        let mut responses = Map::new();
        let mut done = json!({ "description": "Done", "content": content });
        if self.reply.grants_claim() {
            done["links"] = claim_links();
        }
        responses.insert("200".to_owned(), done);
        let permission_statuses: &[u16] = if self.permission.is_some() { &[401, 403] } else { &[] };
        // 421: a listener on a loopback address refuses other hosts before routing.
        let statuses = self.problems.iter().chain(permission_statuses).chain(&[421]);
        for status in statuses {
            let content = json!({ "application/problem+json": { "schema": reference("Problem") } });
            let problem = json!({ "description": "A problem", "content": content });
            responses.insert(status.to_string(), problem);
        }
        Value::Object(responses)
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The table as HTML. Nothing in it comes from a request.
fn page() -> String {
    let mut rows = String::new();
    for endpoint in ENDPOINTS {
        let (method, path) = (endpoint.method.to_uppercase(), endpoint.path);
        let role = match endpoint.permission {
            None => "none",
            Some(Permission::Claims) => "app",
            Some(Permission::Records) => "viewer, operator",
            Some(Permission::Metrics) => "viewer, operator, metrics",
            Some(Permission::Operations) => "operator",
        };
        let members = endpoint.request.map(schemas::member_rows).unwrap_or_default();
        rows.push_str(&format!(
            "<h2><code>{method} {path}</code></h2><p>{}. Role: {role}.</p>{members}\n",
            endpoint.summary
        ));
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Semel API</title>\
         <style>body{{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}}\
         td,th{{text-align:left;padding:.2em 1em .2em 0;vertical-align:top}}</style>\
         <h1>Semel API</h1><p>Machine-readable: <a href=\"/openapi.json\">openapi.json</a>. Every \
         call of the service API is safe to retry.</p>\n{rows}</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
    };

    use serde::{Serialize, de::DeserializeOwned};

    use super::*;
    use crate::{requests, responses, service};

    #[test]
    fn the_committed_openapi_file_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
        if std::env::var_os("SEMEL_BLESS").is_some() {
            fs::write(&path, DOCUMENT.as_str()).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        let command = "SEMEL_BLESS=1 cargo test -p semel-admin openapi";
        assert!(committed == *DOCUMENT, "docs/reference/openapi.json is stale; run: {command}");
    }

    #[test]
    fn every_reference_resolves_and_every_schema_is_used() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        let used: BTreeSet<&str> = text
            .split("\"#/components/schemas/")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect();
        assert_eq!(used, schemas.keys().map(String::as_str).collect());
    }

    /// Parses the accepted field names from the "unknown field" error of serde.
    fn parse_expected_fields(error: &str) -> BTreeSet<String> {
        let (_, listed) = error.split_once("expected ").unwrap_or_else(|| panic!("{error}"));
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    fn members_of<T: DeserializeOwned>() -> BTreeSet<String> {
        let Err(error) = serde_json::from_str::<T>("{\"no such member\":1}") else {
            panic!("an unknown member is accepted")
        };
        parse_expected_fields(&error.to_string())
    }

    #[test]
    fn request_schemas_list_the_fields_that_serde_accepts() {
        let document = document();
        let described = |name: &str| -> BTreeSet<String> {
            let schema = &document["components"]["schemas"][name];
            assert_eq!(schema["additionalProperties"], false, "{name}");
            schema["properties"].as_object().unwrap().keys().cloned().collect()
        };
        let of_operators = [
            ("Resolve", members_of::<requests::ResolveRequest>()),
            ("ResolveMany", members_of::<requests::ResolveManyRequest>()),
            ("SeenRecord", members_of::<requests::SeenRecord>()),
            ("AnswerInput", members_of::<requests::AnswerInput>()),
            ("Delete", members_of::<requests::DeleteRequest>()),
            ("AuditNote", members_of::<requests::AuditNote>()),
            ("Reload", members_of::<requests::ReloadRequest>()),
        ];
        for (name, members) in of_operators {
            assert_eq!(described(name), members, "{name}");
        }
        for (name, error) in service::unknown_member_errors() {
            let mut members = parse_expected_fields(&error);
            members.remove("op");
            assert_eq!(described(name), members, "{name}");
        }
    }

    fn to_json(view: &impl Serialize) -> Value {
        serde_json::to_value(view).unwrap()
    }

    /// A record with every member, and one with as few as there can be.
    fn records() -> [responses::RecordView; 2] {
        let text = || Some("text".to_owned());
        let few = responses::RecordView {
            line: responses::RecordSummaryView {
                scope: String::new(),
                caller: String::new(),
                key: String::new(),
                state: String::new(),
                fence: 1,
                attempt: 1,
                age_ms: 0,
                claimed_at: String::new(),
                ended_ago_ms: None,
                ended_at: None,
                lapsed: false,
                about: String::new(),
                node: String::new(),
                reason: None,
                reason_label: None,
            },
            fingerprint: None,
            on_unknown: String::new(),
            hold_for_ms: None,
            captured: BTreeMap::new(),
            lease_left_ms: None,
            expires_in_ms: None,
            answer: None,
            reconcile: None,
        };
        let line = responses::RecordSummaryView {
            ended_ago_ms: Some(1),
            ended_at: text(),
            about: "text".to_owned(),
            node: "text".to_owned(),
            reason: text(),
            reason_label: text(),
            ..few.line.clone()
        };
        let all = responses::RecordView {
            line,
            fingerprint: text(),
            hold_for_ms: Some(1),
            captured: [("order".to_owned(), "7".to_owned())].into(),
            lease_left_ms: Some(1),
            expires_in_ms: Some(1),
            answer: Some(answers()[0].clone()),
            reconcile: text(),
            ..few.clone()
        };
        [all, few]
    }

    fn answers() -> [responses::AnswerView; 2] {
        let (text, pair) = (|| Some("text".to_owned()), ("a".to_owned(), "b".to_owned()));
        let all = responses::AnswerView {
            kind: "response".to_owned(),
            status: Some(200),
            headers: vec![pair.clone()],
            body_bytes: 4,
            body: text(),
            body_base64: text(),
            trailers: vec![pair],
            withheld: text(),
        };
        [all, responses::AnswerView::default()]
    }

    #[test]
    fn the_schemas_of_replies_have_the_members_that_are_written() {
        let document = document();
        let check = |name: &str, views: [Value; 2]| {
            let schema = &document["components"]["schemas"][name];
            assert_eq!(schema["additionalProperties"], false, "{name}");
            let [all, few] = views.map(|view| -> BTreeSet<String> {
                view.as_object().unwrap().keys().cloned().collect()
            });
            let described = schema["properties"].as_object().unwrap();
            assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), all, "{name}");
            let required = schema["required"].as_array().unwrap();
            let required = required.iter().map(|name| name.as_str().unwrap().to_owned());
            assert_eq!(required.collect::<BTreeSet<_>>(), few, "{name}");
        };
        check("Record", records().each_ref().map(to_json));
        check("RecordSummary", records().each_ref().map(|view| to_json(&view.line)));
        check("Answer", answers().each_ref().map(to_json));
        let page = responses::RecordPageView { next: Some(String::new()), ..Default::default() };
        check("Records", [to_json(&page), to_json(&responses::RecordPageView::default())]);
        let many = responses::ResolveManyView::default();
        check("ResolveManyResult", [to_json(&many), to_json(&many)]);
        let (detail, none) = (Some(String::new()), None);
        check(
            "ActionResult",
            [detail, none].map(|detail| to_json(&responses::ActionResultView::applied(detail))),
        );
        let swept = responses::SweepView { deleted: 0, more: false };
        check("Swept", [to_json(&swept), to_json(&swept)]);
    }
}
