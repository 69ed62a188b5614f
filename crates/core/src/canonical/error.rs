//! Why a document was refused.

/// Why a JSON document was refused, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (at byte {offset} of the body)")]
pub struct JsonError {
    kind: JsonErrorKind,
    offset: usize,
}

/// The reasons a JSON document is refused for. The message tells the sender what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// Larger than [`JSON_BYTES_MAX`](super::JSON_BYTES_MAX).
    #[error("the JSON body is too large; send a smaller one")]
    TooLarge,
    /// Deeper than [`DEPTH_MAX`](super::DEPTH_MAX).
    #[error("the JSON body is nested more than 128 levels deep; send a flatter one")]
    TooDeep,
    /// Bytes that are not UTF-8.
    #[error("the JSON body is not UTF-8; encode it as UTF-8")]
    Encoding,
    /// Two members of one object have the same name.
    #[error("a member name appears twice in one JSON object; send each name once")]
    DuplicateName,
    /// A number whose decimal exponent does not fit in 64 bits.
    #[error("the exponent of a number in the JSON body is out of range; send a smaller one")]
    Exponent,
    /// The document ends before it is complete.
    #[error("the JSON body ends too early; send the complete document")]
    Incomplete,
    /// More than white space after the document.
    #[error("something follows the JSON document; send exactly one")]
    Trailing,
    /// Something else than the start of a value.
    #[error("a JSON value was expected here")]
    ExpectedValue,
    /// Something else than a member name.
    #[error("a member name in double quotes was expected here")]
    ExpectedName,
    /// Something else than the colon after a member name.
    #[error("a colon was expected after the member name")]
    ExpectedColon,
    /// Something else than a comma or the end of the array or object.
    #[error("a comma or the end of the array or object was expected here")]
    ExpectedComma,
    /// A number that JSON does not allow, such as `01`, `1.` or `+1`.
    #[error("this is not a JSON number; write it like 12, -0.5 or 1e3")]
    Number,
    /// An escape that JSON does not have.
    #[error(r#"this is not a JSON escape; use \" \\ \/ \b \f \n \r \t or \u and four digits"#)]
    Escape,
    /// A raw control character in a string.
    #[error("a string contains a raw control character; escape it")]
    ControlCharacter,
    /// A selection that leaves nothing to compare.
    #[error("none of the members that make up this operation is present; send at least one")]
    NothingSelected,
}

impl JsonError {
    pub(super) fn new(kind: JsonErrorKind, offset: usize) -> Self {
        Self { kind, offset }
    }

    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> JsonErrorKind {
        self.kind
    }

    /// Where it is wrong: how many bytes of the body come before it.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }
}
