//! The errors a client can meet, as RFC 9457 problem documents.
//!
//! Each has its own `type` (`urn:semel:problem:<slug>`), which is what a program should look at,
//! and a
//! `detail` that tells a person what to do.

use std::fmt::Write;

use crate::Verdict;

macro_rules! problems {
    ($(
        $(#[$doc:meta])*
        $name:ident = $status:literal $slug:literal, $title:literal, $detail:literal;
    )+) => {
        /// An error a client can meet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Problem {
            $($(#[$doc])* $name,)+
        }

        impl Problem {
            /// Every problem there is.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The last part of its `type`.
            #[must_use]
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$name => $slug,)+ }
            }

            /// The HTTP status it is sent with.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// What it is called; the same at every occurrence.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// What to do about it, where nothing more precise is known.
            #[must_use]
            pub const fn detail(self) -> &'static str {
                match self { $(Self::$name => $detail,)+ }
            }
        }
    };
}

problems! {
    /// The route requires a key.
    KeyMissing = 400 "key-missing", "Idempotency key is missing",
        "This operation needs an Idempotency-Key header. Send a new random key (a UUID, \
         say) with each new operation, and the same key with every retry of it.";
    /// The key cannot be read.
    KeyMalformed = 400 "key-malformed", "Idempotency key is malformed",
        "Send exactly one Idempotency-Key of 1 to 255 visible ASCII characters, with or \
         without double quotes. Nothing was done.";
    /// The body is not what it declares to be.
    BodyMalformed = 400 "body-malformed", "Request body is malformed",
        "The body is not valid for its Content-Type, or a JSON object names a member twice. \
         Nothing was done; correct the body and send it again.";
    /// A webhook whose signature does not verify.
    SignatureInvalid = 401 "signature-invalid", "Signature does not verify",
        "The signature does not match the body, or its time stamp is too old. Nothing was \
         recorded; sign the body again and send it.";
    /// The caller rule found nobody.
    CallerUnidentified = 403 "caller-unidentified", "Caller is not identified",
        "No rule of this route tells who sent the request, so its key cannot be kept apart \
         from other callers' keys. Send the credential that the route expects.";
    /// The first attempt is still running.
    InProgress = 409 "in-progress", "First request is still in progress",
        "A request with this key is being processed. Retry with the same key after the time \
         in Retry-After to get its answer.";
    /// The outcome is held.
    OutcomeUnknown = 409 "outcome-unknown", "Outcome is unknown",
        "A request with this key was begun, and nobody knows whether it took effect. It \
         will not run again until an operator resolves it. Do not repeat the operation \
         under another key.";
    /// The outcome could not be recorded; told to the client whose request ran.
    OutcomeUnrecorded = 504 "outcome-unknown", "Outcome is unknown",
        "The request was begun, but its outcome could not be recorded. Retry with the same \
         key to learn what became of it. Do not repeat the operation under another key.";
    /// The same operation under another key.
    PossibleDuplicate = 409 "possible-duplicate", "Possible duplicate",
        "The same operation was sent under another key a short time ago. If a second one is \
         meant, say so as the route's documentation describes.";
    /// It ran, but its answer was not kept.
    ResponseNotRetained = 410 "response-not-retained", "Response was not retained",
        "The operation ran once and will not run again, but its answer was too large or a \
         stream, so it cannot be replayed. Read the result from the resource itself.";
    /// A guarded request over its limit.
    BodyTooLarge = 413 "body-too-large", "Request body is too large",
        "The body is larger than this route guards. Nothing was done; send less.";
    /// Another fingerprint under this key.
    KeyReused = 422 "key-reused", "Idempotency key was used for another request",
        "This key belongs to an earlier request with another method, path or body. Nothing \
         was done; use a new key for a new operation.";
    /// `on_unknown = "fail"` made this the final answer.
    OperationFailed = 500 "operation-failed", "Operation failed",
        "The operation was begun and its outcome was not learnt; by this route's policy it \
         counts as failed. This is the final answer under this key.";
    /// Not a key that this server issued.
    TokenInvalid = 422 "token-invalid", "Idempotency key was not issued here",
        "This route takes only keys that the server issued to you and that have not \
         expired. Ask for a new one.";
    /// The velocity limit.
    RateLimited = 429 "rate-limited", "Too many operations",
        "The limit of operations was reached. Nothing was done; retry with the same key \
         after the time in Retry-After.";
    /// Nothing was sent.
    UpstreamUnreachable = 502 "upstream-unreachable", "Service could not be reached",
        "The request was not sent to the service. Retrying with the same key is safe.";
    /// Fail closed.
    StoreUnavailable = 503 "store-unavailable", "Idempotency store is unavailable",
        "Without its store this server cannot tell a retry from a new request, so nothing \
         was done. Retry with the same key after the time in Retry-After.";
    /// The caller's or the process's cap.
    TooManyInFlight = 503 "too-many-in-flight", "Too many requests in flight",
        "Too many requests are being processed. Nothing was done; retry with the same key \
         after the time in Retry-After.";
    /// It arrived after its own deadline.
    DeadlineExceeded = 504 "deadline-exceeded", "Deadline has passed",
        "The request arrived after its own deadline. Nothing was done.";
    /// Sent, no answer.
    UpstreamTimeout = 504 "upstream-timeout", "Service did not answer",
        "The request was sent, but no answer came, so its outcome is unknown. Retry with \
         the same key to learn what became of it. Do not repeat the operation under another \
         key.";
}

impl Problem {
    /// The `type` of its document.
    #[must_use]
    pub fn type_uri(self) -> String {
        format!("urn:semel:problem:{}", self.slug())
    }

    /// Whether a client may simply try again later, so that `Retry-After` belongs beside it.
    #[must_use]
    pub const fn retry_later(self) -> bool {
        matches!(
            self,
            Self::InProgress | Self::RateLimited | Self::StoreUnavailable | Self::TooManyInFlight
        )
    }

    /// The problem whose document has this status and this last part of its `type`, so that one
    /// Semel in front of another understands it.
    #[must_use]
    pub fn from_slug(slug: &str, status: u16) -> Option<Self> {
        let mut named = Self::ALL.iter().copied().filter(|problem| problem.slug() == slug);
        let first = named.next()?;
        Some(named.find(|problem| problem.status() == status).unwrap_or(first))
    }

    /// What an answer that is this problem makes of the record of whoever asked: most mean that
    /// nothing was done.
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::ResponseNotRetained | Self::OperationFailed => Verdict::Completed,
            Self::OutcomeUnknown | Self::OutcomeUnrecorded | Self::UpstreamTimeout => {
                Verdict::Unknown
            }
            Self::KeyMissing
            | Self::KeyMalformed
            | Self::BodyMalformed
            | Self::SignatureInvalid
            | Self::CallerUnidentified
            | Self::InProgress
            | Self::PossibleDuplicate
            | Self::BodyTooLarge
            | Self::KeyReused
            | Self::TokenInvalid
            | Self::RateLimited
            | Self::UpstreamUnreachable
            | Self::StoreUnavailable
            | Self::TooManyInFlight
            | Self::DeadlineExceeded => Verdict::Retry,
        }
    }

    /// The `application/problem+json` document, with a more precise detail where there is one.
    ///
    /// ```
    /// use semel_core::Problem;
    ///
    /// let document = Problem::KeyMissing.document(None);
    /// assert!(document.starts_with(r#"{"type":"urn:semel:problem:key-missing","title":"#));
    /// ```
    #[must_use]
    pub fn document(self, detail: Option<&str>) -> String {
        let mut out = String::with_capacity(512);
        out.push_str("{\"type\":\"");
        out.push_str(&self.type_uri());
        out.push_str("\",\"title\":");
        put_string(&mut out, self.title());
        out.push_str(",\"status\":");
        out.push_str(&self.status().to_string());
        out.push_str(",\"detail\":");
        put_string(&mut out, detail.unwrap_or(self.detail()));
        out.push('}');
        out
    }
}

fn put_string(out: &mut String, text: &str) {
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
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_slug_names_one_problem_except_the_unknown_outcome() {
        let mut slugs: BTreeMap<&str, Vec<Problem>> = BTreeMap::new();
        for problem in Problem::ALL {
            slugs.entry(problem.slug()).or_default().push(*problem);
        }
        assert_eq!(
            slugs.remove("outcome-unknown"),
            Some(vec![Problem::OutcomeUnknown, Problem::OutcomeUnrecorded])
        );
        assert!(slugs.values().all(|same| same.len() == 1));
    }

    #[test]
    fn a_problem_is_found_by_its_slug_and_status() {
        for problem in Problem::ALL {
            assert_eq!(Problem::from_slug(problem.slug(), problem.status()), Some(*problem));
        }
        assert_eq!(Problem::from_slug("in-progress", 200), Some(Problem::InProgress));
        assert_eq!(Problem::from_slug("no-such", 409), None);
    }

    #[test]
    fn a_detail_is_escaped() {
        let document = Problem::BodyMalformed.document(Some("a \"b\" \\ \n"));
        assert!(document.ends_with(r#""status":400,"detail":"a \"b\" \\ \u000a"}"#), "{document}");
    }
}
