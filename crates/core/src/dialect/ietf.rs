//! The default dialect: RFC 9457. Each document also has an `error` member in the form of Stripe's
//! API: Stripe's SDK for Node resolves a JSON answer without one as a success.

use super::{CodeCase, DialectData, KeyPlace};
use crate::ErrorType;

pub(super) static DATA: DialectData = DialectData {
    name: "ietf",
    key: KeyPlace::Header("idempotency-key"),
    key_bytes_max: None,
    media_type: "application/problem+json",
    members: r#""error":{"type":$type,"code":$code,"message":$message}"#,
    error_type: ErrorType::as_str,
    code_case: CodeCase::Lower,
    retry_header: None,
    problems: &[],
};
