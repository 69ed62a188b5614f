//! Stored answers: what can be read is written back to the same bytes, and every reading stays
//! within the bytes it was given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel_core::{Answer, Content};

fuzz_target!(|data: &[u8]| {
    let Ok(answer) = Answer::from_stored(data.to_vec().into()) else { return };
    let content = answer.read().unwrap();
    let again = match &content {
        Content::Response(response) => {
            let fields = response.headers.iter().chain(&response.trailers);
            let bytes: usize = fields.map(|field| field.name.len() + field.value.len()).sum();
            assert!(bytes + response.body.len() < data.len());
            Answer::response(response)
        }
        Content::NotRetained { status } => Answer::not_retained(*status),
        Content::Failed => Answer::failed(),
    };
    assert_eq!(again.as_bytes(), data);
    assert_eq!(again.read().unwrap(), content);
});
