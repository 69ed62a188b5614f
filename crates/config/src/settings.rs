//! Tables of settings, each described once: name, documentation, type and default. The reader, the
//! JSON Schema and the commented default file are generated from them.

use serde_json::{Value, json};

use super::{
    read::{TomlValue, merge, wrong_type},
    report::{DiagnosticReport, ValueOrigin},
    suggest,
};

pub(super) use super::read::{DefaultValue, Setting};

/// The default of a setting.
pub(super) fn default(value: impl Into<Value>) -> DefaultValue {
    DefaultValue::Default(value.into())
}

/// A setting that has no default, and what it could be.
pub(super) fn example(value: impl Into<Value>) -> DefaultValue {
    DefaultValue::Example(value.into())
}

/// A setting that is a table of its own.
pub(super) fn section() -> DefaultValue {
    DefaultValue::Section
}

/// A table of settings.
pub(super) trait SettingsTable: Default {
    /// What the table is about.
    const ABOUT: &'static [&'static str];

    /// All settings, in the order in which they are explained.
    fn all() -> Vec<Setting>;

    /// Reads one setting; `false` if there is none of this name.
    fn set(&mut self, name: &str, found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>)
    -> bool;
}

/// Reads a table and reports unknown settings.
pub(super) fn table<T: SettingsTable>(
    found: &TomlValue<'_>,
    report: &mut DiagnosticReport<'_>,
) -> Option<T> {
    let names = || T::all().into_iter().map(|setting| setting.name).collect::<Vec<_>>();
    let Some(table) = found.get_ref().as_table() else {
        wrong_type(found, &format!("a table with {}", suggest::listed(&names())), report);
        return None;
    };
    let mut settings = T::default();
    for (name, value) in table {
        if !settings.set(name.get_ref(), value, report) {
            let hint = match report.expected_section(name.get_ref()) {
                Some(expected_section) => format!(" here; it belongs {expected_section}"),
                None => suggest::hint(name.get_ref(), names()),
            };
            let message = format!("unknown setting `{}`{hint}", name.get_ref());
            report.add_error(&ValueOrigin::File(name.span()), message);
        }
    }
    Some(settings)
}

/// The JSON Schema of a table.
pub(super) fn table_schema<T: SettingsTable>() -> Value {
    let mut properties = serde_json::Map::new();
    for setting in T::all() {
        let mut schema = setting.schema;
        merge(&mut schema, json!({ "description": prose(setting.doc) }));
        match setting.shown {
            DefaultValue::Default(value) => merge(&mut schema, json!({ "default": value })),
            DefaultValue::Example(value) => merge(&mut schema, json!({ "examples": [value] })),
            DefaultValue::Section => {}
        }
        properties.insert(setting.name.to_owned(), schema);
    }
    json!({
        "type": "object",
        "description": prose(T::ABOUT),
        "properties": properties,
        "additionalProperties": false,
    })
}

/// Lines as one.
fn prose(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Whether a table has no member at all.
pub(super) fn is_empty(found: &TomlValue<'_>) -> bool {
    found.get_ref().as_table().is_some_and(|table| table.is_empty())
}

/// Describes a table of settings: `name: how it is read = default(…)` or `= example(…)`.
macro_rules! settings {
    ($(#[doc = $about:literal])+ $table:ident {
        $($(#[doc = $doc:literal])+ $field:ident $(as $name:literal)?: $kind:ty = $shown:expr;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default)]
        pub(super) struct $table {
            $($(#[doc = $doc])+ pub(super) $field: $crate::read::TomlField<$kind>,)+
        }

        impl $table {
            /// The names of the settings that were written.
            #[allow(dead_code, reason = "only some tables need it")]
            pub(super) fn written(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if !self.$field.is_absent() {
                    names.push(settings!(@name $field $($name)?));
                })+
                names
            }
        }

        impl $crate::settings::SettingsTable for $table {
            const ABOUT: &'static [&'static str] = &[$($about),+];

            fn all() -> Vec<$crate::settings::Setting> {
                vec![$($crate::settings::Setting {
                    name: settings!(@name $field $($name)?),
                    doc: &[$($doc),+],
                    schema: <$kind as $crate::read::FromToml>::schema(),
                    shown: $shown,
                    members: <$kind as $crate::read::FromToml>::members(),
                }),+]
            }

            fn set(
                &mut self,
                name: &str,
                found: &$crate::read::TomlValue<'_>,
                report: &mut $crate::report::DiagnosticReport<'_>,
            ) -> bool {
                $(if name == settings!(@name $field $($name)?) {
                    self.$field = $crate::read::field(found, report);
                    return true;
                })+
                false
            }
        }

        impl $crate::read::FromToml for $table {
            fn read(
                found: &$crate::read::TomlValue<'_>,
                report: &mut $crate::report::DiagnosticReport<'_>,
            ) -> Option<Self> {
                $crate::settings::table(found, report)
            }

            fn schema() -> serde_json::Value {
                $crate::settings::table_schema::<Self>()
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
}
pub(super) use settings;
