//! The guides and examples for Python and TypeScript, run as they are written.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    http::Connection,
    process::{Process, prepared},
    semel_clients::{CLIENTS, python, typescript},
    service::Service,
};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");

/// The blocks of a guide in this language, one after the other.
fn blocks(guide: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = guide.split(&*fence).skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.collect()
}

/// Runs what a guide shows against a server with its configuration, and compares the output.
fn follow(name: &str, language: &str, command: impl FnOnce(String) -> Command) {
    let guide = fs::read_to_string(format!("{DOCS}/{name}")).unwrap();
    let configuration = blocks(&guide, "toml").replace("store = \"sqlite:semel.db\"\n", "");
    let service = Service::configured(&configuration);
    let mut command = command(blocks(&guide, language));
    let output = service.introduce(&mut command).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{name}: {}", output.status);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), blocks(&guide, "text"), "{name}");
}

#[test]
fn the_guide_for_python_prints_what_it_says() {
    let Some(mut python) = python() else { return };
    follow("from-python.md", "python", |program| {
        python.args(["-c", &program]);
        python
    });
}

#[test]
fn the_guide_to_consumers_prints_what_it_says() {
    let Some(mut python) = python() else { return };
    follow("consumer.md", "python", |program| {
        python.args(["-c", &program]);
        python
    });
}

#[test]
fn the_guide_for_typescript_prints_what_it_says() {
    let (Some(compiled), Some(modules)) = (typescript(), prepared("SEMEL_TEST_NODE_MODULES"))
    else {
        return;
    };
    let folder = TempDir::new().unwrap();
    follow("from-typescript.md", "ts", |program| {
        let module = format!("file://{}", compiled.join("src/index.js").display());
        let program = program.replace("from \"semel\"", &format!("from \"{module}\""));
        fs::write(folder.path().join("guide.mts"), program).unwrap();
        let mut tsc = Command::new(modules.join(".bin/tsc"));
        // The module's address is known at run time only, so types are not checked here.
        tsc.current_dir(folder.path()).args(["guide.mts", "--module", "nodenext", "--noCheck"]);
        tsc.args(["--target", "es2022", "--lib", "es2023,esnext.disposable,dom"]);
        let compiled = tsc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stdout));
        let mut node = Command::new("node");
        node.arg(folder.path().join("guide.mjs"));
        node
    });
}

/// The API of an example.
struct Orders(Process);

impl Orders {
    /// Posts an order under a user's key.
    fn post(&self, user: &str, key: &str, order: &Value) -> (u16, Value) {
        let order = order.to_string();
        let request = format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Idempotency-Key: {key}\r\nX-User: {user}\r\nContent-Length: {}\r\n\r\n{order}",
            order.len()
        );
        let mut connection = Connection::open(self.0.address);
        connection.send(request.as_bytes()).unwrap();
        let answer = connection.answer().unwrap();
        (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    /// How many orders were made.
    fn made(&self) -> usize {
        let answer = Connection::open(self.0.address).get("/orders").unwrap();
        let orders: Value = serde_json::from_slice(&answer.body).unwrap();
        orders.as_array().unwrap().len()
    }
}

fn runs_each_order_once(mut command: Command) {
    let service = Service::start();
    let orders = Orders(Process::start(service.introduce(&mut command)));
    let tea = json!({ "item": "tea", "amount": 100 });
    assert_eq!(orders.post("ada", "k-1", &tea), (201, json!({ "order": 1 })));
    assert_eq!(orders.post("ada", "k-1", &tea), (201, json!({ "order": 1 })));
    assert_eq!(orders.post("eve", "k-1", &tea), (201, json!({ "order": 2 })));
    assert_eq!(orders.made(), 2);
    let other = json!({ "item": "tea", "amount": 900 });
    assert_eq!(orders.post("ada", "k-1", &other).0, 422);
    assert_eq!(orders.post("ada", "k-2", &json!({ "item": "tea", "amount": -1 })).0, 400);
    let crash = json!({ "item": "crash", "amount": 1 });
    assert_eq!(orders.post("ada", "k-3", &crash).0, 500);
    let (status, problem) = orders.post("ada", "k-3", &crash);
    assert_eq!((status, &problem["type"]), (423, &"urn:semel:problem:outcome-unknown".into()));
    assert_eq!(orders.made(), 2);
}

#[test]
fn the_fastapi_example_runs_each_order_once() {
    let Some(mut python) = python() else { return };
    python.current_dir(format!("{CLIENTS}/python/examples"));
    python.args(["-m", "uvicorn", "fastapi_orders:app", "--port", "0"]);
    runs_each_order_once(python);
}

#[test]
fn the_express_example_runs_each_order_once() {
    let (Some(compiled), Some(modules)) = (typescript(), prepared("SEMEL_TEST_NODE_MODULES"))
    else {
        return;
    };
    let module: PathBuf = compiled.join("src/index.js");
    let mut node = Command::new("node");
    node.env("NODE_PATH", modules).env("SEMEL_MODULE", format!("file://{}", module.display()));
    node.arg(format!("{CLIENTS}/typescript/examples/express_orders.cjs"));
    runs_each_order_once(node);
}

/// The example of a consumer reads messages from its input, and says what its broker is answered.
#[test]
fn the_consumer_example_runs_each_message_once() {
    let service = Service::start();
    let consume = |messages: &[&str]| -> Option<Vec<String>> {
        let mut python = python()?;
        python.arg(format!("{CLIENTS}/python/examples/consumer.py"));
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = service.introduce(&mut python).spawn().unwrap();
        let lines = messages.iter().map(|id| format!("{}\n", json!({ "id": id })));
        let input = lines.collect::<String>();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        let text = String::from_utf8(output.stdout).unwrap();
        // Without the fences.
        let shown = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        Some(text.lines().map(shown).collect())
    };
    let Some(first) = consume(&["m-1", "m-2", "m-1"]) else { return };
    assert_eq!(first, ["ran m-1", "ack m-1", "ran m-2", "ack m-2", "ack m-1"]);
    // Another consumer gets a message again.
    assert_eq!(consume(&["m-2", "m-3"]).unwrap(), ["ack m-2", "ran m-3", "ack m-3"]);
}
