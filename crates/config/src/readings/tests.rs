//! Spellings and what they are read as, by example and at random.

use proptest::prelude::*;

use super::*;

const PATH: &str = "/webhooks/stripe";

fn reads_as(path: &str, wanted: &str) -> bool {
    let same = |reading: &str| {
        reading.trim_end_matches('/').eq_ignore_ascii_case(wanted)
            || with_slashes_merged(reading).trim_end_matches('/').eq_ignore_ascii_case(wanted)
    };
    any_reading(path, same).unwrap()
}

fn count(path: &str) -> usize {
    readings_of_pattern(path).len()
}

#[test]
fn a_plain_path_has_one_reading() {
    for path in ["/", "/v1/payments", "/v1/Pay_9:capture", "/a-b~c/*/**", "/v1/", "/a.b"] {
        assert!(has_one_reading(path), "{path}");
        assert_eq!(count(path), 1, "{path}");
    }
    for path in ["//", "/a%2Fb", "/a;b", "/a\\b", "/a/./b", "/a b", "/a\u{e9}", "/a\n"] {
        assert!(!has_one_reading(path), "{path}");
    }
}

#[test]
fn every_spelling_reads_as_what_it_may_stand_for() {
    for path in [
        "/webhooks%2Fstripe",
        "/webhooks%2fstripe",
        "/webhooks%252Fstripe",
        "/webhooks%25252Fstripe",
        "/webhooks%5Cstripe",
        "/webhooks%255cstripe",
        "/webhooks\\stripe",
        "/webhooks//stripe",
        "/webhooks/./stripe",
        "/webhooks/.;/stripe",
        "/webhooks/;x/stripe",
        "/webhooks;x/stripe;y=z",
        "/webhooks%3Bx/stripe",
        "/x/../webhooks/stripe",
        "/x/..%2fwebhooks/stripe",
        "/x/%252e%252e/webhooks/stripe",
        "/x/..;/webhooks/stripe",
        "/x\\..\\webhooks\\stripe",
        "/webhooks//../stripe",
        "/webhooks/x//../../stripe",
        "/x//../../webhooks/stripe",
        "//x/webhooks/stripe",
        "/\\x/webhooks/stripe",
        "/%5C%5Cx/webhooks/stripe",
        "///x/webhooks/stripe",
        "/webhooks/stripe%0a",
        "/webhooks/stripe%00.png",
        "/webhooks/stripe%20",
        "/webhooks/stripe%3Fx",
        "/webhooks/stripe%2523x",
        "/web%09hooks/stripe",
        "/webhooks/stripe.json",
        "/webhooks/stripe.",
        "/webhooks/stripe%2e",
        "/webhooks/stripe.a.b",
        "/Webhooks/STRIPE",
        "/webhooks/%C5%BFtripe",
        "/webhoo%E2%84%AAs/stripe",
        "/x/.%09./webhooks%2Fstripe;y.json",
    ] {
        assert!(reads_as(path, PATH), "{path}: {:#?}", readings_of_pattern(path));
    }
}

#[test]
fn dot_segments_may_also_stay() {
    for path in ["/webhooks/stripe/../../x", "/webhooks/stripe/%2e%2e/%2e%2e/x"] {
        assert!(any_reading(path, |reading| reading.starts_with("/webhooks/stripe/..")).unwrap());
        assert!(reads_as(path, "/x"));
    }
}

#[test]
fn another_path_does_not_read_as_it() {
    for path in [
        "/webhooks/stripes",
        "/webhooks/stripe-2",
        "/webhooks/stripe2.json",
        "/webhooks.stripe",
        "/webhooksstripe",
        "/webhooks%2Dstripe",
        "/files/webhooks%2Fstripe",
        "/webhooks/.stripe",
        "/webhooks/stripe/x.json",
    ] {
        assert!(!reads_as(path, PATH), "{path}");
    }
}

#[test]
fn common_paths_have_few_readings() {
    for (path, max) in [
        ("/v1/files/report.2026.pdf", 1),
        ("/v1/users/a%40b.example", 2),
        ("/v1/objects/folder%2Ffile", 2),
        ("/caf%C3%A9", 2),
        ("/v1/files/My%20Report%2Fv1;x=1.pdf", 24),
    ] {
        assert!(count(path) <= max, "{path}: {}", count(path));
    }
}

#[test]
fn too_many_readings_stop_the_search_early() {
    let deep = format!("/%{}2Fx", "25".repeat(300));
    let odd = "/x%252F..%255C;a//%2500/\\.".repeat(30);
    let long = format!("/{}", "%2F".repeat(40_000));
    let dots = format!("/hooks/{}x", ".".repeat(30_000));
    for path in [deep, odd, long, dots] {
        assert_eq!(any_reading(&path, |_| false), Err(TooManyReadings));
    }
}

#[test]
fn a_name_with_many_dots_is_read_without_each_of_them() {
    let path = format!("{PATH}{}", ".1".repeat(100));
    assert!(reads_as(&path, PATH));
    assert_eq!(any_reading("/v1/files/a.b.c.d.e.f.pdf", |_| false), Ok(false));
}

#[test]
fn the_readings_without_extensions_are_bounded_in_count_and_bytes() {
    for path in [format!("/{}x", ".a".repeat(150)), format!("/{}.a.b.c.d", "x".repeat(30_000))] {
        let (asked, bytes) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let read = any_reading(&path, |reading| {
            asked.set(asked.get() + 1);
            bytes.set(bytes.get() + reading.len());
            false
        });
        assert_eq!(read, Err(TooManyReadings));
        assert!(asked.get() <= READINGS_MAX && bytes.get() <= BYTES_MAX, "{asked:?} {bytes:?}");
    }
}

/// Another spelling of a text that stands in a path, and nothing that changes its meaning in all
/// software.
fn respelt() -> impl Strategy<Value = String> {
    let separators = [
        "/",
        "%2F",
        "%252f",
        "\\",
        "%5C",
        "//",
        "/./",
        "/;a/",
        "/x/../",
        "/x/..;/",
        "/%2e/",
        "/x%2f..%2f",
    ];
    let suffixes = ["", "/", ";a", "%00", "%0a", "%3Fa", ".json", "/.", "/x/..", "%20"];
    let letters = proptest::collection::vec(0_u8..8, 14);
    (0..separators.len(), 0..separators.len(), 0..suffixes.len(), letters).prop_map(
        move |(first, second, suffix, how)| {
            let mut how = how.into_iter();
            let mut spell = |word: &str| -> String {
                let spell = |letter: char| match how.next() {
                    Some(0) => format!("%{:02x}", u32::from(letter)),
                    Some(1) => format!("%25{:02X}", u32::from(letter)),
                    Some(2) => letter.to_ascii_uppercase().to_string(),
                    _ => letter.to_string(),
                };
                word.chars().map(spell).collect()
            };
            let (webhooks, stripe) = (spell("webhooks"), spell("stripe"));
            let first = separators[first].trim_start_matches('/');
            format!("/{first}{webhooks}{}{stripe}{}", separators[second], suffixes[suffix])
        },
    )
}

proptest! {
    #[test]
    fn no_combination_of_spellings_hides_a_path(path in respelt()) {
        let hidden = any_reading(&path, |reading| {
            let merged = with_slashes_merged(reading);
            merged.trim_end_matches('/').eq_ignore_ascii_case(PATH)
        });
        // What has too many readings is refused as well.
        prop_assert_ne!(hidden, Ok(false), "{}", path);
    }

    #[test]
    fn any_text_is_read_in_bounded_time(path in "/[a%250Ff.;/\\\\ \n?é]{0,200}") {
        let mut asked = std::cell::Cell::new(0_usize);
        let _ = any_reading(&path, |_| {
            asked.set(asked.get() + 1);
            false
        });
        prop_assert!(*asked.get_mut() <= READINGS_MAX);
    }
}
