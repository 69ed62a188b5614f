//! A text with placeholders for captured values: `/v1/charges?order={order}`.

use std::fmt;

/// A text with placeholders for values by name.
///
/// ```
/// use semel_core::reconcile::Template;
///
/// let template: Template = "/v1/charges?order={order}".parse()?;
/// let values = [("order".to_owned(), "a&b=/7".to_owned())];
/// assert_eq!(template.url(&values).as_deref(), Some("/v1/charges?order=a%26b%3D%2F7"));
/// assert_eq!(template.text(&values).as_deref(), Some("/v1/charges?order=a&b=/7"));
/// assert_eq!(template.url(&[]), None);
/// # Ok::<(), semel_core::reconcile::TemplateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Literal(String),
    Placeholder(String),
}

/// A brace without its partner, or a placeholder without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a placeholder is a name in braces, such as {{order}}")]
pub struct TemplateError;

impl std::str::FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, tail)) = rest.split_once('{') {
            let (name, tail) = tail.split_once('}').ok_or(TemplateError)?;
            let is_name =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            if name.is_empty() || !name.bytes().all(is_name) || literal.contains('}') {
                return Err(TemplateError);
            }
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(literal.to_owned()));
            }
            parts.push(TemplatePart::Placeholder(name.to_owned()));
            rest = tail;
        }
        if rest.contains('}') {
            return Err(TemplateError);
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Literal(rest.to_owned()));
        }
        Ok(Self(parts))
    }
}

impl Template {
    /// The names of its placeholders.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Placeholder(name) => Some(&**name),
            TemplatePart::Literal(_) => None,
        })
    }

    /// The text with the values as they are; `None` if one is missing.
    #[must_use]
    pub fn text(&self, values: &[(String, String)]) -> Option<String> {
        self.fill(values, |value, out| {
            out.push_str(value);
            true
        })
    }

    /// The text with the values percent-encoded, as one segment of a path or a part of a query.
    /// `None` if a value is missing or empty, or is a segment that leads to another path.
    #[must_use]
    pub fn url(&self, values: &[(String, String)]) -> Option<String> {
        self.fill(values, |value, out| {
            for byte in value.bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    out.push(char::from(byte));
                } else {
                    out.push_str(&format!("%{byte:02X}"));
                }
            }
            !value.is_empty() && !matches!(value, "." | "..")
        })
    }

    fn fill(
        &self,
        values: &[(String, String)],
        push: impl Fn(&str, &mut String) -> bool,
    ) -> Option<String> {
        let mut out = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Literal(text) => out.push_str(text),
                TemplatePart::Placeholder(name) => {
                    let (_, value) = values.iter().find(|(known, _)| known == name)?;
                    if !push(value, &mut out) {
                        return None;
                    }
                }
            }
        }
        Some(out)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            TemplatePart::Literal(text) => f.write_str(text),
            TemplatePart::Placeholder(name) => write!(f, "{{{name}}}"),
        })
    }
}
