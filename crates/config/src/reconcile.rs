//! `reconcile`: how the upstream is asked what became of a held operation.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderName, HeaderValue, uri::PathAndQuery};
use semel::core::{
    StatusSet,
    canonical::Pointer,
    reconcile::{ReadRule, ReconcilePlan, Template},
};
use semel_tower::CaptureSource;
use serde_json::{Map, Value, json};

use super::{
    CallerRule,
    files::FileCheck,
    loader::Loader,
    read::{FromText, FromToml, Located, TomlField, TomlValue, at, integer, origin, wrong_type},
    report::{DiagnosticReport, ValueOrigin},
    settings::{Setting, SettingsTable as _, default, example, settings},
    units::{PositiveDuration, time_text},
    values::EnvName,
};

const EVERY_DEFAULT: Duration = Duration::from_secs(30);
const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const GIVE_UP_DEFAULT: Duration = Duration::from_secs(60 * 60);
const GIVE_UP_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const ANSWER_STATUS_DEFAULT: u16 = 200;

/// The names of placeholders that no captured value may have.
const RESERVED: [&str; 2] = ["key", "caller"];

settings! {
    /// How the upstream is asked what became of a held operation.
    ReconcileTable {
        /// Path and query of the request, below the upstream of the route. `{order}` stands for the
        /// captured value of that name, `{key}` for the key and `{caller}` for the name of the
        /// caller in clear. Each is percent-encoded.
        get: Template = example("/v1/charges?order={order}");
        /// Headers of the request: a text with placeholders, `{ env = "NAME" }` or
        /// `{ file = "PATH" }`.
        headers: ReadHeaders = example(json!({ "Authorization": { "env": "CHARGES_TOKEN" } }));
        /// Time between two reads of a record.
        every: PositiveDuration = default(time_text(EVERY_DEFAULT));
        /// Time after which a record that is still held is not read any more.
        give_up: PositiveDuration = default(time_text(GIVE_UP_DEFAULT));
        /// What shows that the operation happened: `status`, a list, and `present`, a JSON Pointer
        /// to the operation.
        completed: FoundTable = default(json!({ "status": [200] }));
        /// What shows no such operation: `status`, a list, and `or_missing`, a JSON Pointer to
        /// nothing in an answer with a completed status.
        absent: AbsentTable = default(json!({ "status": [404] }));
        /// What must agree with the request, by JSON Pointer: a text with placeholders.
        matches as "match": ReadMatches = example(json!({ "/data/0/amount": "{amount}" }));
        /// JSON Pointer to the part of the answer that is recorded. Default: all of it.
        answer: Pointer = example("/data/0");
        /// Status that is recorded.
        answer_status: StatusCode = default(ANSWER_STATUS_DEFAULT);
        /// Longest time in which an attempt can still take effect. Absence counts only at its start
        /// and at its end. There is no default: without it and without `fenced`, nothing is
        /// released.
        settles_within: PositiveDuration = example("10m");
        /// Whether the service refuses every attempt with a lower `Idempotency-Fence` than that of
        /// a read, from the read on. Then absence counts at once.
        fenced: bool = default(false);
        /// Whether no two callers can send the same key, so that `{key}` needs no `{caller}`.
        keys_are_global: bool = default(false);
    }
}

settings! {
    /// What shows that the operation happened.
    FoundTable {
        /// Statuses of the answer.
        status: StatusCodes = default(json!([200]));
        /// JSON Pointer to the operation. A second element behind it means that two were found.
        present: Pointer = example("/data/0");
    }
}

settings! {
    /// What shows that there is no such operation.
    AbsentTable {
        /// Statuses of the answer.
        status: StatusCodes = default(json!([404]));
        /// JSON Pointer to nothing, in an answer with a completed status. The place around it must
        /// exist.
        or_missing: Pointer = example("/data/0");
    }
}

impl FromText for Template {
    const EXPECTED: &'static str = "a text with placeholders: \"/v1/charges?order={order}\"";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: semel::core::reconcile::TemplateError| error.to_string())
    }
}

/// One status.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusCode(u16);

impl FromToml for StatusCode {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let expected = "a status from 200 to 599";
        let code = integer(found, expected, report)?;
        let code = u16::try_from(code).ok().filter(|code| (200..600).contains(code));
        if code.is_none() {
            report.add_error(&origin(found), format!("this must be {expected}"));
        }
        code.map(Self)
    }

    fn schema() -> Value {
        json!({ "type": "integer", "minimum": 200, "maximum": 599 })
    }
}

/// A list of statuses.
#[derive(Clone, Debug)]
pub(super) struct StatusCodes(StatusSet);

impl FromToml for StatusCodes {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let codes = <Vec<Located<StatusCode>>>::read(found, report)?;
        Some(Self(StatusSet::new(codes.iter().map(|code| code.value.0))))
    }

    fn schema() -> Value {
        <Vec<Located<StatusCode>>>::schema()
    }
}

/// `match`: pointers into the answer, and the text that each value must have.
#[derive(Clone, Debug)]
pub(super) struct ReadMatches(Vec<(Pointer, Template)>);

impl FromToml for ReadMatches {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(table) = found.get_ref().as_table() else {
            wrong_type(found, "a table: { \"/data/0/amount\" = \"{amount}\" }", report);
            return None;
        };
        let mut matches = Vec::new();
        for (name, value) in table {
            let pointer = <Pointer as FromText>::parse(name.get_ref());
            let pointer = pointer
                .map_err(|message| report.add_error(&ValueOrigin::File(name.span()), message));
            matches.push((pointer.ok()?, <Template as FromToml>::read(value, report)?));
        }
        Some(Self(matches))
    }

    fn schema() -> Value {
        json!({ "type": "object", "additionalProperties": { "type": "string" } })
    }
}

settings! {
    /// Source of a header's value outside the file.
    HeaderSecretTable {
        /// Environment variable that holds the value.
        env: EnvName = example("CHARGES_TOKEN");
        /// File that holds the value.
        file: PathBuf = example("charges.token");
    }
}

/// `headers` of the request.
#[derive(Clone, Debug)]
pub(super) struct ReadHeaders(Vec<(HeaderName, Located<ReadHeader>)>);

impl FromToml for ReadHeaders {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(table) = found.get_ref().as_table() else {
            wrong_type(found, "a table: { Authorization = { env = \"NAME\" } }", report);
            return None;
        };
        let mut headers = Vec::new();
        for (name, value) in table {
            let header = <HeaderName as FromText>::parse(name.get_ref());
            let header = header
                .map_err(|message| report.add_error(&ValueOrigin::File(name.span()), message));
            headers.push((header.ok()?, at(value, report)?));
        }
        Some(Self(headers))
    }

    fn schema() -> Value {
        let value = json!({ "anyOf": [{ "type": "string" }, HeaderSecretTable::schema()] });
        json!({ "type": "object", "additionalProperties": value })
    }
}

/// The value of a header of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadHeader {
    /// This text.
    Text(Template),
    /// What this environment variable held when the configuration was built.
    Env(String, HeaderSecret),
    /// The content of this file.
    File(PathBuf),
}

/// The value of a header. It is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HeaderSecret(pub String);

impl fmt::Debug for HeaderSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderSecret(…)")
    }
}

impl FromToml for ReadHeader {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        if !found.get_ref().is_table() {
            return <Template as FromToml>::read(found, report).map(Self::Text);
        }
        let table = HeaderSecretTable::read(found, report)?;
        match (&table.env, &table.file) {
            (TomlField::Good(name), TomlField::Absent) => {
                Some(Self::Env(name.value.0.clone(), HeaderSecret::default()))
            }
            (TomlField::Absent, TomlField::Good(path)) => Some(Self::File(path.value.clone())),
            (TomlField::Bad, _) | (_, TomlField::Bad) => None,
            _ => {
                report.add_error(&origin(found), "write { env = \"NAME\" } or { file = \"PATH\" }");
                None
            }
        }
    }

    fn schema() -> Value {
        json!({})
    }
}

/// How the upstream is asked what became of a held operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileRule {
    /// Path and query of the request.
    pub get: Template,
    /// Its headers.
    pub headers: Vec<(HeaderName, ReadHeader)>,
    /// How its answer is read.
    pub read: ReadRule,
    /// When it is sent, and what absence means.
    pub plan: ReconcilePlan,
    /// Whether no two callers can send the same key.
    pub keys_are_global: bool,
}

/// `reconcile`, before it is checked with the rest of its route.
#[derive(Clone, Debug)]
pub(super) struct ReconcileSetting {
    rule: ReconcileRule,
    headers: Vec<(HeaderName, Located<ReadHeader>)>,
    get: ValueOrigin,
}

impl FromToml for ReconcileSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = ReconcileTable::read(found, report)?;
        let get = match &table.get {
            TomlField::Good(get) => get.clone(),
            TomlField::Bad => return None,
            TomlField::Absent => {
                report.add_error(&origin(found), "`get` is missing: the path of the request");
                return None;
            }
        };
        check_target(&get, report);
        let plan = plan(&table, found, report)?;
        let (completed, absent) = (table.completed.value(), table.absent.value());
        let codes = |codes: Option<&StatusCodes>, default: u16| {
            codes.map_or_else(|| StatusSet::new([default]), |codes| codes.0.clone())
        };
        let completed_codes = codes(completed.and_then(|table| table.status.value()), 200);
        let absent_codes = codes(absent.and_then(|table| table.status.value()), 404);
        if let Some(both) = completed_codes.iter().find(|code| absent_codes.contains(*code)) {
            let message = format!("{both} cannot mean both `completed` and `absent`");
            report.add_error(&origin(found), message);
            return None;
        }
        let read = ReadRule {
            completed: completed_codes,
            present: completed.and_then(|table| table.present.value().cloned()),
            absent: absent_codes,
            or_missing: absent.and_then(|table| table.or_missing.value().cloned()),
            matches: table.matches.value().map(|it| it.0.clone()).unwrap_or_default(),
            answer: table.answer.value().cloned(),
            answer_status: table.answer_status.value().map_or(ANSWER_STATUS_DEFAULT, |it| it.0),
        };
        if read.or_missing.as_ref().is_some_and(Pointer::is_whole) {
            report.add_error(&origin(found), "`or_missing` leads to a part of the answer");
            return None;
        }
        let headers = table.headers.value().map(|it| it.0.clone()).unwrap_or_default();
        let keys_are_global = table.keys_are_global.value().copied().unwrap_or_default();
        let rule =
            ReconcileRule { get: get.value, headers: Vec::new(), read, plan, keys_are_global };
        Some(Self { rule, headers, get: get.origin })
    }

    fn schema() -> Value {
        ReconcileTable::schema()
    }

    fn members() -> Vec<Setting> {
        ReconcileTable::all()
    }
}

fn check_target(get: &Located<Template>, report: &mut DiagnosticReport<'_>) {
    let text = get.value.to_string().replace(['{', '}'], "_");
    let is_target = text.starts_with('/') && !text.contains('#');
    if !is_target || text.parse::<PathAndQuery>().is_err() {
        report.add_error(&get.origin, "this is not a path with a query; write \"/v1/charges?…\"");
    }
}

fn plan(
    table: &ReconcileTable,
    found: &TomlValue<'_>,
    report: &mut DiagnosticReport<'_>,
) -> Option<ReconcilePlan> {
    let time =
        |field: &TomlField<PositiveDuration>, default| field.value().map_or(default, |time| time.0);
    let every = time(&table.every, EVERY_DEFAULT);
    let give_up = time(&table.give_up, GIVE_UP_DEFAULT);
    let settles_within = table.settles_within.value().map(|time| time.0);
    let fenced = table.fenced.value().copied().unwrap_or_default();
    let mistake = if !(EVERY_MIN..=EVERY_MAX).contains(&every) {
        Some("`every` is 100ms to 24h")
    } else if give_up < every || give_up > GIVE_UP_MAX {
        Some("`give_up` is at least `every`, and at most 365d")
    } else if settles_within.is_some_and(|window| window >= give_up) {
        Some("`settles_within` is shorter than `give_up`: a record is released after it")
    } else if fenced && settles_within.is_some() {
        Some("with `fenced` absence counts at once; remove `settles_within`")
    } else {
        None
    };
    if let Some(mistake) = mistake {
        report.add_error(&origin(found), mistake);
        return None;
    }
    Some(ReconcilePlan { every, give_up, settles_within, fenced })
}

impl Located<ReconcileSetting> {
    /// The rule of a route with these captured values and callers. Reports what does not fit.
    pub(super) fn resolve(
        &self,
        loader: &mut Loader<'_, '_>,
        captures: &[(String, CaptureSource)],
        callers: &[CallerRule],
    ) -> Option<ReconcileRule> {
        let ReconcileSetting { rule, headers, get } = &self.value;
        let mut rule = rule.clone();
        if captures.iter().any(|(name, _)| RESERVED.contains(&&**name)) {
            let message = "`key` and `caller` cannot be names of captured values here";
            loader.report.add_error(&self.origin, message);
        }
        for (name, header) in headers {
            let value = resolve_header(loader, header)?;
            rule.headers.push((name.clone(), value));
        }
        let is_known = |name: &&str| {
            RESERVED.contains(name) || captures.iter().any(|(captured, _)| captured == name)
        };
        let of_headers = rule.headers.iter().filter_map(|(_, header)| match header {
            ReadHeader::Text(template) => Some(template),
            ReadHeader::Env(..) | ReadHeader::File(_) => None,
        });
        let of_matches = rule.read.matches.iter().map(|(_, template)| template);
        let templates = [&rule.get].into_iter().chain(of_headers).chain(of_matches);
        let names: Vec<&str> = templates.flat_map(Template::names).collect();
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            let message = format!(
                "`{{{unknown}}}` is no captured value; add it to `capture`, or write {{key}} or \
                 {{caller}}"
            );
            loader.report.add_error(&self.origin, message);
            return None;
        }
        let in_get: Vec<&str> = rule.get.names().collect();
        let is_clear = |caller: &CallerRule| {
            matches!(caller, CallerRule::Header(_) | CallerRule::TrustedHeader { .. })
        };
        let mistake = if in_get.iter().all(|name| *name == "caller") {
            Some(
                "this finds the operations of a caller, not one of them; write {key} or a \
                  captured value",
            )
        } else if in_get.contains(&"key") && !in_get.contains(&"caller") && !rule.keys_are_global {
            Some(
                "two callers may send the same key, and this would find the operation of the \
                  other; add {caller}, or say keys_are_global = true",
            )
        } else if names.contains(&"caller") && !callers.iter().all(is_clear) {
            Some("`{caller}` needs callers that are stored in clear: caller = [{ header = … }]")
        } else {
            None
        };
        if let Some(mistake) = mistake {
            loader.report.add_error(get, mistake);
            return None;
        }
        Some(rule)
    }
}

fn resolve_header(loader: &mut Loader<'_, '_>, header: &Located<ReadHeader>) -> Option<ReadHeader> {
    Some(match &header.value {
        ReadHeader::Text(template) => ReadHeader::Text(template.clone()),
        ReadHeader::File(path) => {
            ReadHeader::File(loader.checked_path(path, &header.origin, FileCheck::File))
        }
        ReadHeader::Env(name, _) => {
            let value = loader.variable(name).map(|value| value.trim().to_owned());
            let is_header = |value: &String| HeaderValue::try_from(value.as_str()).is_ok();
            let Some(value) = value.filter(is_header) else {
                let message = format!(
                    "the environment variable {name} is not set, or is not the value of a header"
                );
                loader.report.add_error(&header.origin, message);
                return None;
            };
            ReadHeader::Env(name.clone(), HeaderSecret(value))
        }
    })
}

impl ReconcileRule {
    /// Whether the name of the caller is in the request or in what must agree. Where it is not, a
    /// client that names the operation of another client gets its answer.
    pub fn names_caller(&self) -> bool {
        let of_headers = self.headers.iter().filter_map(|(_, header)| match header {
            ReadHeader::Text(template) => Some(template),
            ReadHeader::Env(..) | ReadHeader::File(_) => None,
        });
        let of_matches = self.read.matches.iter().map(|(_, template)| template);
        let mut templates = [&self.get].into_iter().chain(of_headers).chain(of_matches);
        templates.any(|template| template.names().any(|name| name == "caller"))
    }

    /// The rule as TOML has it. Secrets are printed as their location only.
    pub(super) fn to_json(&self, absolute: impl Fn(&Path) -> String) -> Value {
        let codes = |set: &StatusSet| Value::from(set.iter().collect::<Vec<u16>>());
        let mut table = Map::new();
        let mut add = |name: &str, value: Value| table.insert(name.to_owned(), value);
        add("get", self.get.to_string().into());
        let headers = self.headers.iter().map(|(name, header)| {
            let value = match header {
                ReadHeader::Text(template) => template.to_string().into(),
                ReadHeader::Env(variable, _) => json!({ "env": variable }),
                ReadHeader::File(path) => json!({ "file": absolute(path) }),
            };
            (name.as_str().to_owned(), value)
        });
        add("headers", Value::Object(headers.collect()));
        add("every", time_text(self.plan.every).into());
        add("give_up", time_text(self.plan.give_up).into());
        let pointer = |name: &str, pointer: &Option<Pointer>, status: &StatusSet| {
            let mut table = Map::from_iter([("status".to_owned(), codes(status))]);
            if let Some(pointer) = pointer {
                table.insert(name.to_owned(), pointer.as_str().into());
            }
            Value::Object(table)
        };
        add("completed", pointer("present", &self.read.present, &self.read.completed));
        add("absent", pointer("or_missing", &self.read.or_missing, &self.read.absent));
        let matches = self.read.matches.iter().map(|(pointer, template)| {
            (pointer.as_str().to_owned(), Value::from(template.to_string()))
        });
        add("match", Value::Object(matches.collect()));
        if let Some(answer) = &self.read.answer {
            add("answer", answer.as_str().into());
        }
        add("answer_status", self.read.answer_status.into());
        if let Some(window) = self.plan.settles_within {
            add("settles_within", time_text(window).into());
        }
        add("fenced", self.plan.fenced.into());
        add("keys_are_global", self.keys_are_global.into());
        Value::Object(table)
    }
}
