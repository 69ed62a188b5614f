//! Square's APIs, with the key in the body. The limit of the key is that of `CreatePayment`.

use super::{CodeCase, DialectData, KeyPlace, ProblemForm};
use crate::{ErrorType, Problem};

pub(super) static DATA: DialectData = DialectData {
    name: "square",
    key: KeyPlace::Json("/idempotency_key"),
    key_bytes_max: Some(45),
    media_type: "application/json",
    members: r#""errors":[{"category":$type,"code":$code,"detail":$message}]"#,
    error_type,
    code_case: CodeCase::Upper,
    retry_header: None,
    problems: &[(
        Problem::KeyReused,
        ProblemForm {
            status: Some(400),
            code: Some("IDEMPOTENCY_KEY_REUSED"),
            ..ProblemForm::DEFAULT
        },
    )],
};

const fn error_type(kind: ErrorType) -> &'static str {
    match kind {
        ErrorType::Idempotency | ErrorType::InvalidRequest => "INVALID_REQUEST_ERROR",
        ErrorType::Authentication => "AUTHENTICATION_ERROR",
        ErrorType::RateLimit => "RATE_LIMIT_ERROR",
        ErrorType::Api => "API_ERROR",
    }
}
