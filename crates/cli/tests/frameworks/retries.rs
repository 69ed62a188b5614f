//! A client retries over a wire that loses the first answer to each of its requests.

use crate::{
    app::{App, Framework},
    client::{Client, Heard},
    gateway::Gateway,
    http::Connection,
    http_proxy::HttpProxy,
    scripted_api::ScriptedApi,
};

/// Three for each way to lose an answer.
const CHARGES: usize = 9;

#[test]
fn fastapi_runs_once_for_each_key_of_urllib3() {
    one_execution_for_each_key(Framework::FastApi, Client::Urllib3);
}

#[test]
fn fastapi_runs_once_for_each_key_of_axios() {
    one_execution_for_each_key(Framework::FastApi, Client::Axios);
}

#[test]
fn express_runs_once_for_each_key_of_urllib3() {
    one_execution_for_each_key(Framework::Express, Client::Urllib3);
}

#[test]
fn express_runs_once_for_each_key_of_axios() {
    one_execution_for_each_key(Framework::Express, Client::Axios);
}

/// The wire is as bad as the tests above believe: by itself, a retry is a second charge.
#[test]
fn without_the_gateway_every_charge_is_made_twice() {
    for (framework, client) in
        [(Framework::FastApi, Client::Urllib3), (Framework::Express, Client::Axios)]
    {
        let Some(app) = App::start(framework, None) else { continue };
        let Some(heard) =
            client.charge(HttpProxy::losing_first_answers_of(app.address()).address, CHARGES)
        else {
            continue;
        };
        assert_eq!(heard.len(), CHARGES);
        assert!(app.charges().values().all(|times| *times == 2), "{:?}", app.charges());
    }
}

/// As the guide has it: the timeout is retried, and the held key is final and gives its reason.
#[test]
fn urllib3_returns_a_held_key_with_its_problem() {
    let api = ScriptedApi::start();
    let gateway = Gateway::configured(&format!(
        "[gateway]\nupstream = \"http://{}\"\n[defaults]\ncaller = [\"anonymous\"]\n",
        api.address
    ));
    let proxy = HttpProxy::to(gateway.address());
    let Some(heard) = Client::Urllib3.charge_under("cut-", proxy.address, 1) else { return };
    let [heard] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((heard.status, heard.tries), (423, 2));
    let problem = String::from_utf8(heard.body()).unwrap();
    assert!(problem.contains("Do not repeat the operation under another key"), "{problem}");
    assert_eq!(proxy.statuses("cut-0"), [504, 423]);
    assert_eq!(api.runs("cut-0"), 1);
}

fn one_execution_for_each_key(framework: Framework, client: Client) {
    let Some(app) = App::start(framework, None) else { return };
    let gateway = Gateway::in_front_of(app.address());
    let wire = HttpProxy::losing_first_answers_of(gateway.address());
    let Some(heard) = client.charge(wire.address, CHARGES) else { return };

    let charges = app.charges();
    let losses = wire.losses();
    assert_eq!((heard.len(), charges.len(), losses.len()), (CHARGES, CHARGES, CHARGES));
    let mut direct = Connection::open(gateway.address());
    for (number, Heard { key, status, replayed, tries, .. }) in heard.iter().enumerate() {
        assert_eq!(charges[key], 1, "{key}: {:?}", losses[key]);
        assert_eq!(*status, 201, "{key}: {:?}", losses[key]);
        assert!(*tries >= 2, "{key} was not retried");
        let body = heard[number].body();
        // A retry that comes while the first try still runs gets its answer, not a replay.
        if let Some(first) = losses[key].answer() {
            assert_eq!(first.header("idempotent-replayed"), None);
            assert_eq!(first.body, body, "{key}");
            assert_eq!(replayed.as_deref(), Some("true"), "{key}");
        }
        let again = direct.charge(key, number).unwrap();
        assert_eq!(again.status, 201);
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        assert_eq!(again.body, body, "{key}");
    }
    assert_eq!(app.charges(), charges);
}
