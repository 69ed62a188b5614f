//! `velocity` and `duplicates`: how often operations with equal values may run.

use std::time::Duration;

use http::HeaderName;
use semel::core::{
    StatusSet,
    canonical::Pointer,
    limit::{AnswerTag, Counted, LIMIT_MAX, TAG_BYTES_MAX, WINDOW_MAX, WINDOW_MIN},
};
use semel_tower::{LimitAction, LimitValue, VelocityRule};
use serde_json::{Value, json};

use super::{
    keyword::{Keyword as _, words},
    read::{
        CountUpTo, FromText, FromToml, Located, OneOrMore, TomlField, TomlValue, origin,
        refuse_repeats, wrong_type,
    },
    report::DiagnosticReport,
    settings::{Setting, SettingsTable as _, default, example, settings},
    units::{AnyDuration, time_text},
};

/// Maximum number of velocity limits on a route; `duplicates` is one more.
const RULES_MAX: usize = 8;

/// Maximum number of values by which a limit counts.
const VALUES_MAX: usize = 8;

settings! {
    /// One velocity limit.
    VelocityTable {
        /// Values that operations of one count have in common: "caller", "address" (of the client),
        /// a JSON Pointer, or `{ header = … }`. An absent value counts as one of its own.
        by: OneOrMore<ByValue> = example(json!(["/card/fingerprint", "caller"]));
        /// Maximum number of operations in a window.
        max: CountUpTo<{ LIMIT_MAX as usize }> = example(5);
        /// The window, 1s to 30d.
        per: AnyDuration = example("1m");
        /// What counts: "executions" that reached the upstream, operations that "completed" (kept
        /// answers below 400) or were "declined" (kept 4xx), a list of statuses, or `{ tag = … }`
        /// for answers with this `Idempotency-Tag`.
        count: CountedSetting = default("executions");
        /// What happens to more operations: "refuse" them with 429, or "report" them.
        action: VelocityAction = default("refuse");
    }
}

settings! {
    /// The same operation under another key.
    DuplicatesTable {
        /// How long an operation is remembered, 1s to 30d.
        window: AnyDuration = example("10m");
        /// What happens to a possible duplicate: "report" it, "mark" its answer with
        /// `Idempotency-Duplicate: possible`, or "refuse" it with 409 unless the client sends
        /// `Idempotency-Duplicate: intended`.
        action: DuplicateAction = default("report");
    }
}

settings! {
    /// A value outside the body.
    ByTable {
        /// A header.
        header: HeaderName = example("X-Merchant-Id");
    }
}

settings! {
    /// Answers that a service has tagged.
    TagTable {
        /// The value of `Idempotency-Tag`.
        tag: TagText = example("fraud");
    }
}

/// What happens beyond a velocity limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum VelocityAction {
    #[default]
    Refuse,
    Report,
}

words!(VelocityAction { "refuse" => Self::Refuse, "report" => Self::Report });

/// What happens to a possible duplicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DuplicateAction {
    #[default]
    Report,
    Mark,
    Refuse,
}

words!(DuplicateAction {
    "report" => Self::Report,
    "mark" => Self::Mark,
    "refuse" => Self::Refuse,
});

/// One of the values that a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ByValue(LimitValue);

impl FromToml for ByValue {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(text) = found.get_ref().as_str() else {
            if !found.get_ref().is_table() {
                let expected = "\"caller\", \"address\", a JSON Pointer, or { header = … }";
                wrong_type(found, expected, report);
                return None;
            }
            let table = ByTable::read(found, report)?;
            let TomlField::Good(name) = table.header else {
                if table.header.is_absent() {
                    report.add_error(&origin(found), "write { header = … }");
                }
                return None;
            };
            return Some(Self(LimitValue::Header(name.value)));
        };
        match text {
            "caller" => Some(Self(LimitValue::Caller)),
            "address" => Some(Self(LimitValue::Address)),
            pointer if pointer.starts_with('/') => match <Pointer as FromText>::parse(pointer) {
                Ok(pointer) => Some(Self(LimitValue::Json(pointer))),
                Err(message) => {
                    report.add_error(&origin(found), message);
                    None
                }
            },
            _ => {
                let message = "this must be \"caller\", \"address\", a JSON Pointer such as \
                               \"/card/fingerprint\", or { header = … }";
                report.add_error(&origin(found), message);
                None
            }
        }
    }

    fn schema() -> Value {
        json!({ "anyOf": [
            { "enum": ["caller", "address"] },
            { "type": "string", "pattern": "^/" },
            ByTable::schema(),
        ] })
    }
}

/// A tag of answers.
#[derive(Clone, Debug)]
pub(super) struct TagText(AnswerTag);

impl FromText for TagText {
    const EXPECTED: &'static str = "a tag: \"fraud\"";

    fn parse(text: &str) -> Result<Self, String> {
        let bounds = || format!("a tag has 1 to {TAG_BYTES_MAX} visible ASCII characters");
        AnswerTag::new(text).map(Self).ok_or_else(bounds)
    }
}

/// `count`.
#[derive(Clone, Debug)]
pub(super) struct CountedSetting(Counted);

/// The counts that are words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountWord {
    Executions,
    Completed,
    Declined,
}

words!(CountWord {
    "executions" => Self::Executions,
    "completed" => Self::Completed,
    "declined" => Self::Declined,
});

impl FromToml for CountedSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        if found.get_ref().is_table() {
            let table = TagTable::read(found, report)?;
            if table.tag.is_absent() {
                report.add_error(&origin(found), "write { tag = … }");
            }
            return table.tag.value().map(|tag| Self(Counted::Tag(tag.0.clone())));
        }
        if found.get_ref().is_array() {
            let statuses = <Vec<Located<CountUpTo<599>>>>::read(found, report)?;
            refuse_repeats(&statuses, report);
            let bad = statuses.iter().find(|status| status.value.0 < 200);
            if let Some(status) = bad {
                report.add_error(&status.origin, "a status is from 200 to 599");
                return None;
            }
            if statuses.is_empty() {
                report.add_error(&origin(found), "this list is empty, so nothing would count");
                return None;
            }
            let codes = statuses.iter().filter_map(|status| u16::try_from(status.value.0).ok());
            return Some(Self(Counted::Statuses(StatusSet::new(codes))));
        }
        Some(Self(match CountWord::read(found, report)? {
            CountWord::Executions => Counted::Executions,
            CountWord::Completed => Counted::Completed,
            CountWord::Declined => Counted::Declined,
        }))
    }

    fn schema() -> Value {
        let status = json!({ "type": "integer", "minimum": 200, "maximum": 599 });
        json!({ "anyOf": [
            { "enum": ["executions", "completed", "declined"] },
            { "type": "array", "items": status, "minItems": 1 },
            TagTable::schema(),
        ] })
    }
}

/// One velocity limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VelocitySetting {
    /// The values that it counts by.
    pub by: Vec<LimitValue>,
    /// The units in a window.
    pub max: u16,
    /// The window.
    pub per: Duration,
    /// What counts.
    pub count: Counted,
    /// Whether more is refused; otherwise it is reported.
    pub refuses: bool,
}

impl VelocitySetting {
    /// The rule of the layer.
    pub fn rule(&self) -> VelocityRule {
        let action = if self.refuses { LimitAction::Refuse } else { LimitAction::Report };
        VelocityRule::new(self.by.iter().cloned(), self.max, self.per)
            .counting(self.count.clone())
            .action(action)
    }

    /// The table as it is written.
    pub(super) fn to_json(&self) -> Value {
        let by: Vec<Value> = self.by.iter().map(by_json).collect();
        let action =
            if self.refuses { VelocityAction::Refuse } else { VelocityAction::Report }.keyword();
        let count = match &self.count {
            Counted::Statuses(set) => set.iter().collect::<Vec<u16>>().into(),
            Counted::Tag(tag) => json!({ "tag": tag.as_str() }),
            word @ (Counted::Executions | Counted::Completed | Counted::Declined) => {
                word.to_string().into()
            }
        };
        let per = time_text(self.per);
        json!({ "by": by, "max": self.max, "per": per, "count": count, "action": action })
    }
}

fn by_json(value: &LimitValue) -> Value {
    match value {
        LimitValue::Caller => "caller".into(),
        LimitValue::Address => "address".into(),
        LimitValue::Json(pointer) => pointer.as_str().into(),
        LimitValue::Header(name) => json!({ "header": name.as_str() }),
        _ => Value::Null,
    }
}

impl FromToml for VelocitySetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = VelocityTable::read(found, report)?;
        let mut missing = false;
        for (name, is_absent, written) in [
            ("by", table.by.is_absent(), "by = [\"caller\"]"),
            ("max", table.max.is_absent(), "max = 5"),
            ("per", table.per.is_absent(), "per = \"1m\""),
        ] {
            if is_absent {
                let message = format!("a velocity limit needs `{name}`, such as {written}");
                report.add_error(&origin(found), message);
                missing = true;
            }
        }
        let per = window(&table.per, report);
        let by = table.by.value();
        if let Some(OneOrMore(values)) = by {
            refuse_repeats(values, report);
            if let Some(more) = values.get(VALUES_MAX) {
                let message = format!("a limit counts by at most {VALUES_MAX} values");
                report.add_error(&more.origin, message);
            }
        }
        if missing || table.count.is_bad() || table.action.is_bad() {
            return None;
        }
        Some(Self {
            by: by?.0.iter().map(|value| value.value.0.clone()).collect(),
            max: u16::try_from(table.max.value()?.0).ok()?,
            per: per?,
            count: table.count.value().map(|count| count.0.clone()).unwrap_or_default(),
            refuses: table.action.value().copied().unwrap_or_default() == VelocityAction::Refuse,
        })
    }

    fn schema() -> Value {
        VelocityTable::schema()
    }
}

/// The limits of a route.
#[derive(Clone, Debug)]
pub(super) struct VelocityList(pub(super) Vec<VelocitySetting>);

impl FromToml for VelocityList {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let list = <Vec<Located<VelocitySetting>>>::read(found, report)?;
        refuse_repeats(&list, report);
        if let Some(more) = list.get(RULES_MAX) {
            report.add_error(&more.origin, format!("a route has at most {RULES_MAX} limits"));
            return None;
        }
        Some(Self(list.into_iter().map(|limit| limit.value).collect()))
    }

    fn schema() -> Value {
        let limit = VelocityTable::schema();
        json!({ "type": "array", "items": limit, "maxItems": RULES_MAX })
    }
}

/// `duplicates`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicatesSetting {
    /// How long an operation is remembered.
    pub window: Duration,
    /// What happens to a possible duplicate.
    pub action: LimitAction,
}

impl DuplicatesSetting {
    /// The rule of the layer.
    pub fn rule(&self) -> VelocityRule {
        VelocityRule::duplicates(self.window, self.action)
    }

    /// The table as it is written.
    pub(super) fn to_json(self) -> Value {
        let action = match self.action {
            LimitAction::Report => DuplicateAction::Report,
            LimitAction::Mark => DuplicateAction::Mark,
            LimitAction::Refuse => DuplicateAction::Refuse,
        };
        json!({ "window": time_text(self.window), "action": action.keyword() })
    }
}

impl FromToml for DuplicatesSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = DuplicatesTable::read(found, report)?;
        if table.window.is_absent() {
            let message = "`duplicates` needs a window: duplicates = { window = \"10m\" }";
            report.add_error(&origin(found), message);
        }
        let window = window(&table.window, report)?;
        if table.action.is_bad() {
            return None;
        }
        let action = match table.action.value().copied().unwrap_or_default() {
            DuplicateAction::Report => LimitAction::Report,
            DuplicateAction::Mark => LimitAction::Mark,
            DuplicateAction::Refuse => LimitAction::Refuse,
        };
        Some(Self { window, action })
    }

    fn schema() -> Value {
        DuplicatesTable::schema()
    }

    fn members() -> Vec<Setting> {
        DuplicatesTable::all()
    }
}

/// A window within the bounds of limits.
fn window(field: &TomlField<AnyDuration>, report: &mut DiagnosticReport<'_>) -> Option<Duration> {
    let Located { value, origin } = field.get()?;
    if !(WINDOW_MIN..=WINDOW_MAX).contains(&value.0) {
        report.add_error(origin, "a window is from 1s to 30d");
        return None;
    }
    Some(value.0)
}
