//! Without the feature `webhooks` no layer has a signature.

use http::{HeaderMap, HeaderName};

pub(crate) use self::NoSignature as Signature;
use crate::refusal::RequestRefusal;

/// It has no value.
#[derive(Clone, Debug)]
pub(crate) enum NoSignature {}

impl NoSignature {
    pub(crate) const fn signs(&self, _: &HeaderName) -> bool {
        match *self {}
    }

    pub(crate) const fn check_head(&self, _: &HeaderMap) -> Result<(), RequestRefusal> {
        match *self {}
    }

    pub(crate) const fn check(&self, _: &HeaderMap, _: &[u8]) -> Result<(), RequestRefusal> {
        match *self {}
    }
}
