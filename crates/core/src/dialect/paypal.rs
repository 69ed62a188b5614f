//! PayPal's REST APIs. The limit of the key is that of Orders v2.

use super::{CodeCase, DialectData, KeyPlace, ProblemForm};
use crate::{ErrorType, Problem};

pub(super) static DATA: DialectData = DialectData {
    name: "paypal",
    key: KeyPlace::Header("paypal-request-id"),
    key_bytes_max: Some(108),
    media_type: "application/json",
    members: concat!(
        r#""name":$code,"message":$message,"#,
        r#""details":[{"issue":$code,"description":$message}]"#
    ),
    error_type: ErrorType::as_str,
    code_case: CodeCase::Upper,
    retry_header: None,
    problems: &[
        (Problem::KeyMissing, ProblemForm::code("PAYPAL_REQUEST_ID_REQUIRED")),
        (Problem::KeyReused, ProblemForm::code("PAYPAL_REQUEST_ID_PREVIOUSLY_USED")),
        (Problem::InProgress, ProblemForm::code("PREVIOUS_REQUEST_IN_PROGRESS")),
    ],
};
