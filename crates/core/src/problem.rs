//! The errors a client can meet, as RFC 9457 problem documents.
//!
//! Each has its own `type` (`urn:semel:problem:<slug>`), which is what a program should look at,
//! and a `detail` that tells a person what to do.
//!
//! The table below says everything about a problem that does not depend on the request or on the
//! [dialect](crate::dialect), and
//! [`Problem::retry_after`] is the one place that decides whether a client should retry.

use std::time::Duration;

use crate::{
    OnUnknown, Verdict,
    canonical::{self, Pointer, Value},
};

/// What the `type` of every problem begins with.
const TYPE_PREFIX: &str = "urn:semel:problem:";

/// How long a client should wait before it retries.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a client should wait where a quota is used up, which does not change within a second.
const QUOTA_RETRY_AFTER: Duration = Duration::from_secs(10);

/// The `error.type` of a problem document, in the vocabulary of Stripe's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorType {
    /// `idempotency_error`: a problem of the key, or of what is recorded under it.
    Idempotency,
    /// `rate_limit_error`: status 429.
    RateLimit,
    /// `authentication_error`: statuses 401 and 403.
    Authentication,
    /// `invalid_request_error`: the body or another part of the request cannot be used.
    InvalidRequest,
    /// `api_error`: the server or the service behind it failed, statuses 500 to 504.
    Api,
}

impl ErrorType {
    /// The type for an error that is no [`Problem`], by its HTTP status.
    #[must_use]
    pub const fn for_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::Authentication,
            429 => Self::RateLimit,
            500..=599 => Self::Api,
            _ => Self::InvalidRequest,
        }
    }

    /// The text in the document.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idempotency => "idempotency_error",
            Self::RateLimit => "rate_limit_error",
            Self::Authentication => "authentication_error",
            Self::InvalidRequest => "invalid_request_error",
            Self::Api => "api_error",
        }
    }
}

/// What the advice about retrying depends on besides the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryContext {
    /// Whether a retry after an unknown outcome reaches the service again, as it should.
    reruns_unknown: bool,
    /// When the upstream is asked next what became of the operation; `None` if it is not asked.
    next_read: Option<Duration>,
}

impl RetryContext {
    /// A guarded request, on a route with this `on_unknown`.
    #[must_use]
    pub const fn guarded(on_unknown: OnUnknown) -> Self {
        let reruns_unknown = matches!(on_unknown, OnUnknown::Rerun);
        Self { reruns_unknown, next_read: None }
    }

    /// A request that is not guarded. Nothing stops its retry from running a second time, so after
    /// an unknown outcome a retry is right only if the method is idempotent by itself.
    #[must_use]
    pub const fn unguarded(idempotent_method: bool) -> Self {
        Self { reruns_unknown: idempotent_method, next_read: None }
    }

    /// The same on a route that asks the upstream what became of an operation whose outcome is
    /// unknown, next after this time; `None` if it asks no more.
    #[must_use]
    pub const fn with_next_read(mut self, next_read: Option<Duration>) -> Self {
        self.next_read = next_read;
        self
    }
}

/// When a client should retry.
enum Retry {
    Never,
    /// After [`RETRY_AFTER`].
    Later,
    /// After [`QUOTA_RETRY_AFTER`].
    Quota,
    /// Where the upstream will be asked what became of the operation, after that.
    AfterRead,
    /// Where [`RetryContext::reruns_unknown`], or as [`Retry::AfterRead`].
    IfRerun,
}

macro_rules! problems {
    ($(
        $(#[$doc:meta])*
        $name:ident = $status:literal $slug:literal $error_type:ident $retry:ident,
            $title:literal, $detail:literal;
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

            /// The `error.type` of its document.
            #[must_use]
            pub const fn error_type(self) -> ErrorType {
                match self { $(Self::$name => ErrorType::$error_type,)+ }
            }

            const fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)+ }
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
    KeyMissing = 400 "key-missing" Idempotency Never, "Idempotency key is missing",
        "This operation needs an Idempotency-Key header. Send a new random key (a UUID, \
         say) with each new operation, and the same key with every retry of it.";
    /// The key cannot be read.
    KeyMalformed = 400 "key-malformed" Idempotency Never, "Idempotency key is malformed",
        "Send exactly one Idempotency-Key of 1 to 255 visible ASCII characters, with or \
         without double quotes. Nothing was done.";
    /// A deadline header cannot be read.
    DeadlineMalformed = 400 "deadline-malformed" InvalidRequest Never, "Deadline is malformed",
        "A header that states the deadline of this request cannot be read. Nothing was done; \
         correct the header and send the request again.";
    /// A claim of the service API does not decrypt.
    ClaimMalformed = 400 "claim-malformed" InvalidRequest Never, "Claim is malformed",
        "The claim was not issued by this service, or it was altered. Nothing was done; send \
         the claim exactly as it was issued.";
    /// The body is not what it declares to be.
    BodyMalformed = 400 "body-malformed" InvalidRequest Never, "Request body is malformed",
        "The body is not valid for its Content-Type, or a JSON object names a member twice. \
         Nothing was done; correct the body and send it again.";
    /// A webhook whose signature does not verify.
    SignatureInvalid = 401 "signature-invalid" Authentication Never, "Signature does not verify",
        "The signature does not match the body, or its time stamp is too old. Nothing was \
         recorded; sign the body again and send it.";
    /// No valid token under a rule that verifies tokens.
    CallerUnverified = 401 "caller-unverified" Authentication Never, "Caller is not verified",
        "The request has no token, or its token is expired, not yet valid or badly signed. \
         Nothing was done; get a new token and send the request again with the same key.";
    /// The caller rule found no caller.
    CallerUnidentified = 403 "caller-unidentified" Authentication Never,
        "Caller is not identified",
        "No rule of this route tells who sent the request, so its key cannot be kept apart \
         from other callers' keys. Send the credential that the route expects.";
    /// The fence of a claim of the service API is no longer the claimant's.
    ClaimLost = 409 "claim-lost" Idempotency Never, "Claim is lost",
        "The lease of this claim expired and the record has another owner by now. The call \
         changed nothing; claim the key again to learn what became of the operation.";
    /// Another result under the same fence.
    ResultDiffers = 409 "result-differs" Idempotency Never, "Result differs",
        "This claim was completed with another result, which stays recorded. Complete a claim \
         once, and repeat the call only with the same bytes.";
    /// The first attempt is still running.
    InProgress = 409 "in-progress" Idempotency Later, "First request is still in progress",
        "A request with this key is being processed. Retry with the same key after the time \
         in Retry-After to get its answer.";
    /// The outcome is held.
    OutcomeUnknown = 423 "outcome-unknown" Idempotency AfterRead, "Outcome is unknown",
        "A request with this key was started, and whether it took effect is unknown. It \
         will not run again until that is resolved. Do not repeat the operation under \
         another key.";
    /// The outcome could not be recorded; sent to the client whose request ran.
    OutcomeUnrecorded = 504 "outcome-unknown" Api Later, "Outcome is unknown",
        "The request was begun, but its outcome could not be recorded. Retry with the same \
         key to learn what became of it. Do not repeat the operation under another key.";
    /// The same operation under another key.
    PossibleDuplicate = 409 "possible-duplicate" Idempotency Never, "Possible duplicate",
        "The same operation was sent under another key a short time ago. If a second one is \
         meant, say so as the route's documentation describes.";
    /// It ran, but its answer was not kept.
    ResponseNotRetained = 410 "response-not-retained" Idempotency Never,
        "Response was not retained",
        "The operation ran once and will not run again, but its answer is not stored: it was too \
         large or a stream, it broke off, or the route does not store it. Read the result from the \
         resource itself.";
    /// A guarded request over its limit.
    BodyTooLarge = 413 "body-too-large" InvalidRequest Never, "Request body is too large",
        "The body is larger than this route guards. Nothing was done; send less.";
    /// Another fingerprint under this key.
    KeyReused = 422 "key-reused" Idempotency Never,
        "Idempotency key was used for another request",
        "This key belongs to an earlier request with another method, path or body. Nothing \
         was done; use a new key for a new operation.";
    /// `on_unknown = "fail"` made this the final answer.
    OperationFailed = 500 "operation-failed" Api Never, "Operation failed",
        "The operation was begun and its outcome was not learnt; by this route's policy it \
         counts as failed. This is the final answer under this key.";
    /// Not a key that this server issued.
    TokenInvalid = 422 "token-invalid" Idempotency Never, "Idempotency key was not issued here",
        "This route takes only keys that the server issued to you and that have not \
         expired. Ask for a new one.";
    /// The velocity limit.
    RateLimited = 429 "rate-limited" RateLimit Later, "Too many operations",
        "The limit of operations was reached. Nothing was done; retry with the same key \
         after the time in Retry-After.";
    /// The caller's quota of records, or of held ones, is used up.
    TooManyRecords = 429 "too-many-records" RateLimit Quota, "Too many idempotency keys",
        "As many keys of this caller are remembered as it may have, or too many of its \
         operations have an unknown outcome. Nothing was done, and keys that are known already \
         still work. Retry with the same key once older keys have expired, or held ones were \
         resolved.";
    /// Nothing was sent.
    UpstreamUnreachable = 502 "upstream-unreachable" Api Later, "Service could not be reached",
        "The request was not sent to the service, so nothing was done. Retry it, with the same \
         key if it has one.";
    /// There is no key to verify a token with.
    CallerUnavailable = 503 "caller-unavailable" Api Later, "Caller cannot be verified now",
        "The keys that verify tokens cannot be fetched at the moment, so nothing was done. \
         Retry with the same key after the time in Retry-After.";
    /// Fail closed.
    StoreUnavailable = 503 "store-unavailable" Api Later, "Idempotency store is unavailable",
        "Without its store this server cannot tell a retry from a new request, so nothing \
         was done. Retry with the same key after the time in Retry-After.";
    /// The quota of the store is used up.
    StoreFull = 503 "store-full" Api Quota, "Idempotency store is full",
        "The store has no room for a new key, so nothing was done. Keys that are known already \
         still work. Retry with the same key after the time in Retry-After.";
    /// The caller's or the process's cap.
    TooManyInFlight = 503 "too-many-in-flight" Api Later, "Too many requests in flight",
        "Too many requests are being processed. Nothing was done; retry with the same key \
         after the time in Retry-After.";
    /// Its deadline passed before the operation began.
    DeadlineExceeded = 504 "deadline-exceeded" Api Never, "Deadline has passed",
        "The deadline of this request passed before the operation began. Nothing was done.";
    /// Its deadline passed before the answer was there; sent to a client whose operation may run
    /// on.
    DeadlineExceededInFlight = 504 "deadline-exceeded" Api Later, "Deadline has passed",
        "The deadline of this request passed before its answer was there. The operation is not \
         cancelled: retry with the same key to get its answer. Do not repeat it under another key.";
    /// Sent, no answer.
    UpstreamTimeout = 504 "upstream-timeout" Api IfRerun, "Service did not answer",
        "The request was sent, but no answer came, so its outcome is unknown. If it has a key, \
         do not repeat the operation under another one: a later request with the same key tells \
         what became of it.";
}

impl Problem {
    /// The `type` of its document.
    #[must_use]
    pub fn type_uri(self) -> String {
        format!("{TYPE_PREFIX}{}", self.slug())
    }

    /// The `error.code` of its document: the slug with underscores.
    #[must_use]
    pub fn code(self) -> String {
        self.slug().replace('-', "_")
    }

    /// How long the client should wait before it sends the same request again; `None` if it should
    /// not send it again.
    #[must_use]
    pub const fn retry_after(self, context: RetryContext) -> Option<Duration> {
        match self.retry() {
            Retry::Later => Some(RETRY_AFTER),
            Retry::Quota => Some(QUOTA_RETRY_AFTER),
            Retry::IfRerun if context.reruns_unknown => Some(RETRY_AFTER),
            Retry::IfRerun | Retry::AfterRead => context.next_read,
            Retry::Never => None,
        }
    }

    /// Whether the client should send the same request again.
    #[must_use]
    pub const fn should_retry(self, context: RetryContext) -> bool {
        self.retry_after(context).is_some()
    }

    /// The problem with this slug; the first of two that share it, which have the same
    /// [verdict](Self::verdict).
    #[must_use]
    pub fn with_slug(slug: &str) -> Option<Self> {
        Self::ALL.iter().find(|problem| problem.slug() == slug).copied()
    }

    /// Whether `body` is a document of this problem that states this status, in any dialect.
    #[must_use]
    pub fn is_document(self, status: u16, body: &[u8]) -> bool {
        let pointers = ["/type", "/status"].map(Pointer::parse);
        let [Ok(type_uri), Ok(stated)] = pointers else { return false };
        match canonical::find_all(body, [&type_uri, &stated]).as_deref() {
            Ok([Some(Value::Text(uri)), Some(Value::Number(stated))]) => {
                uri.strip_prefix(TYPE_PREFIX) == Some(self.slug()) && *stated == status.to_string()
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// The verdict on a request whose upstream answers with this problem: most mean that
    /// nothing was done. The problems of a claim come from the service API, which knows nothing
    /// about the request that is being answered.
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::ResponseNotRetained | Self::OperationFailed => Verdict::Completed,
            Self::OutcomeUnknown
            | Self::OutcomeUnrecorded
            | Self::UpstreamTimeout
            // The two share slug and status, so the document proves nothing about the operation.
            | Self::DeadlineExceeded
            | Self::DeadlineExceededInFlight
            | Self::ClaimMalformed
            | Self::ClaimLost
            | Self::ResultDiffers => Verdict::Unknown,
            Self::KeyMissing
            | Self::KeyMalformed
            | Self::DeadlineMalformed
            | Self::BodyMalformed
            | Self::SignatureInvalid
            | Self::CallerUnverified
            | Self::CallerUnidentified
            | Self::InProgress
            | Self::PossibleDuplicate
            | Self::BodyTooLarge
            | Self::KeyReused
            | Self::TokenInvalid
            | Self::RateLimited
            | Self::TooManyRecords
            | Self::UpstreamUnreachable
            | Self::CallerUnavailable
            | Self::StoreUnavailable
            | Self::StoreFull
            | Self::TooManyInFlight => Verdict::Retry,
        }
    }
}

#[cfg(test)]
mod tests;
