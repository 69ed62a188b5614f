//! The least that is durable: an append-only file, a map in memory, one sync for all queued
//! commands. No checksum, no recovery, no reads, no deletion: a limit, not a store.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::mpsc::{self, Receiver, Sender},
};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use semel_core::{Answer, Claim, Fence, RecordId, time::millis};
use tokio::sync::oneshot;

use crate::load::Subject;

/// The batch size of the store.
const BATCH_MAX: usize = 512;

#[derive(Debug)]
pub(crate) struct BareLog {
    commands: Sender<PendingLogCommand>,
}

type PendingLogCommand = (LogCommand, oneshot::Sender<LogReply>);

#[derive(Debug)]
enum LogCommand {
    Claim(Box<Claim>),
    Complete(RecordId, u64, Answer),
}

#[derive(Clone, Copy, Debug)]
enum LogReply {
    Done(u64),
    Refused,
    Failed,
}

impl BareLog {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create_new(true).append(true).open(path)?;
        let (commands, receiver) = mpsc::channel();
        let mut writer = LogWriter { file, fences: HashMap::new(), last: 0, buffer: Vec::new() };
        std::thread::Builder::new()
            .name("bare-log".to_owned())
            .spawn(move || writer.run(&receiver))?;
        Ok(Self { commands })
    }

    async fn send(&self, command: LogCommand) -> anyhow::Result<u64> {
        let (reply, reply_rx) = oneshot::channel();
        self.commands.send((command, reply)).ok().context("the thread has stopped")?;
        match reply_rx.await? {
            LogReply::Done(fence) => Ok(fence),
            LogReply::Refused => bail!("the key is taken or the fence has passed"),
            LogReply::Failed => bail!("the log cannot be written"),
        }
    }
}

struct LogWriter {
    file: File,
    fences: HashMap<RecordId, u64>,
    last: u64,
    buffer: Vec<u8>,
}

impl LogWriter {
    fn run(&mut self, receiver: &Receiver<PendingLogCommand>) {
        let mut batch = Vec::new();
        while let Ok(first) = receiver.recv() {
            batch.push(first);
            batch.extend(receiver.try_iter().take(BATCH_MAX - 1));
            let replies: Vec<LogReply> =
                batch.iter().map(|(command, _)| self.apply(command)).collect();
            let written = self.commit();
            for ((_, sender), reply) in batch.drain(..).zip(replies) {
                let _ = sender.send(if written.is_ok() { reply } else { LogReply::Failed });
            }
        }
    }

    fn apply(&mut self, command: &LogCommand) -> LogReply {
        match command {
            LogCommand::Claim(claim) if self.fences.contains_key(&claim.id) => LogReply::Refused,
            LogCommand::Claim(claim) => {
                self.last += 1;
                self.fences.insert(claim.id.clone(), self.last);
                self.put_claim(claim);
                LogReply::Done(self.last)
            }
            LogCommand::Complete(id, fence, answer) => {
                if self.fences.get(id) != Some(fence) {
                    return LogReply::Refused;
                }
                // The record, and a number for when it ended.
                [*fence, self.last].iter().for_each(|it| self.buffer.extend(it.to_le_bytes()));
                self.buffer.extend([1]);
                self.buffer.extend_from_slice(answer.as_bytes());
                LogReply::Done(*fence)
            }
        }
    }

    /// Writes the same columns and bytes as the store.
    fn put_claim(&mut self, claim: &Claim) {
        let numbers =
            [self.last, self.last, millis(claim.retention), millis(claim.lease), self.last];
        numbers.iter().for_each(|number| self.buffer.extend(number.to_le_bytes()));
        self.buffer.extend([1, 0]);
        self.buffer.extend(claim.owner.as_bytes());
        self.buffer.extend(claim.fingerprint.as_bytes());
        let RecordId { scope, caller, key } = &claim.id;
        let (about, node) = (claim.about.as_str(), claim.node.as_str());
        for text in [scope.as_str(), caller.as_str(), key.as_str(), about, node] {
            self.buffer.extend(text.as_bytes());
        }
    }

    fn commit(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        self.file.sync_data()
    }
}

#[async_trait]
impl Subject for BareLog {
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence> {
        let fence = self.send(LogCommand::Claim(Box::new(claim.clone()))).await?;
        Fence::new(fence).context("a fence of zero")
    }

    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()> {
        self.send(LogCommand::Complete(claim.id.clone(), fence.get(), answer.clone()))
            .await
            .map(drop)
    }
}
