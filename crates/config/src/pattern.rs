//! Detects patterns of other routers: `:id`, `{id}`, `<id>`, regular expressions. Taken literally
//! they would match nothing, and the intended requests would not be guarded.

/// Refuses a host and path in the syntax of another router, with a suggestion.
pub(super) fn refuse_foreign(place: &str) -> Result<(), String> {
    let path = place.find('/').and_then(|slash| place.get(slash..)).unwrap_or_default();
    if is_regular_expression(place) {
        let here = translated(&place.replace("[^/]+", "*").replace("[^/]*", "*"));
        let hint = if is_plain(&here) { format!("; write `{here}`") } else { String::new() };
        return Err(format!(
            "regular expressions are not supported: `*` matches one path segment, or any \
             characters within one, and `**` any number of segments{hint}"
        ));
    }
    match path.split('/').find(|segment| is_parameter(segment)) {
        Some(segment) => Err(format!(
            "`{segment}` would match only itself, literally: `*` matches any one segment, `**` any \
             number of segments; write `{}`",
            translated(place)
        )),
        None => Ok(()),
    }
}

fn is_regular_expression(place: &str) -> bool {
    let is_any =
        |segment: &str| matches!(segment.trim_matches(['(', ')']), ".*" | ".+" | ".*?" | ".+?");
    place.starts_with('^')
        || place.ends_with('$')
        || (place.contains(['\\', '|']) && !place.contains("/:"))
        || place.contains("[^/]")
        || place.contains("(?")
        || place.split('/').any(is_any)
}

/// Whether a segment contains a parameter of another router.
fn is_parameter(segment: &str) -> bool {
    (segment.starts_with(':') && segment.len() > 1)
        || segment.contains(['{', '}', '<', '>'])
        || (segment.starts_with('[') && segment.ends_with(']'))
}

/// The pattern in the syntax of this configuration, as far as it can be translated.
fn translated(place: &str) -> String {
    let place = place.trim_start_matches('^').trim_end_matches('$');
    let segments = place.split('/').map(|segment| match segment.trim_matches(['(', ')']) {
        ".*" | ".+" | ".*?" | ".+?" => "**".to_owned(),
        r"\d+" | r"\w+" | r"[0-9]+" => "*".to_owned(),
        _ if segment.starts_with(':') => match segment.chars().last() {
            Some('*' | '+') => "**".to_owned(),
            _ => "*".to_owned(),
        },
        _ => without_names(segment),
    });
    segments.collect::<Vec<_>>().join("/")
}

/// A segment with a star for each bracketed parameter, or two for one that matches several
/// segments.
fn without_names(segment: &str) -> String {
    let inner = |open, close| segment.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if let Some(name) = inner('{', '}').or_else(|| inner('<', '>')).or_else(|| inner('[', ']')) {
        let several = name.starts_with(['*', '.'])
            || name.ends_with(":path")
            || name.starts_with("path:")
            || name.ends_with("...");
        return if several { "**".to_owned() } else { "*".to_owned() };
    }
    let mut text = String::new();
    let mut depth = 0_usize;
    for character in segment.chars() {
        match character {
            '{' | '<' => {
                if depth == 0 {
                    text.push('*');
                }
                depth = depth.saturating_add(1);
            }
            '}' | '>' => depth = depth.saturating_sub(1),
            character if depth == 0 => text.push(character),
            _ => {}
        }
    }
    text
}

/// Whether no foreign pattern syntax is left.
fn is_plain(place: &str) -> bool {
    place.starts_with('/') && !place.contains(['^', '$', '\\', '|', '[', ']', '(', ')', '+', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(place: &str) -> String {
        refuse_foreign(place).unwrap_err()
    }

    #[test]
    fn names_of_other_routers_are_refused_with_the_right_spelling() {
        for (place, here) in [
            ("/v1/payments/:id/refunds", "/v1/payments/*/refunds"),
            ("/v1/payments/{id}/refunds", "/v1/payments/*/refunds"),
            ("/v1/payments/<id>", "/v1/payments/*"),
            ("/v1/payments/<int:id>", "/v1/payments/*"),
            ("/v1/payments/[id]", "/v1/payments/*"),
            ("api.example.com/{id}", "api.example.com/*"),
            ("/files/{*rest}", "/files/**"),
            ("/files/{path:path}", "/files/**"),
            ("/files/<path:rest>", "/files/**"),
            ("/files/{rest...}", "/files/**"),
            ("/files/[...slug]", "/files/**"),
            ("/files/:rest*", "/files/**"),
            ("/report-{year}.pdf", "/report-*.pdf"),
            (r"/v1/:id(\d+)/x", "/v1/*/x"),
        ] {
            let said = refused(place);
            assert!(said.ends_with(&format!("write `{here}`")), "{place}: {said}");
            assert!(said.contains("would match only itself"), "{place}: {said}");
        }
    }

    #[test]
    fn a_regular_expression_is_refused() {
        for (place, here) in [
            ("^/v1/.*$", Some("/v1/**")),
            ("^/v1/payments$", Some("/v1/payments")),
            ("/v1/.*", Some("/v1/**")),
            ("/v1/(.+)/refunds", Some("/v1/**/refunds")),
            ("/v1/[^/]+/refunds", Some("/v1/*/refunds")),
            (r"^/v1/\d+/refunds", Some("/v1/*/refunds")),
            (r"/v1/payments\.json", None),
            ("/v1/(charges|refunds)", None),
            ("(?i)/v1", None),
        ] {
            let said = refused(place);
            assert!(said.contains("regular expressions are not supported"), "{place}: {said}");
            match here {
                Some(here) => assert!(said.ends_with(&format!("write `{here}`")), "{said}"),
                None => assert!(!said.contains("write"), "{said}"),
            }
        }
    }

    #[test]
    fn valid_paths_are_not_mistaken_for_foreign_patterns() {
        for place in [
            "/v1/payments/*",
            "/v1/**",
            "/v1/charges:capture",
            "/report.*",
            "/a(b)",
            "[::1]/x",
            "*.example.com/x",
            "/a$b",
            "/%7Bid%7D",
        ] {
            assert_eq!(refuse_foreign(place), Ok(()), "{place}");
        }
    }
}
