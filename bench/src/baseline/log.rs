//! The least that is durable at all: a file that only grows, a map in memory, one sync for whatever
//! has queued up. No checksum, no recovery, no reading, no deletion: a limit, not a store.

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

/// As many as the store takes in one transaction.
const BATCH_MAX: usize = 512;

#[derive(Debug)]
pub(crate) struct BareLog {
    asks: Sender<Asked>,
}

type Asked = (Ask, oneshot::Sender<Told>);

#[derive(Debug)]
enum Ask {
    Claim(Box<Claim>),
    Complete(RecordId, u64, Answer),
}

#[derive(Clone, Copy, Debug)]
enum Told {
    Done(u64),
    Refused,
    Failed,
}

impl BareLog {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create_new(true).append(true).open(path)?;
        let (asks, asked) = mpsc::channel();
        let mut writer = Writer { file, fences: HashMap::new(), last: 0, buffer: Vec::new() };
        std::thread::Builder::new()
            .name("bare-log".to_owned())
            .spawn(move || writer.run(&asked))?;
        Ok(Self { asks })
    }

    async fn ask(&self, ask: Ask) -> anyhow::Result<u64> {
        let (reply, told) = oneshot::channel();
        self.asks.send((ask, reply)).ok().context("the thread has stopped")?;
        match told.await? {
            Told::Done(fence) => Ok(fence),
            Told::Refused => bail!("the key is taken or the fence has passed"),
            Told::Failed => bail!("the log cannot be written"),
        }
    }
}

struct Writer {
    file: File,
    fences: HashMap<RecordId, u64>,
    last: u64,
    buffer: Vec<u8>,
}

impl Writer {
    fn run(&mut self, asked: &Receiver<Asked>) {
        let mut batch = Vec::new();
        while let Ok(first) = asked.recv() {
            batch.push(first);
            batch.extend(asked.try_iter().take(BATCH_MAX - 1));
            let told: Vec<Told> = batch.iter().map(|(ask, _)| self.apply(ask)).collect();
            let written = self.commit();
            for ((_, reply), told) in batch.drain(..).zip(told) {
                let _ = reply.send(if written.is_ok() { told } else { Told::Failed });
            }
        }
    }

    fn apply(&mut self, ask: &Ask) -> Told {
        match ask {
            Ask::Claim(claim) if self.fences.contains_key(&claim.id) => Told::Refused,
            Ask::Claim(claim) => {
                self.last += 1;
                self.fences.insert(claim.id.clone(), self.last);
                self.put_claim(claim);
                Told::Done(self.last)
            }
            Ask::Complete(id, fence, answer) => {
                if self.fences.get(id) != Some(fence) {
                    return Told::Refused;
                }
                // The record, and a number for when it ended.
                [*fence, self.last].iter().for_each(|it| self.buffer.extend(it.to_le_bytes()));
                self.buffer.extend([1]);
                self.buffer.extend_from_slice(answer.as_bytes());
                Told::Done(*fence)
            }
        }
    }

    /// What the store keeps of a claim: the same columns, the same bytes.
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
        let fence = self.ask(Ask::Claim(Box::new(claim.clone()))).await?;
        Fence::new(fence).context("a fence of zero")
    }

    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()> {
        self.ask(Ask::Complete(claim.id.clone(), fence.get(), answer.clone())).await.map(drop)
    }
}
