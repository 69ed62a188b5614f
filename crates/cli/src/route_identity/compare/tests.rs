//! Pairs of configurations: accepted changes, refused changes with their messages, and the period
//! in which former records are looked up.

use super::*;
use semel_config::{Config, Overrides};

const NOW: u64 = 1_800_000_000;

const IMPLICIT: &str = "";

/// Parses the routes of a configuration with these tables.
fn routes(tables: &str) -> Vec<Route> {
    let text = format!("[gateway]\nupstream = \"http://127.0.0.1:1\"\n{tables}");
    let config = Config::read(None, &text, &Overrides::default(), &|_| None);
    config.unwrap_or_else(|error| panic!("{error}\n{text}")).routes
}

fn route(pattern: &str, lines: &str) -> String {
    format!("[[route]]\nmatch = \"{pattern}\"\n{lines}\n")
}

/// The remembered routes after a configuration with these tables replaces `old`.
fn remembered_after(old: &[RememberedRoute], tables: &str, now: u64) -> Vec<RememberedRoute> {
    let routes = routes(tables);
    let found = compare(old, &routes);
    let next = |(order, route): (usize, &Route)| {
        let before = found.before.get(order).copied().flatten().and_then(|index| old.get(index));
        let entry = RememberedRoute::next(order, route, before, now);
        let (name, value) = entry.write().unwrap();
        let read = super::super::entry::read(&[(name.into(), value.into())]);
        assert_eq!(read, [entry], "it can be read back");
        read.into_iter().next().unwrap()
    };
    routes.iter().enumerate().map(next).collect()
}

fn remembered(tables: &str) -> Vec<RememberedRoute> {
    remembered_after(&[], tables, NOW)
}

fn changes(old: &str, new: &str) -> Vec<String> {
    let changes = compare(&remembered(old), &routes(new)).changes;
    changes.iter().map(|change| format!("{change} | {}", change.advice())).collect()
}

#[test]
fn routes_that_find_their_records_are_accepted() {
    let payments = route("POST /v1/payments/**", "scope = \"payments\"");
    let all = |lines: &str| route("POST,PATCH /**", lines);
    let unguarded = route("POST /v1/payments/health", "guard = false");
    let was = "scope = \"payments\"\nwas = { scope = \"default\" }";
    for (old, new) in [
        (IMPLICIT.to_owned(), IMPLICIT.to_owned()),
        (IMPLICIT.to_owned(), all("scope = \"default\"")),
        (IMPLICIT.to_owned(), all(was)),
        (IMPLICIT.to_owned(), route("POST /a", was) + &all("scope = \"default\"")),
        // Requirements, durations and added methods do not change the identity.
        (payments.clone(), route("POST /v1/payments/**", "scope = \"payments\"\nwait = \"0s\"")),
        (
            payments.clone(),
            route(
                "POST,PUT /v1/payments/**",
                "scope = \"payments\"\nkey = { header = \"Idempotency-Key\", required = true }",
            ),
        ),
        // A wider pattern with the same identity replaces a narrower one.
        (payments.clone(), route("/v1/**", "scope = \"payments\"")),
        // An unguarded route has no records to lose.
        (
            unguarded.clone() + &payments,
            route("POST /v1/payments/health", "scope = \"health\"") + &payments,
        ),
        (unguarded.clone() + &payments, payments.clone()),
        (payments.clone(), payments.clone() + &route("POST /v1/orders", "scope = \"orders\"")),
        // An observing route runs every request, so its records protect nothing.
        (
            route("POST /v1/**", "scope = \"a\"\nmode = \"observe\""),
            route("POST /v1/**", "scope = \"b\"\nmode = \"observe\""),
        ),
    ] {
        assert_eq!(changes(&old, &new), [""; 0], "{old}\n→\n{new}");
    }
}

#[test]
fn lost_records_are_reported_with_the_difference_and_advice() {
    let payments = |lines: &str| route("POST /v1/payments/**", lines);
    let scoped = payments("scope = \"payments\"");
    for (old, new, expected) in [
        // The same pattern with another identity.
        (
            scoped.clone(),
            payments("scope = \"money\""),
            "POST /v1/payments/**: the scope was \"payments\" and is \"money\" | add `was = { \
             scope = \"payments\" }` to the route POST /v1/payments/**",
        ),
        (
            scoped.clone(),
            payments("scope = \"payments\"\ncaller = [\"anonymous\"]"),
            "POST /v1/payments/**: `caller` was [\"authorization\"] and is [\"anonymous\"] | keep",
        ),
        (
            scoped.clone(),
            payments("scope = \"payments\"\nkey = \"X-Key\""),
            "`key` was [{ header = \"idempotency-key\" }] and is [{ header = \"x-key\" }]",
        ),
        // `was` with another scope than the route had.
        (
            scoped.clone(),
            payments("scope = \"money\"\nwas = { scope = \"default\" }"),
            "the scope was \"payments\"",
        ),
        // A pattern that vanished: another route takes its requests, or none.
        (
            scoped.clone(),
            route("/v1/**", "scope = \"v1\""),
            "POST,PATCH /v1/** takes what POST /v1/payments/** took, such as POST \
             /v1/payments/semel-sample: the scope was",
        ),
        (
            scoped.clone(),
            route("POST /v2/**", "scope = \"payments\""),
            "POST /v1/payments/** took requests such as POST /v1/payments/semel-sample: no route \
             guards them now | keep a route that guards them: match = \"POST /v1/payments/**\" \
             with scope = \"payments\"",
        ),
        (scoped.clone(), payments("guard = false"), "no route guards them now"),
        (
            route("POST,PATCH /v1/**", "scope = \"v1\""),
            route("POST /v1/**", "scope = \"v1\""),
            "such as PATCH /v1/semel-sample: no route guards them now",
        ),
        // A new pattern takes what an old one took.
        (
            IMPLICIT.to_owned(),
            scoped.clone() + &route("/**", "scope = \"default\""),
            "POST /v1/payments/** takes what POST,PATCH /** took, such as POST \
             /v1/payments/semel-sample: the scope was \"default\" and is \"payments\" | add `was = \
             { scope = \"default\" }` to the route POST /v1/payments/**",
        ),
        (
            scoped.clone(),
            route("POST /v1/payments/health", "guard = false") + &scoped,
            "such as POST /v1/payments/health: no route guards them now",
        ),
        (
            route("POST a.example/v1/**", "scope = \"a\""),
            route("POST *.example/v1/**", "scope = \"b\""),
            "such as POST a.example/v1/semel-sample: the scope was \"a\" and is \"b\"",
        ),
    ] {
        let changes = changes(&old, &new);
        assert_eq!(changes.len(), 1, "{old}\n→\n{new}\n{changes:#?}");
        assert!(changes.iter().all(|text| text.contains(expected)), "{expected}\n{changes:#?}");
    }
}

#[test]
fn the_first_route_leaves_the_rest_of_the_implicit_one_unguarded() {
    let first =
        route("POST /v1/payments/**", "scope = \"payments\"\nwas = { scope = \"default\" }");
    let changes = changes(IMPLICIT, &first);
    assert!(changes.iter().all(|text| text.contains("no route guards them now")), "{changes:#?}");
    assert!(!changes.is_empty());
}

#[test]
fn a_change_is_refused_after_a_route_that_guarded_only_observes() {
    let all = |lines: &str| route("/**", lines);
    let guarded = remembered(&all("scope = \"a\""));
    let observed = remembered_after(&guarded, &all("scope = \"a\"\nmode = \"observe\""), NOW + 1);
    let found = compare(&observed, &routes(&all("scope = \"b\"\nmode = \"observe\"")));
    assert_eq!(found.changes.len(), 1);
}

#[test]
fn another_fingerprint_rule_alone_is_a_warning() {
    let all = |lines: &str| route("/**", &format!("scope = \"a\"\n{lines}"));
    let old = remembered(&all(""));
    let found = compare(&old, &routes(&all("fingerprint = { query = \"ignore\" }")));
    assert_eq!(found.changes, []);
    assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
    let warning = found.warnings.first().unwrap();
    assert!(warning.contains("POST,PATCH /**") && warning.contains("query = \"ignore\""));
    assert_eq!(compare(&old, &routes(&all(""))).warnings, [""; 0]);
}

/// The former scopes of the first route, each with the remaining seconds of its lookup.
fn former(entries: &[RememberedRoute], tables: &str, now: u64) -> Vec<(String, u64)> {
    let routes = routes(tables);
    let guard = routes.first().and_then(|route| route.guard.as_ref()).unwrap();
    let scopes = entries.first().unwrap().former_scopes(guard, now);
    let left = |until: std::time::SystemTime| {
        until.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() - now
    };
    scopes.into_iter().map(|(scope, until)| (scope.to_string(), left(until))).collect()
}

#[test]
fn a_former_scope_is_looked_up_for_the_longer_of_both_retentions() {
    const HOUR: u64 = 3600;
    let new = route("/**", "scope = \"b\"\nwas = { scope = \"a\" }\nretention = \"1h\"");
    let old = remembered(&route("/**", "scope = \"a\"\nretention = \"2h\""));
    let changed = remembered_after(&old, &new, NOW + 10);
    let scope = |left| vec![("a".to_owned(), left)];
    assert_eq!(former(&changed, &new, NOW + 10), scope(2 * HOUR + 1));
    // A restart does not restart the period.
    let again = remembered_after(&changed, &new, NOW + 10 + HOUR);
    assert_eq!(former(&again, &new, NOW + 10 + HOUR), scope(HOUR + 1));
    assert_eq!(former(&again, &new, NOW + 11 + 2 * HOUR), []);
}

#[test]
fn observed_records_are_looked_up_once_a_route_guards() {
    let observing = route("/**", "scope = \"a\"\nmode = \"observe\"\nretention = \"1h\"");
    let guarding = route("/**", "scope = \"a\"\nretention = \"1h\"");
    let old = remembered(&observing);
    assert_eq!(former(&old, &observing, NOW), []);
    let guards = remembered_after(&old, &guarding, NOW);
    assert_eq!(former(&guards, &guarding, NOW), [("a~observed".to_owned(), 3601)]);
    let again = remembered_after(&guards, &guarding, NOW + 3000);
    assert_eq!(former(&again, &guarding, NOW + 3000), [("a~observed".to_owned(), 601)]);
    assert_eq!(former(&again, &guarding, NOW + 3601), []);
    assert_eq!(former(&remembered(&guarding), &guarding, NOW), []);
}

#[test]
fn a_former_scope_is_looked_up_although_the_configuration_no_longer_names_it() {
    let at = |lines: &str| route("POST /v1/**", lines);
    let (a, b) = (at("scope = \"a\""), at("scope = \"b\"\nwas = { scope = \"a\" }"));
    let first = remembered(&a);
    let second = remembered_after(&first, &b, NOW + 10);
    let day = 24 * 60 * 60 + 1;
    // The line is removed within the hour.
    let without = at("scope = \"b\"");
    let third = remembered_after(&second, &without, NOW + 3600);
    assert_eq!(former(&third, &without, NOW + 3600), [("a".to_owned(), 10 + day - 3600)]);
    // The scope is renamed again within the hour.
    let c = at("scope = \"c\"\nwas = { scope = \"b\" }");
    let third = remembered_after(&second, &c, NOW + 3600);
    let both = [("a".to_owned(), 10 + day - 3600), ("b".to_owned(), day)];
    assert_eq!(former(&third, &c, NOW + 3600), both);
    // After that period nothing is looked up.
    let late = NOW + 3 * day;
    assert_eq!(former(&remembered_after(&third, &c, late), &c, late), []);
}

#[test]
fn a_shorter_retention_does_not_shorten_the_time_of_former_records() {
    let at = |lines: &str| route("POST /v1/**", lines);
    let month = 30 * 24 * 60 * 60;
    let long = remembered(&at("scope = \"a\"\nretention = \"30d\""));
    let short = remembered_after(&long, &at("scope = \"a\"\nretention = \"1h\""), NOW + 100);
    let moved = at("scope = \"b\"\nwas = { scope = \"a\" }\nretention = \"1h\"");
    let moved_entries = remembered_after(&short, &moved, NOW + 7200);
    let until = former(&moved_entries, &moved, NOW + 7200);
    assert_eq!(until, [("a".to_owned(), 100 + month + 1 - 7200)]);
}

#[test]
fn only_a_shorter_retention_leaves_records_of_a_former_one() {
    let at = |retention: &str| {
        route("POST /v1/**", &format!("scope = \"s\"\nretention = \"{retention}\""))
    };
    let until = |entries: &[RememberedRoute]| {
        entries.first().and_then(|entry| entry.guard.as_ref()).unwrap().former_retention_until
    };
    let long = remembered(&at("2h"));
    assert_eq!(until(&long), 0);
    assert_eq!(until(&remembered_after(&long, &at("2h"), NOW + 10)), 0, "a restart");
    assert_eq!(until(&remembered_after(&long, &at("3h"), NOW + 10)), 0);
    let short = remembered_after(&long, &at("1h"), NOW + 10);
    assert_eq!(until(&short), NOW + 10 + 7201);
    assert_eq!(until(&remembered_after(&short, &at("1h"), NOW + 20)), NOW + 10 + 7201);
    assert_eq!(until(&remembered_after(&short, &at("3h"), NOW + 20)), NOW + 10 + 7201);
}

/// A store returns a thousand of them: with more, some would be compared with nothing.
#[test]
fn more_routes_than_a_store_remembers_are_refused() {
    let tables = |count: usize| -> String {
        let one = |number| route(&format!("POST /{number}"), "scope = \"s\"");
        (0..count).map(one).collect()
    };
    assert_eq!(changes(&tables(1_000), &tables(1_000)), Vec::<String>::new());
    let text = format!("[gateway]\nupstream = \"http://127.0.0.1:1\"\n{}", tables(1_001));
    let error = Config::read(None, &text, &Overrides::default(), &|_| None).unwrap_err();
    assert!(error.to_string().contains("at most 1000 routes"), "{error}");
}

#[test]
fn the_time_of_the_first_warning_is_remembered() {
    let warns = route("POST /a", "scope = \"s\"\nkey = { required = \"warn\" }");
    let since = |entries: &[RememberedRoute]| entries.first().unwrap().warned_since();
    let first = remembered(&warns);
    let later = remembered_after(&first, &warns, NOW + 1_000);
    assert_eq!((since(&first).is_some(), since(&later)), (true, since(&first)));
    let required = remembered_after(&later, &warns.replace("\"warn\"", "true"), NOW + 2_000);
    assert_eq!(since(&required), None);
}
