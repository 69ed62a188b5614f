//! Adyen's APIs. What the provider documents: the key, its limit, two codes and `transient-error`.

use super::{CodeCase, DialectData, KeyPlace, ProblemForm};
use crate::{ErrorType, Problem};

pub(super) static DATA: DialectData = DialectData {
    name: "adyen",
    key: KeyPlace::Header("idempotency-key"),
    key_bytes_max: Some(64),
    media_type: "application/json",
    members: r#""errorCode":$code,"message":$message,"errorType":$type"#,
    error_type,
    code_case: CodeCase::Lower,
    retry_header: Some("transient-error"),
    problems: &[
        (Problem::InProgress, ProblemForm::code("704")),
        (Problem::StoreUnavailable, ProblemForm::code("703")),
    ],
};

const fn error_type(kind: ErrorType) -> &'static str {
    match kind {
        ErrorType::Idempotency | ErrorType::InvalidRequest => "validation",
        ErrorType::Authentication => "security",
        ErrorType::RateLimit | ErrorType::Api => "internal",
    }
}
