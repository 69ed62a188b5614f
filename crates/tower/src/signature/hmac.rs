//! Senders with an HMAC scheme of their own.

use http::{HeaderMap, HeaderName};

use super::{
    SignatureError, SignatureInvalid,
    presented::{PresentedSignatures, decode_signatures, line, timestamp},
    secret::{HmacAlgorithm, decode_base64, decode_hex},
};

const BODY: &str = "{body}";
const TIMESTAMP: &str = "{timestamp}";

/// How a signature is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Hexadecimal digits of either case.
    #[default]
    Hex,
    /// Base64 with `+` and `/`.
    Base64,
}

/// How a sender signs with HMAC: the header of the signature, its encoding, and what is signed. By
/// default SHA-256 over the body alone, in hexadecimal.
///
/// ```
/// use http::HeaderName;
/// use semel_tower::{Encoding, HmacScheme, Signature};
///
/// // Slack's.
/// let slack = HmacScheme::new(HeaderName::from_static("x-slack-signature"))
///     .prefix("v0=")
///     .timestamp(HeaderName::from_static("x-slack-request-timestamp"))
///     .signed("v0:{timestamp}:{body}");
/// let signature = Signature::hmac(slack, ["8f742231b10e8888abcd99yyyzzz85a5"])?;
///
/// // Shopify's.
/// let shopify = HmacScheme::new(HeaderName::from_static("x-shopify-hmac-sha256"))
///     .encoding(Encoding::Base64);
/// # let _ = (signature, shopify);
/// # Ok::<(), semel_tower::SignatureError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HmacScheme {
    header: HeaderName,
    prefix: String,
    encoding: Encoding,
    pub(super) algorithm: HmacAlgorithm,
    timestamp: Option<HeaderName>,
    signed: String,
}

impl HmacScheme {
    /// A signature in this header.
    #[must_use]
    pub fn new(header: HeaderName) -> Self {
        Self {
            header,
            prefix: String::new(),
            encoding: Encoding::default(),
            algorithm: HmacAlgorithm::default(),
            timestamp: None,
            signed: BODY.to_owned(),
        }
    }

    /// The prefix of the signature, such as `sha256=`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The encoding of the signature.
    #[must_use]
    pub const fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// The hash.
    #[must_use]
    pub const fn algorithm(mut self, algorithm: HmacAlgorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// The header with the time of the attempt, in whole seconds since 1970. It must be signed too:
    /// see [`HmacScheme::signed`].
    #[must_use]
    pub fn timestamp(mut self, header: HeaderName) -> Self {
        self.timestamp = Some(header);
        self
    }

    /// What is signed, if that is more than the body: a template with `{body}` in it, and
    /// `{timestamp}` if there is one.
    #[must_use]
    pub fn signed(mut self, template: &str) -> Self {
        template.clone_into(&mut self.signed);
        self
    }

    pub(super) fn headers(&self) -> Vec<HeaderName> {
        self.timestamp.iter().chain([&self.header]).cloned().collect()
    }

    /// Checks the consistency of the scheme. [`Signature::hmac`](super::Signature::hmac) calls it
    /// too.
    ///
    /// # Errors
    ///
    /// If the template has no body, an unknown placeholder, or a timestamp without a header; or if
    /// a timestamp is not signed.
    pub fn check(&self) -> Result<(), SignatureError> {
        if self.signed.matches(BODY).count() != 1 {
            return Err(SignatureError::TemplateBodyCount);
        }
        if self.signed.replace(BODY, "").replace(TIMESTAMP, "").contains(['{', '}']) {
            return Err(SignatureError::UnknownPlaceholder);
        }
        if self.signed.contains(TIMESTAMP) != self.timestamp.is_some() {
            return Err(SignatureError::TimestampMismatch);
        }
        Ok(())
    }

    pub(super) fn read(
        &self,
        headers: &HeaderMap,
    ) -> Result<PresentedSignatures, SignatureInvalid> {
        let written = line(headers, &self.header)?.strip_prefix(self.prefix.as_str());
        let signature = written.and_then(|text| match self.encoding {
            Encoding::Hex => decode_hex(text),
            Encoding::Base64 => decode_base64(text),
        });
        let words = match self.encoding {
            Encoding::Hex => "in hexadecimal",
            Encoding::Base64 => "as base64",
        };
        let expected = match self.prefix.as_str() {
            "" => format!("the signature {words}"),
            prefix => format!("{prefix} and the signature {words}"),
        };
        let signatures = decode_signatures(signature.into_iter(), &self.header, &expected)?;
        let (mut sent_at, mut at) = ("", None);
        if let Some(name) = &self.timestamp {
            sent_at = line(headers, name)?;
            at = Some(timestamp(sent_at, name)?);
        }
        let (before, after) = self.signed.split_once(BODY).unwrap_or_default();
        let result = |text: &str| text.replace(TIMESTAMP, sent_at);
        let (before, after) = (result(before), result(after));
        Ok(PresentedSignatures { header: self.header.clone(), before, after, signatures, at })
    }
}
