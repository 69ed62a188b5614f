//! Stripe's API. Its SDKs make an `IdempotencyError` of status 400 only.

use super::{CodeCase, DialectData, KeyPlace, ProblemForm};
use crate::{ErrorType, Problem};

pub(super) static DATA: DialectData = DialectData {
    name: "stripe",
    key: KeyPlace::Header("idempotency-key"),
    key_bytes_max: None,
    media_type: "application/json",
    members: r#""error":{"type":$type,"code":$code,"message":$message}"#,
    error_type: ErrorType::as_str,
    code_case: CodeCase::Lower,
    // `Stripe-Should-Retry` is sent in every dialect.
    retry_header: None,
    problems: &[
        (Problem::KeyReused, ProblemForm::status(400)),
        (Problem::OutcomeUnknown, ProblemForm::status(400)),
        (
            Problem::InProgress,
            ProblemForm {
                status: Some(409),
                error_type: Some("invalid_request_error"),
                code: Some("idempotency_key_in_use"),
            },
        ),
    ],
};
