//! Services whose one handler is at `POST /webhooks/stripe`, each in another framework, and how
//! often it ran.

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

/// What a service is written in, and the server that it runs on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stack {
    FlaskOnWsgiref,
    DjangoOnWsgiref,
    DjangoOnUvicorn,
    FastApiOnUvicorn,
    GoServeMux,
    Express4,
    Express5,
    /// With `app.use`, which takes every path below too.
    Express5Mounted,
    NodeUrl,
    NginxLocation,
    Tomcat,
}

/// A running service.
#[derive(Debug)]
pub(crate) struct WebhookService {
    process: Process,
    /// A line for each time that the handler ran, where the service cannot tell.
    log: Option<PathBuf>,
    _folder: TempDir,
}

impl WebhookService {
    /// `None` where a program is missing.
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

    /// How often the handler ran.
    pub(crate) fn hits(&self) -> usize {
        if let Some(log) = &self.log {
            return fs::read_to_string(log).unwrap().lines().count();
        }
        let request = "GET /hits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let answer = exchange(self.address(), request.as_bytes());
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        // A chunk's length stands on a line before it.
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
            // It is started once and serves a few hundred requests.
            java.args(["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-classpath"]);
            java.arg(format!("{0}:{0}/*", classes.display()));
            java.arg("TomcatWebhooks").arg(folder.path());
            Some(java)
        }
        Stack::NginxLocation => None,
    }
}

/// nginx on a port that was free a moment ago: it cannot tell which one it was given.
fn nginx(folder: &TempDir) -> Option<Process> {
    let program = prepared("SEMEL_TEST_NGINX")?;
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap();
    let place = folder.path().display();
    let text = format!(
        "daemon off; master_process off; pid {place}/pid; error_log stderr;\n\
         events {{}}\n\
         http {{\n\
           access_log off; client_body_temp_path {place}; proxy_temp_path {place};\n\
           fastcgi_temp_path {place}; uwsgi_temp_path {place}; scgi_temp_path {place};\n\
           server {{\n\
             listen {address};\n\
             location = /webhooks/stripe {{ access_log {place}/hits; return 200 handled; }}\n\
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
