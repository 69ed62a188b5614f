//! Settings that are a choice between words.

use super::suggest;

/// A choice between words.
pub(super) trait Keyword: Copy + PartialEq + 'static {
    /// Each word and what it means.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for this.
    fn keyword(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

pub(super) fn parse_word<T: Keyword>(text: &str) -> Result<T, String> {
    if let Some((_, value)) = T::WORDS.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
    let hint = suggest::hint(text, words.iter().copied());
    Err(format!("this must be {}{hint}", suggest::listed(&words)))
}

macro_rules! words {
    ($kind:ty { $($word:literal => $value:expr),+ $(,)? }) => {
        impl $crate::keyword::Keyword for $kind {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, $value)),+];
        }

        impl FromText for $kind {
            const EXPECTED: &'static str = concat!("one of", $(" \"", $word, "\""),+);

            fn parse(text: &str) -> Result<Self, String> {
                $crate::keyword::parse_word(text)
            }

            fn schema() -> Value {
                json!({ "enum": [$($word),+] })
            }
        }
    };
}

pub(super) use words;
