//! How keys and errors look to the clients of a provider's API.
//!
//! A dialect is data, one file each: where clients send the key and how long it may be, the status,
//! the type and the code of each problem, the other members of its document, and the header that
//! tells the SDKs of the provider whether to retry. It changes no decision: what runs, what is
//! recorded and what is replayed is the same in every dialect, and so is whether a client should
//! retry.
//!
//! Every document has the members of RFC 9457, whatever else it has, so that a Semel in front
//! recognizes the problem of one that speaks another dialect.

mod adyen;
mod ietf;
mod paypal;
mod square;
mod stripe;

use std::{fmt, sync::Arc};

use crate::{Problem, problem::ErrorType};

/// The dialect of a provider's API. The default is [`Dialect::IETF`].
///
/// ```
/// use semel_core::{Dialect, Problem};
///
/// let stripe = Dialect::from_name("stripe").unwrap();
/// assert_eq!(stripe.status(Problem::KeyReused), 400);
/// let conflict = stripe.with_status(Problem::KeyReused, 409)?;
/// assert_eq!(conflict.status(Problem::KeyReused), 409);
/// # Ok::<(), semel_core::dialect::StatusError>(())
/// ```
#[derive(Clone)]
pub struct Dialect {
    data: &'static DialectData,
    /// The statuses that a route changes, sorted.
    statuses: Option<Arc<[(Problem, u16)]>>,
}

/// What a dialect consists of.
struct DialectData {
    name: &'static str,
    key: KeyPlace,
    /// The longest key in bytes, where the provider allows less than
    /// [`KEY_BYTES_MAX`](crate::key::KEY_BYTES_MAX).
    key_bytes_max: Option<usize>,
    media_type: &'static str,
    /// The members of a document besides those of RFC 9457. `$type`, `$code` and `$message` stand
    /// for strings.
    members: &'static str,
    error_type: fn(ErrorType) -> &'static str,
    code_case: CodeCase,
    /// A header that is `true` or `false`, besides those of every dialect.
    retry_header: Option<&'static str>,
    /// The problems that differ from the default.
    problems: &'static [(Problem, ProblemForm)],
}

/// Where clients of the provider send the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPlace {
    /// In this header.
    Header(&'static str),
    /// In the JSON body, at this pointer.
    Json(&'static str),
}

/// How a code is made of the slug of a problem.
enum CodeCase {
    /// `key_reused`
    Lower,
    /// `KEY_REUSED`
    Upper,
}

/// What differs from the default in one problem.
struct ProblemForm {
    status: Option<u16>,
    error_type: Option<&'static str>,
    code: Option<&'static str>,
}

impl ProblemForm {
    const DEFAULT: Self = Self { status: None, error_type: None, code: None };

    const fn code(code: &'static str) -> Self {
        Self { code: Some(code), ..Self::DEFAULT }
    }

    const fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::DEFAULT }
    }
}

/// Why a problem cannot have a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// A client would take it for something else than an error.
    #[error("the status of a problem is from 400 to 599")]
    NoError,
    /// Only the service API sends this problem.
    #[error("only the service API sends this problem, and it has no dialect")]
    ServiceApi,
}

impl Dialect {
    /// The problem documents of RFC 9457, after draft-ietf-httpapi-idempotency-key-header.
    pub const IETF: Self = Self::of(&ietf::DATA);
    /// Stripe's API.
    pub const STRIPE: Self = Self::of(&stripe::DATA);
    /// PayPal's REST APIs.
    pub const PAYPAL: Self = Self::of(&paypal::DATA);
    /// Adyen's APIs.
    pub const ADYEN: Self = Self::of(&adyen::DATA);
    /// Square's APIs.
    pub const SQUARE: Self = Self::of(&square::DATA);

    /// Every dialect there is.
    pub const ALL: [Self; 5] = [Self::IETF, Self::STRIPE, Self::PAYPAL, Self::ADYEN, Self::SQUARE];

    const fn of(data: &'static DialectData) -> Self {
        Self { data, statuses: None }
    }

    /// The dialect of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.data.name
    }

    /// Where clients send the key, unless a route reads it elsewhere.
    #[must_use]
    pub const fn key(&self) -> KeyPlace {
        self.data.key
    }

    /// The longest key in bytes, where the provider allows less than
    /// [`KEY_BYTES_MAX`](crate::key::KEY_BYTES_MAX).
    #[must_use]
    pub const fn key_bytes_max(&self) -> Option<usize> {
        self.data.key_bytes_max
    }

    /// This dialect with another status for one problem.
    ///
    /// # Errors
    ///
    /// If the status is no error, or no request with a key can meet the problem.
    pub fn with_status(self, problem: Problem, status: u16) -> Result<Self, StatusError> {
        if !matches!(status, 400..=599) {
            return Err(StatusError::NoError);
        }
        if matches!(problem, Problem::ClaimMalformed | Problem::ClaimLost | Problem::ResultDiffers)
        {
            return Err(StatusError::ServiceApi);
        }
        let known = self.statuses().iter().filter(|(known, _)| *known != problem).copied();
        let mut statuses: Vec<_> = known.chain([(problem, status)]).collect();
        statuses.sort_unstable();
        Ok(Self { statuses: Some(statuses.into()), ..self })
    }

    /// The statuses that [`Dialect::with_status`] has changed, in the order of the problems.
    #[must_use]
    pub fn statuses(&self) -> &[(Problem, u16)] {
        self.statuses.as_deref().unwrap_or_default()
    }

    /// The HTTP status that a problem is sent with.
    #[must_use]
    pub fn status(&self, problem: Problem) -> u16 {
        let changed = self.statuses().iter().find(|(known, _)| *known == problem);
        let changed = changed.map(|(_, status)| *status);
        changed.or(self.form(problem).status).unwrap_or_else(|| problem.status())
    }

    /// The media type of its documents.
    #[must_use]
    pub const fn media_type(&self) -> &'static str {
        self.data.media_type
    }

    /// A header of the provider that says whether to retry, `true` or `false`, besides
    /// `x-should-retry` and `stripe-should-retry`.
    #[must_use]
    pub const fn retry_header(&self) -> Option<&'static str> {
        self.data.retry_header
    }

    /// The document of a problem, with a more precise detail where there is one.
    ///
    /// ```
    /// use semel_core::{Dialect, Problem};
    ///
    /// let document = Dialect::STRIPE.document(Problem::InProgress, None);
    /// assert!(document.starts_with(r#"{"type":"urn:semel:problem:in-progress","title":"#));
    /// assert!(document.contains(r#""code":"idempotency_key_in_use","#));
    /// ```
    #[must_use]
    pub fn document(&self, problem: Problem, detail: Option<&str>) -> String {
        let detail = detail.unwrap_or_else(|| problem.detail());
        let form = self.form(problem);
        let error_type =
            form.error_type.unwrap_or_else(|| (self.data.error_type)(problem.error_type()));
        let mut out = String::with_capacity(1024);
        out.push_str("{\"type\":");
        put_string(&mut out, &problem.type_uri());
        out.push_str(",\"title\":");
        put_string(&mut out, problem.title());
        out.push_str(",\"status\":");
        out.push_str(&self.status(problem).to_string());
        out.push_str(",\"detail\":");
        put_string(&mut out, detail);
        out.push(',');
        let mut rest = self.data.members;
        while let Some((before, from)) = rest.split_once('$') {
            out.push_str(before);
            let end = from.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(from.len());
            let (name, after) = from.split_at(end);
            match name {
                "type" => put_string(&mut out, error_type),
                "code" => put_string(&mut out, &self.code(problem)),
                _ => put_string(&mut out, detail),
            }
            rest = after;
        }
        out.push_str(rest);
        out.push('}');
        out
    }

    fn code(&self, problem: Problem) -> String {
        match (self.form(problem).code, &self.data.code_case) {
            (Some(code), _) => code.to_owned(),
            (None, CodeCase::Lower) => problem.code(),
            (None, CodeCase::Upper) => problem.code().to_ascii_uppercase(),
        }
    }

    fn form(&self, problem: Problem) -> &'static ProblemForm {
        let form = self.data.problems.iter().find(|(known, _)| *known == problem);
        form.map_or(&ProblemForm::DEFAULT, |(_, form)| form)
    }
}

impl Default for Dialect {
    fn default() -> Self {
        Self::IETF
    }
}

impl PartialEq for Dialect {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.statuses() == other.statuses()
    }
}

impl Eq for Dialect {}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialect").field(&self.name()).field(&self.statuses()).finish()
    }
}

fn put_string(out: &mut String, text: &str) {
    use fmt::Write as _;

    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests;
