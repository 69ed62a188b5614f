//! Patterns in the language of other routers: `:id`, `{id}`, `<id>`, regular expressions. Taken as
//! they stand they would match nothing, and what they were meant for would not be guarded.

/// What is wrong with host and path of a route that are written for another router, and how to
/// write it here.
pub(super) fn refuse_foreign(place: &str) -> Result<(), String> {
    let path = place.find('/').and_then(|slash| place.get(slash..)).unwrap_or_default();
    if is_regular_expression(place) {
        let here = translated(&place.replace("[^/]+", "*").replace("[^/]*", "*"));
        let hint = if is_plain(&here) { format!("; write `{here}`") } else { String::new() };
        return Err(format!(
            "this is no regular expression: `*` is one piece of the path, in a piece any \
             characters, and `**` is any number of pieces{hint}"
        ));
    }
    match path.split('/').find(|piece| is_parameter(piece)) {
        Some(piece) => Err(format!(
            "`{piece}` would be taken as it stands, and match nothing else: a piece that varies is \
             `*`, any number of pieces `**`; write `{}`",
            translated(place)
        )),
        None => Ok(()),
    }
}

fn is_regular_expression(place: &str) -> bool {
    let is_any =
        |piece: &str| matches!(piece.trim_matches(['(', ')']), ".*" | ".+" | ".*?" | ".+?");
    place.starts_with('^')
        || place.ends_with('$')
        || (place.contains(['\\', '|']) && !place.contains("/:"))
        || place.contains("[^/]")
        || place.contains("(?")
        || place.split('/').any(is_any)
}

/// Whether a piece has a name in it that another router would replace.
fn is_parameter(piece: &str) -> bool {
    (piece.starts_with(':') && piece.len() > 1)
        || piece.contains(['{', '}', '<', '>'])
        || (piece.starts_with('[') && piece.ends_with(']'))
}

/// The pattern in the syntax of this configuration, as far as it can be translated.
fn translated(place: &str) -> String {
    let place = place.trim_start_matches('^').trim_end_matches('$');
    let pieces = place.split('/').map(|piece| match piece.trim_matches(['(', ')']) {
        ".*" | ".+" | ".*?" | ".+?" => "**".to_owned(),
        r"\d+" | r"\w+" | r"[0-9]+" => "*".to_owned(),
        _ if piece.starts_with(':') => match piece.chars().last() {
            Some('*' | '+') => "**".to_owned(),
            _ => "*".to_owned(),
        },
        _ => without_names(piece),
    });
    pieces.collect::<Vec<_>>().join("/")
}

/// A piece with a star for each name between brackets, or two for one that takes several pieces.
fn without_names(piece: &str) -> String {
    let inner = |open, close| piece.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if let Some(name) = inner('{', '}').or_else(|| inner('<', '>')).or_else(|| inner('[', ']')) {
        let several = name.starts_with(['*', '.'])
            || name.ends_with(":path")
            || name.starts_with("path:")
            || name.ends_with("...");
        return if several { "**".to_owned() } else { "*".to_owned() };
    }
    let mut text = String::new();
    let mut depth = 0_usize;
    for character in piece.chars() {
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
            assert!(said.contains("would be taken as it stands"), "{place}: {said}");
        }
    }

    #[test]
    fn a_regular_expression_is_told_what_it_is_not() {
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
            assert!(said.contains("no regular expression"), "{place}: {said}");
            match here {
                Some(here) => assert!(said.ends_with(&format!("write `{here}`")), "{said}"),
                None => assert!(!said.contains("write"), "{said}"),
            }
        }
    }

    #[test]
    fn what_a_path_may_hold_is_left_alone() {
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
