//! A JSON document. Its canonical text is a fixed point, is JSON to another parser, says the same
//! as the document, and survives being written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel_core::canonical::{self, JsonErrorKind, Pointer, Selection, json_text};
use serde_json::Value;

fuzz_target!(|body: &[u8]| {
    let theirs = serde_json::from_slice::<Value>(body);
    let text = match json_text(body) {
        Ok(text) => text,
        Err(error) => {
            assert!(error.offset() <= body.len());
            // What we refuse and others accept is on a short list.
            let stricter =
                matches!(error.kind(), JsonErrorKind::DuplicateName | JsonErrorKind::Exponent);
            assert!(theirs.is_err() || stricter, "{error}");
            return;
        }
    };
    assert_eq!(json_text(&text).unwrap(), text, "not a fixed point");
    assert!(text.len() <= body.len() * 6 + 16, "out of proportion");

    if let Ok(theirs) = theirs {
        // The same value, written by another serialiser with other white space.
        let again = serde_json::to_vec_pretty(&theirs).unwrap();
        assert_eq!(json_text(&again).unwrap(), text, "lost under re-serialisation");
    } else {
        // What we accept and `serde_json` does not: a byte order mark, lone surrogates, depth.
        let surrogate = text.windows(3).any(|window| window == b"\\ud");
        let deep = body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > 100;
        assert!(body.starts_with(b"\xEF\xBB\xBF") || surrogate || deep);
    }
    selections(body, &text);
});

fn selections(body: &[u8], text: &[u8]) {
    let pointers =
        |texts: &[&str]| texts.iter().map(|text| Pointer::parse(text).unwrap()).collect();
    let select = |body: &[u8], selection| {
        let mut out = Vec::new();
        canonical::json(body, &selection, &mut out).map(|()| out).map_err(|error| error.kind())
    };
    let whole = [b"only{\"\":", text, b"}"].concat();
    assert_eq!(select(body, Selection::Only(pointers(&[""]))), Ok(whole));
    assert_eq!(select(body, Selection::Except(Vec::new())).unwrap(), text);
    for texts in [["/a", "/0"], ["/a/b", "/1/0"], ["/", "/a~1b"]] {
        // The spelling does not matter to a selection either.
        let only = select(body, Selection::Only(pointers(&texts)));
        assert_eq!(select(text, Selection::Only(pointers(&texts))), only);
        let except = select(body, Selection::Except(pointers(&texts)));
        assert_eq!(select(text, Selection::Except(pointers(&texts))), except);
        // If there was nothing to select there was nothing to leave out.
        assert_eq!(only == Err(JsonErrorKind::NothingSelected), except.as_deref() == Ok(text));
    }
}
