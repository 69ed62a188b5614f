//! The client certificate of a connection, and the caller that it names.

use std::fmt;

use super::{CallerFailure, CallerRefusal, Identification, bounded, named_caller};

/// The client certificate of a connection, as an extension of a request.
///
/// The server inserts it after the TLS handshake has verified the chain of the certificate. The
/// names are read here and nothing else is checked.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    subject: Result<Box<str>, &'static str>,
    san: Result<Box<str>, &'static str>,
    fingerprint: Box<str>,
}

/// The part of a client certificate that names the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    /// The distinguished name of the subject: `CN=shop-7,O=Shop`.
    Subject,
    /// The subject alternative name: the only URI (as SPIFFE has it), or else the only DNS name or
    /// mail address.
    San,
    /// The SHA-256 hash of the certificate. It changes whenever the certificate is renewed.
    Fingerprint,
}

impl CertificateField {
    /// The word in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Subject => "subject",
            Self::San => "san",
            Self::Fingerprint => "fingerprint",
        }
    }
}

impl ClientCertificate {
    /// The caller that this certificate names.
    pub(super) fn caller(&self, field: CertificateField) -> Identification {
        let refuse = |reason: &&'static str| {
            CallerRefusal::new(
                CallerFailure::Certificate,
                format!("the client certificate has no usable {}: {reason}", field.as_str()),
            )
        };
        let name = match field {
            CertificateField::Subject => {
                let subject = self.subject.as_ref().map_err(refuse)?;
                bounded("mtls:subject:", "mtls-sha256:subject:", subject)
            }
            CertificateField::San => {
                let san = self.san.as_ref().map_err(refuse)?;
                bounded("mtls:san:", "mtls-sha256:san:", san)
            }
            CertificateField::Fingerprint => format!("mtls:fingerprint:{}", self.fingerprint),
        };
        named_caller(&name)
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificate({})", self.fingerprint)
    }
}

#[cfg(feature = "mtls")]
mod parse {
    use sha2::{Digest as _, Sha256};
    use x509_parser::{
        certificate::X509Certificate,
        extensions::GeneralName,
        objects::{oid_registry, oid2abbrev},
        prelude::FromDer as _,
        x509::{AttributeTypeAndValue, X509Name},
    };

    use super::ClientCertificate;
    use crate::caller::secret::hexadecimal;

    impl ClientCertificate {
        /// Reads the names in a certificate whose chain was verified.
        ///
        /// # Errors
        ///
        /// If it is not one X.509 certificate.
        pub fn from_der(der: &[u8]) -> Result<Self, ClientCertificateError> {
            let (rest, certificate) =
                X509Certificate::from_der(der).map_err(|_| ClientCertificateError(()))?;
            if !rest.is_empty() {
                return Err(ClientCertificateError(()));
            }
            Ok(Self {
                subject: subject(certificate.subject()),
                san: san(&certificate),
                fingerprint: hexadecimal("", &Sha256::digest(der)).into(),
            })
        }
    }

    /// Bytes that are not an X.509 certificate.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ClientCertificateError(());

    impl std::fmt::Display for ClientCertificateError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the client certificate cannot be read")
        }
    }

    impl std::error::Error for ClientCertificateError {}

    /// The subject as RFC 4514 writes it, but in the order of the certificate.
    fn subject(name: &X509Name<'_>) -> Result<Box<str>, &'static str> {
        let mut text = String::new();
        for rdn in name.iter_rdn() {
            for (index, attribute) in rdn.iter().enumerate() {
                if !text.is_empty() {
                    text.push(if index == 0 { ',' } else { '+' });
                }
                push_attribute(&mut text, attribute)?;
            }
        }
        if text.is_empty() { Err("it is empty") } else { Ok(text.into()) }
    }

    fn push_attribute(
        text: &mut String,
        attribute: &AttributeTypeAndValue<'_>,
    ) -> Result<(), &'static str> {
        let oid = attribute.attr_type();
        match oid2abbrev(oid, oid_registry()) {
            Ok(word) => text.push_str(word),
            Err(_) => text.push_str(&oid.to_id_string()),
        }
        text.push('=');
        let value = attribute.as_str().map_err(|_| "it has a value that is not text")?;
        for character in value.chars() {
            if matches!(character, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=') {
                text.push('\\');
            }
            text.push(character);
        }
        Ok(())
    }

    /// The only URI, or else the only other name.
    fn san(certificate: &X509Certificate<'_>) -> Result<Box<str>, &'static str> {
        let extension = certificate.subject_alternative_name().map_err(|_| "it is malformed")?;
        let names = extension.map(|extension| &extension.value.general_names[..]);
        let names = names.unwrap_or_default();
        let uris: Vec<String> = names.iter().filter_map(uri).collect();
        let others = || names.iter().filter_map(other).collect::<Vec<String>>();
        let found = if uris.is_empty() { others() } else { uris };
        match &found[..] {
            [only] => Ok(only.as_str().into()),
            [] => Err("it has no URI, DNS name or mail address"),
            [..] => Err("it has several names, and none of them is the caller's alone"),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "names of other kinds")]
    fn uri(name: &GeneralName<'_>) -> Option<String> {
        match name {
            GeneralName::URI(uri) => Some(format!("uri:{uri}")),
            _ => None,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "names of kinds that name no caller")]
    fn other(name: &GeneralName<'_>) -> Option<String> {
        match name {
            GeneralName::DNSName(name) => Some(format!("dns:{}", name.to_ascii_lowercase())),
            GeneralName::RFC822Name(name) => Some(format!("email:{name}")),
            _ => None,
        }
    }
}

#[cfg(feature = "mtls")]
pub use self::parse::ClientCertificateError;

#[cfg(test)]
#[cfg(feature = "mtls")]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[(DnType, &str)], alternatives: Vec<SanType>) -> ClientCertificate {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        params.subject_alt_names = alternatives;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        ClientCertificate::from_der(certificate.der()).unwrap()
    }

    fn name(certificate: &ClientCertificate, field: CertificateField) -> Option<String> {
        let caller = certificate.caller(field).ok()??;
        Some(caller.as_str().to_owned())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    #[test]
    fn a_subject_is_written_without_ambiguity() {
        let (organization, common) = (DnType::OrganizationName, DnType::CommonName);
        let subject = |names: &[(DnType, &str)]| {
            name(&certificate(names, Vec::new()), CertificateField::Subject)
        };
        let plain = [(organization, "Shop"), (common.clone(), "shop-7")];
        assert_eq!(subject(&plain).unwrap(), "mtls:subject:O=Shop,CN=shop-7");
        let forged = subject(&[(common.clone(), "x,O=Shop+CN=shop-7")]).unwrap();
        assert_eq!(forged, "mtls:subject:CN=x\\,O\\=Shop\\+CN\\=shop-7");
        assert_eq!(subject(&[]), None);
        assert_eq!(subject(&[(common.clone(), "a\nb")]), None);
        let long = subject(&[(common.clone(), &"x".repeat(300))]).unwrap();
        assert!(long.starts_with("mtls-sha256:subject:"), "{long}");
        assert_ne!(Some(long), subject(&[(common, &"x".repeat(301))]));
    }

    #[test]
    fn the_only_uri_counts_or_else_the_only_other_name() {
        let san = |names| name(&certificate(&[], names), CertificateField::San);
        assert_eq!(san(vec![dns("A.example")]).unwrap(), "mtls:san:dns:a.example");
        let both = vec![dns("a.example"), uri("spiffe://shop/7"), dns("b.example")];
        assert_eq!(san(both).unwrap(), "mtls:san:uri:spiffe://shop/7");
        assert_eq!(san(vec![dns("a.example"), dns("b.example")]), None);
        assert_eq!(san(vec![uri("spiffe://shop/7"), uri("spiffe://shop/8")]), None);
        assert_eq!(san(Vec::new()), None);
    }

    #[test]
    fn a_fingerprint_is_of_the_whole_certificate() {
        let one = certificate(&[(DnType::CommonName, "a")], Vec::new());
        let two = certificate(&[(DnType::CommonName, "a")], Vec::new());
        let fingerprint = |one| name(one, CertificateField::Fingerprint).unwrap();
        assert_eq!(fingerprint(&one).len(), "mtls:fingerprint:".len() + 64);
        assert_ne!(fingerprint(&one), fingerprint(&two));
        assert!(ClientCertificate::from_der(b"no certificate").is_err());
    }
}
