//! Suggestions for misspelt words.

/// The most similar word, if it is similar enough to be a typo, or continues the input:
/// `secret_env` for `secret`.
pub(super) fn nearest<'a>(
    written: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let written = written.to_lowercase();
    let allowed = (written.chars().count() / 3).clamp(1, 3);
    let edits = |word: &str| match word.to_lowercase() {
        word if word.strip_prefix(&written).is_some_and(|rest| rest.starts_with('_')) => 1,
        word => strsim::damerau_levenshtein(&written, &word),
    };
    words
        .into_iter()
        .map(|word| (edits(word), word))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, word)| word)
}

/// Words as a sentence lists them: `a`, `b` or `c`.
pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}

/// `; did you mean …?` if some word is near, otherwise nothing.
pub(super) fn hint<'a>(written: &str, words: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, words).map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_gets_a_suggestion_and_another_word_does_not() {
        let words = ["retention", "release", "wait"];
        assert_eq!(nearest("retenion", words), Some("retention"));
        assert_eq!(nearest("Wiat", words), Some("wait"));
        assert_eq!(nearest("scheme", words), None);
        assert_eq!(nearest("secret", ["store", "secret_env"]), Some("secret_env"));
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!(listed(&["a"]), "`a`");
        assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
