//! Tables of settings, each described once: names, what they mean, how they are read, what they are
//! by default. The reader, the JSON Schema and the commented default file all come from that.

use serde_json::{Value, json};

use super::{
    raw,
    read::{Found, merge, wrong_type},
    report::{Place, Report},
    spelling,
};

/// What a setting is if nobody writes it.
#[derive(Clone, Debug)]
pub(super) enum Shown {
    /// This.
    Default(Value),
    /// Nothing; it could be this.
    Example(Value),
    /// It is a table of its own.
    Section,
}

/// The default of a setting.
pub(super) fn default(value: impl Into<Value>) -> Shown {
    Shown::Default(value.into())
}

/// A setting that has no default, and what it could be.
pub(super) fn example(value: impl Into<Value>) -> Shown {
    Shown::Example(value.into())
}

/// A setting that is a table of its own.
pub(super) fn section() -> Shown {
    Shown::Section
}

/// One setting, for whoever explains them all.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// What it means, in lines.
    pub(super) doc: &'static [&'static str],
    pub(super) schema: Value,
    pub(super) shown: Shown,
    pub(super) members: Vec<Self>,
}

impl Setting {
    /// What it means, in lines without the space before each.
    pub(super) fn doc(&self) -> impl Iterator<Item = &'static str> {
        self.doc.iter().map(|line| line.trim())
    }
}

/// A table of settings.
pub(super) trait Settings: Default {
    /// What the table is about.
    const ABOUT: &'static [&'static str];

    /// All settings, in the order in which they are explained.
    fn all() -> Vec<Setting>;

    /// Reads one setting; `false` if there is none of this name.
    fn set(&mut self, name: &str, found: &Found<'_>, report: &mut Report<'_>) -> bool;
}

/// Reads a table, noting what it does not know.
pub(super) fn table<T: Settings>(found: &Found<'_>, report: &mut Report<'_>) -> Option<T> {
    let names = || T::all().into_iter().map(|setting| setting.name).collect::<Vec<_>>();
    let Some(table) = found.get_ref().as_table() else {
        wrong_type(found, &format!("a table with {}", spelling::listed(&names())), report);
        return None;
    };
    let mut settings = T::default();
    for (name, value) in table {
        if !settings.set(name.get_ref(), value, report) {
            let hint = match raw::home(name.get_ref()) {
                Some(home) => format!(" here; it belongs {home}"),
                None => spelling::hint(name.get_ref(), names()),
            };
            let message = format!("unknown setting `{}`{hint}", name.get_ref());
            report.note(&Place::File(name.span()), message);
        }
    }
    Some(settings)
}

/// The JSON Schema of a table.
pub(super) fn table_schema<T: Settings>() -> Value {
    let mut properties = serde_json::Map::new();
    for setting in T::all() {
        let mut schema = setting.schema;
        merge(&mut schema, json!({ "description": prose(setting.doc) }));
        match setting.shown {
            Shown::Default(value) => merge(&mut schema, json!({ "default": value })),
            Shown::Example(value) => merge(&mut schema, json!({ "examples": [value] })),
            Shown::Section => {}
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
pub(super) fn is_empty(found: &Found<'_>) -> bool {
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
            $($(#[doc = $doc])+ pub(super) $field: $crate::config::read::Slot<$kind>,)+
        }

        impl $table {
            /// The names of the settings that were written.
            #[allow(dead_code, reason = "not every table is asked")]
            pub(super) fn written(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if !self.$field.is_absent() {
                    names.push(settings!(@name $field $($name)?));
                })+
                names
            }
        }

        impl $crate::config::settings::Settings for $table {
            const ABOUT: &'static [&'static str] = &[$($about),+];

            fn all() -> Vec<$crate::config::settings::Setting> {
                vec![$($crate::config::settings::Setting {
                    name: settings!(@name $field $($name)?),
                    doc: &[$($doc),+],
                    schema: <$kind as $crate::config::read::Read>::schema(),
                    shown: $shown,
                    members: <$kind as $crate::config::read::Read>::members(),
                }),+]
            }

            fn set(
                &mut self,
                name: &str,
                found: &$crate::config::read::Found<'_>,
                report: &mut $crate::config::report::Report<'_>,
            ) -> bool {
                $(if name == settings!(@name $field $($name)?) {
                    self.$field = $crate::config::read::slot(found, report);
                    return true;
                })+
                false
            }
        }

        impl $crate::config::read::Read for $table {
            fn read(
                found: &$crate::config::read::Found<'_>,
                report: &mut $crate::config::report::Report<'_>,
            ) -> Option<Self> {
                $crate::config::settings::table(found, report)
            }

            fn schema() -> serde_json::Value {
                $crate::config::settings::table_schema::<Self>()
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
}
pub(super) use settings;
