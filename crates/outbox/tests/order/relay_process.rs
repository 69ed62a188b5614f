//! A relay in a process of its own, with a sink that appends a line to a file.

use std::{
    fs::{File, OpenOptions},
    future::pending,
    io::Write as _,
    time::Duration,
};

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use semel_outbox::{Delivery, OutboxMessage, Relay, Sink, postgres::PgOutbox};
use tokio_postgres::{Config, NoTls};

use crate::{harness::child_role, planted};

/// Appends each message. What was written survives a kill of the process.
pub(crate) struct FileSink(File);

impl FileSink {
    pub(crate) fn append(&self, key: &str, id: &str) {
        // One call, so that lines of several processes do not mix.
        (&self.0).write_all(format!("{key} {id}\n").as_bytes()).unwrap();
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        self.append(message.key.as_deref().unwrap(), &message.id.to_string());
        Delivery::Delivered
    }
}

#[test]
fn a_relay_process_does_nothing_by_itself() {
    let Some((role, url, file)) = child_role() else { return };
    let sink = FileSink(OpenOptions::new().append(true).open(file).unwrap());
    let config: Config = url.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "Semel" => {
                let pool = Pool::builder(Manager::new(config, NoTls)).max_size(1).build().unwrap();
                let outbox = PgOutbox::new(pool).with_lease(Duration::from_secs(2));
                Relay::new(outbox, sink).run(pending()).await;
            }
            "AfterLast" => planted::after_last(&config, &sink).await,
            "SkipLocked" => planted::skip_locked(&config, &sink).await,
            _ => panic!("no role {role}"),
        }
    });
}
