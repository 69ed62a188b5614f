//! An origin that a route allows, as browsers send it in `Origin`.

use std::{error, fmt, str::FromStr};

use http::{HeaderValue, Uri};

/// An origin: scheme, host and port, as a browser sends them (`https://shop.example`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin(Box<str>);

/// A text that no browser sends as an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedOriginError {
    /// It is not a scheme, a host and a port.
    Syntax,
    /// `null`, which pages in a sandbox of any site send.
    Null,
    /// The port is the default one of the scheme, which browsers leave out.
    DefaultPort,
}

impl fmt::Display for AllowedOriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => {
                "this is not an origin; write the scheme, the host and the port, without a path: \
                 \"https://shop.example\""
            }
            Self::Null => {
                "a page of any site can send the origin `null`, so it cannot be allowed alone"
            }
            Self::DefaultPort => "browsers leave out the default port; leave it out here too",
        })
    }
}

impl error::Error for AllowedOriginError {}

impl FromStr for AllowedOrigin {
    type Err = AllowedOriginError;

    fn from_str(text: &str) -> Result<Self, AllowedOriginError> {
        if text == "null" {
            return Err(AllowedOriginError::Null);
        }
        let text = text.to_ascii_lowercase();
        let uri: Uri = text.parse().map_err(|_| AllowedOriginError::Syntax)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(AllowedOriginError::Syntax);
        };
        // Equal texts: no path, no query, no user, no second spelling.
        let host = authority.host();
        let port = authority.port().map(|port| format!(":{port}")).unwrap_or_default();
        if host.is_empty() || host.contains('*') || format!("{scheme}://{host}{port}") != text {
            return Err(AllowedOriginError::Syntax);
        }
        if matches!((scheme, &*port), ("http", ":80") | ("https", ":443")) {
            return Err(AllowedOriginError::DefaultPort);
        }
        Ok(Self(text.into()))
    }
}

/// Browsers write an origin in one way, so bytes are compared.
impl PartialEq<HeaderValue> for AllowedOrigin {
    fn eq(&self, sent: &HeaderValue) -> bool {
        sent.as_bytes() == self.0.as_bytes()
    }
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
