//! Header values of the form `value; name=token; name="quoted"`.

/// A header value cut into its parts. Case is as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParameterizedValue<'a> {
    /// What comes before the first semicolon.
    pub(crate) essence: &'a [u8],
    /// The parameters in order: the name, and the value without its quotes. The escapes of a
    /// quoted value are left in: readers disagree about them (`filename="C:\temp\x"`), and since
    /// a token contains no backslash nothing can be mistaken for something else.
    pub(crate) params: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> ParameterizedValue<'a> {
    /// The parts of a header value, `None` if it is not of this form.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let (essence, mut rest) = cut(value, |byte| byte == b';');
        let mut params = Vec::new();
        while let [b';', after @ ..] = rest {
            let after = after.trim_ascii_start();
            if after.is_empty() || after.starts_with(b";") {
                rest = after;
                continue;
            }
            let (name, after) = cut(after, |byte| byte == b'=' || byte == b';');
            let after = after.strip_prefix(b"=")?.trim_ascii_start();
            let (value, after) = match after {
                [b'"', quoted @ ..] => unquote(quoted)?,
                _ => {
                    let (value, after) = cut(after, |byte| byte == b';');
                    let value = value.trim_ascii_end();
                    // Looser than a token: `boundary=----=_Part_1` is sent without quotes.
                    let fits = |byte: &u8| byte.is_ascii_graphic() && !br#""\"#.contains(byte);
                    value.iter().all(fits).then_some((value, after))?
                }
            };
            let name = name.trim_ascii();
            if !is_token(name) {
                return None;
            }
            params.push((name, value));
            rest = after.trim_ascii_start();
        }
        let essence = essence.trim_ascii();
        rest.is_empty().then_some(Self { essence, params })
    }

    /// The value of the only parameter of this name, case ignored; `None` also if there are two.
    pub(crate) fn only(&self, wanted: &[u8]) -> Option<&'a [u8]> {
        let mut found = self.params.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }
}

/// Cuts before the first byte that ends it.
fn cut(bytes: &[u8], ends: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let at = bytes.iter().position(|byte| ends(*byte)).unwrap_or(bytes.len());
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

/// A quoted string after its opening quote: what is inside, and what follows.
fn unquote(quoted: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut escaped = false;
    let end = quoted.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    let (inside, after) = quoted.split_at_checked(end)?;
    Some((inside, after.get(1..).unwrap_or_default()))
}

/// Whether these bytes are a token of RFC 9110, such as a header name.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(fits)
}
