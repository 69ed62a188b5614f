//! The SDKs of Stripe and OpenAI over a wire that loses the first answer to every call: one
//! execution for each call, and what is final is sent once.

use std::{collections::BTreeMap, net::SocketAddr};

use crate::{
    gateway::Gateway,
    http_proxy::{HttpProxy, Loss},
    scripted_api::ScriptedApi,
    vendor_sdk::{Call, Sdk, SdkResult},
};

/// Each way to lose an answer is met several times.
const CALLS: usize = 8;

#[test]
fn the_stripe_sdk_for_python_charges_once_and_raises_its_idempotency_error() {
    charges_once_and_raises(Sdk::StripePython, route_of_the_guide(), &STRIPE);
}

#[test]
fn the_stripe_sdk_for_node_charges_once_and_raises_its_idempotency_error() {
    charges_once_and_raises(Sdk::StripeNode, route_of_the_guide(), &STRIPE);
}

#[test]
fn the_openai_sdk_for_python_runs_once_and_retries_nothing_final() {
    let unknown = (423, "APIStatusError");
    charges_once_and_raises(Sdk::OpenAiPython, "", &Errors { unknown, ..OPENAI });
}

#[test]
fn the_openai_sdk_for_node_runs_once_and_retries_nothing_final() {
    charges_once_and_raises(Sdk::OpenAiNode, "", &OPENAI);
}

/// The status and the class of the errors of an SDK.
struct Errors {
    reused: (u16, &'static str),
    unknown: (u16, &'static str),
    /// Whether the SDK makes a key of its own.
    makes_keys: bool,
}

const STRIPE: Errors = Errors {
    reused: (400, "IdempotencyError"),
    unknown: (400, "IdempotencyError"),
    makes_keys: true,
};

const OPENAI: Errors = Errors {
    reused: (422, "UnprocessableEntityError"),
    unknown: (423, "APIError"),
    makes_keys: false,
};

/// The SDKs do not retry an answer that breaks off midway. A program that calls again with the same
/// key gets the answer.
fn gets_what_broke_off_by_calling_again(sdk: Sdk, api: &ScriptedApi, gateway: &Gateway) {
    let proxy = HttpProxy::losing_first_answers_of(gateway.address());
    let create = |key: &str| Call::create("charges", key);
    let calls = ["wire-1", "wire-2", "wire-3"].map(create);
    let calling = sdk.call(proxy.address, &[[&calls[..], &calls].concat()]).unwrap();
    let results = calling.end();
    for (result, call) in results.iter().zip(calls.iter().cycle()) {
        assert_eq!(result.name, call.name);
        let is_resolved = result.resolved.is_some();
        assert!(is_resolved || (call.name == "wire-2" && result.status.is_none()), "{result:?}");
    }
    assert!(results[3..].iter().all(|result| result.resolved.is_some()), "{results:?}");
    assert_eq!(["wire-1", "wire-2", "wire-3"].map(|key| api.runs(key)), [1; 3]);
    assert!(matches!(proxy.losses()["wire-2"], Loss::Half(_)));
}

/// What the guide to Stripe's SDKs says to write.
fn route_of_the_guide() -> &'static str {
    let guide = include_str!("../../../../docs/guide/stripe-sdks.md");
    let (_, route) = guide.split_once("```toml\n").unwrap();
    route.split("```").next().unwrap()
}

fn configuration(upstream: SocketAddr, route: &str) -> String {
    format!("[gateway]\nupstream = \"http://{upstream}\"\n{route}")
}

fn charges_once_and_raises(sdk: Sdk, route: &str, errors: &Errors) {
    let api = ScriptedApi::start();
    let gateway = Gateway::configured(&configuration(api.address, route));
    let proxy = HttpProxy::losing_whole_first_answers_of(gateway.address());
    let charge = |key: &str| Call::create("charges", key);
    let other =
        |key: &str| Call { description: "another".to_owned(), ..charge(key).named("reused") };
    let mut sequences: Vec<Vec<Call>> =
        (0..CALLS).map(|number| vec![charge(&format!("charge-{number}"))]).collect();
    sequences.push(vec![charge("changed"), other("changed")]);
    sequences.push(vec![charge("cut-1"), charge("cut-1").named("cut-1 again")]);
    if errors.makes_keys {
        sequences.push(vec![Call { key: None, ..charge("own") }]);
    }
    let Some(calling) = sdk.call(proxy.address, &sequences) else { return };
    let results: BTreeMap<String, SdkResult> =
        calling.end().into_iter().map(|result| (result.name.clone(), result)).collect();

    let losses = proxy.losses();
    assert_eq!(losses.len(), sequences.len(), "every call lost an answer: {losses:?}");
    let whole = losses.values().filter(|loss| matches!(loss, Loss::Whole(_))).count();
    let none = losses.values().filter(|loss| matches!(loss, Loss::BeforeAnyAnswer)).count();
    assert!(whole >= 3 && none >= 3, "{losses:?}");
    // One execution for each call, whose answer arrived with the retry.
    let resolved = |name: &str, key: &str| {
        let result = &results[name];
        let made = result.resolved.as_ref().unwrap_or_else(|| panic!("{result:?}"));
        assert_eq!(made["id"], format!("made for {key}"));
        assert_eq!(api.runs(key), 1, "{key}");
    };
    for number in 0..CALLS {
        let key = format!("charge-{number}");
        resolved(&key, &key);
        assert_eq!(proxy.statuses(&key), [200]);
    }
    resolved("changed", "changed");
    if errors.makes_keys {
        let made = |key: &&String| {
            results["own"].resolved.as_ref().unwrap()["id"].as_str()
                == Some(&format!("made for {key}"))
        };
        let key = losses.keys().find(made).unwrap();
        assert!(key.len() >= 32, "it was made by the SDK: {key}");
        assert_eq!(api.runs(key), 1);
    }
    assert_eq!(api.runs_in_all(), sequences.len());
    // What is final is an error of its own class, and is sent once.
    let raised = |name: &str, (status, class): (u16, &str), code: &str| {
        let result = &results[name];
        let found = (result.status, result.class.as_deref(), result.code.as_deref());
        assert_eq!(found, (Some(status), Some(class), Some(code)), "{result:?}");
    };
    raised("reused", errors.reused, "key_reused");
    assert_eq!(proxy.statuses("changed"), [200, errors.reused.0]);
    raised("cut-1", errors.unknown, "outcome_unknown");
    raised("cut-1 again", errors.unknown, "outcome_unknown");
    assert_eq!(proxy.statuses("cut-1"), [errors.unknown.0; 2]);
    assert_eq!(api.runs("cut-1"), 1);
    gets_what_broke_off_by_calling_again(sdk, &api, &gateway);
}
