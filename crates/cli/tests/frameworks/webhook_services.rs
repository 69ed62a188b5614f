//! Webhook services in several frameworks. Each has one handler, `POST /webhooks/stripe`, and
//! counts its executions.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::Command,
};

use tempfile::TempDir;

use crate::{
    HERE,
    http::exchange,
    process::{Process, prepared},
};

/// The framework of a service and its HTTP server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stack {
    FlaskOnWsgiref,
    DjangoOnWsgiref,
    DjangoOnUvicorn,
    FastApiOnUvicorn,
    GoServeMux,
    Express4,
    Express5,
    /// With `app.use`, which also matches every path below.
    Express5Mounted,
    NodeUrl,
    NginxLocation,
    Tomcat,
}

/// A running service.
#[derive(Debug)]
pub(crate) struct WebhookService {
    process: Process,
    /// Has a line for each execution, if the service itself cannot count.
    log: Option<PathBuf>,
    _folder: TempDir,
}

impl WebhookService {
    /// Starts a service; `None` if a program is not installed.
    pub(crate) fn start(stack: Stack) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        if stack == Stack::NginxLocation {
            let process = nginx(&folder)?;
            let log = Some(folder.path().join("hits"));
            return Some(Self { process, log, _folder: folder });
        }
        let process = Process::start(&mut command(stack, &folder)?);
        Some(Self { process, log: None, _folder: folder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// Number of executions of the handler.
    pub(crate) fn hits(&self) -> usize {
        if let Some(log) = &self.log {
            return fs::read_to_string(log).unwrap().lines().count();
        }
        let request = "GET /hits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let answer = exchange(self.address(), request.as_bytes());
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        // In a chunked body the size of the chunk precedes the number.
        let counts: Vec<&str> = body.lines().filter(|line| !line.is_empty()).collect();
        let count = if counts.len() > 1 { counts[1] } else { counts[0] };
        count.parse().unwrap()
    }
}

fn command(stack: Stack, folder: &TempDir) -> Option<Command> {
    let services = format!("{HERE}/webhooks");
    let python = |arguments: &[&str]| {
        let mut python = Command::new(prepared("SEMEL_TEST_PYTHON")?);
        python.args(arguments).current_dir(&services).env("PYTHONDONTWRITEBYTECODE", "1");
        Some(python)
    };
    let uvicorn = |app| python(&["-m", "uvicorn", app, "--port", "0", "--no-access-log"]);
    let node = |kind| {
        let mut node = Command::new("node");
        node.env("NODE_PATH", prepared("SEMEL_TEST_NODE_MODULES")?);
        node.arg(format!("{services}/node_webhooks.js")).arg(kind);
        Some(node)
    };
    match stack {
        Stack::FlaskOnWsgiref => python(&["flask_webhooks.py"]),
        Stack::DjangoOnWsgiref => python(&["django_webhooks.py"]),
        Stack::DjangoOnUvicorn => uvicorn("django_webhooks:asgi"),
        Stack::FastApiOnUvicorn => uvicorn("fastapi_webhooks:app"),
        Stack::GoServeMux => Some(Command::new(prepared("SEMEL_TEST_GO")?.join("webhooks"))),
        Stack::Express4 => node("express4"),
        Stack::Express5 => node("express5"),
        Stack::Express5Mounted => node("express5-mounted"),
        Stack::NodeUrl => node("url"),
        Stack::Tomcat => {
            let classes = prepared("SEMEL_TEST_TOMCAT")?;
            let mut java = Command::new("java");
            // The process serves only a few hundred requests, so a fast start matters more.
            java.args(["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-classpath"]);
            java.arg(format!("{0}:{0}/*", classes.display()));
            java.arg("TomcatWebhooks").arg(folder.path());
            Some(java)
        }
        Stack::NginxLocation => None,
    }
}

/// Starts nginx on a port that was free just before: nginx does not report a port that the system
/// chooses.
fn nginx(folder: &TempDir) -> Option<Process> {
    let program = prepared("SEMEL_TEST_NGINX")?;
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap();
    let root = folder.path().display();
    let text = format!(
        "daemon off; master_process off; pid {root}/pid; error_log stderr;\n\
         events {{}}\n\
         http {{\n\
           access_log off; client_body_temp_path {root}; proxy_temp_path {root};\n\
           fastcgi_temp_path {root}; uwsgi_temp_path {root}; scgi_temp_path {root};\n\
           server {{\n\
             listen {address};\n\
             location = /webhooks/stripe {{ access_log {root}/hits; return 200 handled; }}\n\
             location / {{ return 404; }}\n\
           }}\n\
         }}\n"
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, text).unwrap();
    let mut nginx = Command::new(program);
    nginx.arg("-e").arg("stderr").arg("-p").arg(folder.path()).arg("-c").arg(&file);
    Some(Process::start_at(&mut nginx, address))
}
