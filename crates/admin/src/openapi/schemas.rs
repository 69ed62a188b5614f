//! The schemas of requests and replies.

use serde_json::{Map, Value, json};

use super::reference;

/// All schemas by their names.
pub(super) fn all() -> Value {
    let mut schemas = Map::new();
    for part in [claims(), replies(), batches(), operators(), views()] {
        if let Value::Object(part) = part {
            schemas.extend(part);
        }
    }
    Value::Object(schemas)
}

/// An object with exactly these members, of which `required` must be there.
fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("additionalProperties".to_owned(), false.into());
    schema.insert("required".to_owned(), json!(required));
    schema.insert("properties".to_owned(), properties);
    Value::Object(schema)
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn optional(schema: Value) -> Value {
    let alternatives = vec![schema, json!({ "type": "null" })];
    json!({ "anyOf": alternatives })
}

fn duration(description: &str) -> Value {
    optional(json!({
        "type": "string",
        "pattern": "^[0-9]+(ms|s|m|h|d)$",
        "description": description,
    }))
}

fn claim_text() -> Value {
    text("The claim, as it was issued")
}

fn outcome(word: &str) -> Value {
    json!({ "const": word })
}

fn claims() -> Value {
    let digits = |number: usize| format!("^[0-9a-fA-F]{{{number}}}$");
    json!({
        "Claim": object(&["scope", "key", "attempt_id"], json!({
            "scope": { "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$" },
            "key": { "type": "string", "minLength": 1, "description": "Names the operation" },
            "attempt_id": { "type": "string", "pattern": digits(32), "description":
                "Random, drawn once per claim and repeated with it" },
            "payload": { "description": "Any JSON: what must be equal in a repeat" },
            "fingerprint": optional(json!({ "type": "string", "pattern": digits(64),
                "description": "A SHA-256 instead of the payload" })),
            "caller": optional(text("The caller, where the token lets the claim name it")),
            "about": optional(text("A description for operators")),
            "lease": duration("How long the owner may stay silent"),
            "wait": duration("How long to wait for the result of another owner, at most 60s"),
            "retention": duration("How long the record is kept"),
            "on_unknown": optional(json!({ "enum": ["hold", "rerun", "fail"] })),
        })),
        "Complete": object(&["claim"], json!({
            "claim": claim_text(),
            "result": optional(reference("ResultInput")),
        })),
        "ResultInput": object(&[], json!({
            "content_type": optional(json!({ "type": "string", "minLength": 1, "maxLength": 255,
                "pattern": "^[ -~]+$" })),
            "body": { "description": "Any JSON, stored and replayed byte for byte" },
            "body_base64": optional(json!({ "type": "string", "contentEncoding": "base64" })),
        })),
        "Renew": object(&["claim"], json!({
            "claim": claim_text(), "lease": duration("The lease from now on"),
        })),
        "Release": object(&["claim"], json!({
            "claim": claim_text(),
            "counted": optional(json!({ "type": "boolean", "default": true, "description":
                "Whether the attempt counts" })),
            "reason": optional(text("Why, for operators")),
        })),
        "Hold": object(&["claim"], json!({
            "claim": claim_text(), "reason": optional(text("Why, for operators")),
        })),
    })
}

fn replies() -> Value {
    let number = || json!({ "type": "integer", "minimum": 1 });
    let result = json!({
        "type": "object",
        "required": ["content_type"],
        "properties": {
            "content_type": { "type": "string" },
            "body": { "description": "The recorded JSON" },
            "body_base64": { "type": "string", "contentEncoding": "base64" },
        },
    });
    json!({
        "ClaimReply": { "oneOf": [reference("Granted"), reference("Replayed")] },
        "Granted": object(&["outcome", "claim", "fence", "attempt", "lease_ms"], json!({
            "outcome": outcome("execute"), "claim": claim_text(),
            "fence": number(), "attempt": number(), "lease_ms": number(),
        })),
        "Replayed": object(&["outcome", "retained"], json!({
            "outcome": outcome("replay"),
            "retained": { "type": "boolean" },
            "result": result,
        })),
        "Completed": object(&["outcome", "retained"], json!({
            "outcome": outcome("completed"), "retained": { "type": "boolean" },
        })),
        "Renewed": object(&["outcome", "lease_ms"], json!({
            "outcome": outcome("renewed"), "lease_ms": number(),
        })),
        "Released": object(&["outcome"], json!({ "outcome": outcome("released") })),
        "Held": object(&["outcome"], json!({ "outcome": outcome("held") })),
        "Problem": {
            "type": "object",
            "required": ["type", "title", "status", "detail", "error"],
            "properties": {
                "type": { "type": "string", "pattern": "^urn:semel:problem:[a-z-]+$" },
                "title": { "type": "string" },
                "status": { "type": "integer" },
                "detail": { "type": "string" },
                "error": { "type": "object", "required": ["type", "code", "message"] },
            },
        },
    })
}

fn batches() -> Value {
    let operation = json!({
        "type": "object",
        "required": ["op"],
        "description": "The body of one operation, with its name",
        "properties": { "op": { "enum": ["claim", "complete", "renew", "release", "hold"] } },
    });
    let element = json!({
        "type": "object",
        "required": ["status", "body"],
        "properties": {
            "status": { "type": "integer" },
            "body": { "type": "object" },
            "should_retry": { "type": "boolean" },
            "retry_after_ms": { "type": "integer" },
        },
    });
    json!({
        "Batch": { "type": "array", "maxItems": 500, "items": operation },
        "BatchReply": { "type": "array", "items": element },
    })
}

fn operators() -> Value {
    let fence = || json!({ "type": "integer", "minimum": 1 });
    let note = || json!({ "type": "string", "description": "For the audit log" });
    let to = || json!({ "enum": ["completed", "released"] });
    let answer = || optional(reference("AnswerInput"));
    json!({
        "Resolve": object(&["scope", "caller", "key", "state", "fence", "to"], json!({
            "scope": text("The scope"), "caller": text("Empty for the anonymous caller"),
            "key": text("The key"), "state": text("The state it was seen in"), "fence": fence(),
            "to": to(), "answer": answer(), "why": note(), "who": note(),
        })),
        "ResolveMany": object(&["records", "to"], json!({
            "records": { "type": "array", "minItems": 1, "maxItems": 200,
                "items": reference("SeenRecord") },
            "to": to(), "answer": answer(), "why": note(), "who": note(),
        })),
        "SeenRecord": object(&["scope", "caller", "key", "fence"], json!({
            "scope": text("The scope"), "caller": text("Empty for the anonymous caller"),
            "key": text("The key"), "fence": fence(),
        })),
        "AnswerInput": object(&["status"], json!({
            "status": { "type": "integer", "minimum": 200, "maximum": 599 },
            "headers": { "type": "array", "items": { "type": "array", "minItems": 2,
                "maxItems": 2, "items": { "type": "string" } } },
            "body": optional(text("The body, if it is text")),
            "body_base64": optional(text("The body, if it is not")),
        })),
        "Delete": object(&["scope", "caller", "key", "state", "fence"], json!({
            "scope": text("The scope"), "caller": text("Empty for the anonymous caller"),
            "key": text("The key"), "state": text("The state it was seen in"), "fence": fence(),
            "why": note(), "who": note(),
        })),
        "AuditNote": object(&[], json!({ "why": note(), "who": note() })),
        "Reload": object(&[], json!({
            "why": note(), "who": note(), "accept_identity_change": { "type": "boolean" },
        })),
    })
}

fn views() -> Value {
    let whole = || json!({ "type": "integer", "minimum": 0 });
    let flag = || json!({ "type": "boolean" });
    let record = object(&[SUMMARY_MEMBERS, &["on_unknown"]].concat(), record_properties());
    let all = record_properties();
    let of_summary = SUMMARY_MEMBERS.iter().chain(SUMMARY_OPTIONS);
    let of_summary =
        of_summary.filter_map(|name| Some(((*name).to_owned(), all.get(name)?.clone())));
    let summary = object(SUMMARY_MEMBERS, Value::Object(of_summary.collect()));
    json!({
        "Records": object(&["records", "examined"], json!({
            "records": { "type": "array", "items": reference("RecordSummary") },
            "next": text("Where the next page begins; absent after the last"),
            "examined": whole(),
        })),
        "RecordSummary": summary,
        "Record": record,
        "Answer": object(&["kind", "body_bytes"], json!({
            "kind": { "enum": ["response", "not_retained", "failed", "damaged"] },
            "status": { "type": "integer" }, "headers": fields(), "body_bytes": whole(),
            "body": text("The body, if it is text"),
            "body_base64": text("The body, if it is not"),
            "trailers": fields(), "withheld": text("Why headers and body are not shown"),
        })),
        "ActionResult": object(&["result"], json!({
            "result": outcome("applied"), "detail": text("What changed"),
        })),
        "ResolveManyResult": object(&["processed", "applied", "stale"], json!({
            "processed": whole(), "applied": whole(),
            "stale": { "type": "array", "items": reference("RecordId") },
        })),
        "RecordId": object(&["scope", "caller", "key"], json!({
            "scope": text("The scope"), "caller": text("Empty for the anonymous caller"),
            "key": text("The key"),
        })),
        "Swept": object(&["deleted", "more"], json!({ "deleted": whole(), "more": flag() })),
        "OpenApiDocument": { "type": "object", "required": ["openapi", "paths"] },
    })
}

/// The members that every record of a listing has.
const SUMMARY_MEMBERS: &[&str] =
    &["scope", "caller", "key", "state", "fence", "attempt", "age_ms", "claimed_at", "lapsed"];

/// Those that only some have.
const SUMMARY_OPTIONS: &[&str] =
    &["ended_ago_ms", "ended_at", "about", "node", "reason", "reason_label"];

fn fields() -> Value {
    json!({ "type": "array", "items": { "type": "array", "items": { "type": "string" },
        "minItems": 2, "maxItems": 2 } })
}

fn record_properties() -> Value {
    let whole = || json!({ "type": "integer", "minimum": 0 });
    json!({
        "scope": text("The scope"), "caller": text("Empty for the anonymous caller"),
        "key": text("The key"),
        "state": { "enum": ["in_flight", "completed", "released", "held"] },
        "fence": { "type": "integer", "minimum": 1 }, "attempt": whole(), "age_ms": whole(),
        "claimed_at": text("RFC 3339"), "ended_ago_ms": whole(), "ended_at": text("RFC 3339"),
        "lapsed": { "type": "boolean" }, "about": text("What the operation is about"),
        "node": text("The process that made the newest claim"),
        "reason": text("Why the newest execution did not complete"),
        "reason_label": text("The kind of reason"),
        "fingerprint": text("Version and hash, in hexadecimal digits"),
        "on_unknown": { "enum": ["hold", "rerun", "fail"] },
        "hold_for_ms": whole(), "lease_left_ms": whole(), "expires_in_ms": whole(),
        "captured": { "type": "object", "additionalProperties": { "type": "string" } },
        "answer": reference("Answer"),
        "reconcile": text("What the last read of the upstream found, if the record is held"),
    })
}

/// The parameters of an operation without a body.
pub(super) fn parameters(operation: &str) -> Option<Value> {
    let parameter = |(name, required, kind): (&str, bool, &str)| {
        let schema = json!({ "type": kind });
        json!({ "name": name, "in": "query", "required": required, "schema": schema })
    };
    let named: &[(&str, bool, &str)] = match operation {
        "record" => {
            &[("scope", true, "string"), ("caller", true, "string"), ("key", true, "string")]
        }
        "records" => &[
            ("state", false, "string"),
            ("scope", false, "string"),
            ("caller", false, "string"),
            ("key", false, "string"),
            ("reason", false, "string"),
            ("since", false, "string"),
            ("until", false, "string"),
            ("lapsed", false, "boolean"),
            ("limit", false, "integer"),
            ("after", false, "integer"),
        ],
        _ => return None,
    };
    Some(named.iter().copied().map(parameter).collect())
}

/// The members of a request as an HTML table.
pub(super) fn member_rows(name: &str) -> String {
    let schemas = all();
    let Some(Value::Object(properties)) = schemas.pointer(&format!("/{name}/properties")) else {
        return String::new();
    };
    let required = |member: &str| {
        let list = schemas.pointer(&format!("/{name}/required")).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|name| name == member))
    };
    let mut rows = String::new();
    for (member, schema) in properties {
        let described =
            schema.get("description").or_else(|| schema.pointer("/anyOf/0/description"));
        let described = described.and_then(Value::as_str).unwrap_or_default();
        let need = if required(member) { "required" } else { "" };
        rows.push_str(&format!(
            "<tr><td><code>{member}</code></td><td>{need}</td><td>{described}</td></tr>"
        ));
    }
    format!("<table>{rows}</table>")
}
