//! A bank on tonic: the call `Transfer` moves money from one account to another, once.
//!
//! ```text
//! $ export BANK_SECRET=9f86d081884c7d659a2feaa0c55ad015
//! $ cargo run -p semel-examples --bin grpc -- serve /tmp/bank 127.0.0.1:50051
//! serving http://127.0.0.1:50051
//!
//! $ cargo build -p semel-examples && cd target/debug
//! $ ./grpc transfer http://127.0.0.1:50051 k1 ada grace 100
//! transfer 1, 9900 cents left
//! $ ./grpc transfer http://127.0.0.1:50051 k1 ada grace 100
//! transfer 1, 9900 cents left (replayed)
//! $ ./grpc transfer http://127.0.0.1:50051 k1 ada grace 200
//! Error: FailedPrecondition, key-reused
//! $ ./grpc transfer http://127.0.0.1:50051 k2 ada grace 1000000
//! Error: FailedPrecondition: the account ada has only 9900 cents
//! $ ./grpc balance http://127.0.0.1:50051 grace
//! 10100 cents
//! ```
//!
//! The key travels in the metadata `idempotency-key`, and the answer is judged by its
//! `grpc-status`. What a repeat gets is the first answer with its trailers, byte for byte.
//!
//! - **Guard a service, not the server.** Every gRPC call is a POST, so a layer on the whole server
//!   ([`Server::layer`]) that requires a key also refuses health checks and reflection, and one
//!   that does not replays an old balance to a client that sends a key with everything.
//!   [`LayerExt::named_layer`] puts the layer around one service: here, [`Transfers`] is guarded
//!   and [`Balances`] is not.
//! - **A status that says what happened**: see the conversion from [`AccountsError`].
//!   `NOT_FOUND` and `FAILED_PRECONDITION` are final, `UNAVAILABLE` frees the key, `UNKNOWN` leaves
//!   the outcome open.
//! - **An unknown outcome may run again** here, because the key is in the transaction that moves
//!   the money ([`Accounts`]).
//! - **A call with a key is unary, or its answer streams.** A guarded request is read to its end
//!   before the handler starts, so a call that streams for long or in both directions must not
//!   carry a key: the client would wait for an answer, and the handler for the end. A service that
//!   answers with a stream says so by [`Streaming`](semel_tower::Streaming) among the extensions of
//!   its [`Response`]; otherwise the stream is collected before its first message goes out.
//! - **A retry sends the same bytes.** Messages are compared as they are encoded: encode once and
//!   send that again, or leave maps out of the messages, whose order is not fixed.
//!
//! The messages and services below are those of this file, which other languages need:
//!
//! ```text
//! syntax = "proto3";
//! package bank;
//!
//! service Transfers { rpc Transfer(Transfer) returns (Receipt); }
//! service Balances { rpc Get(Account) returns (Balance); }
//!
//! message Transfer { string from = 1; string to = 2; uint32 cents = 3; }
//! message Receipt { int64 number = 1; int64 left_cents = 2; }
//! message Account { string name = 1; }
//! message Balance { int64 cents = 1; }
//! ```
//!
//! [`Server::layer`]: tonic::transport::Server::layer

mod accounts;

use std::{fs, future::Future, path::Path, time::Duration};

use semel::{
    Semel,
    core::{OnUnknown, Policy, Scope, ScopeError},
};
use semel_sqlite::SqliteStore;
use semel_tower::{Callers, IdempotencyLayer, KeyRule, Lease, Secret};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status, async_trait,
    service::LayerExt,
    transport::{Server, server::TcpIncoming},
};

pub use accounts::{Accounts, AccountsError};
pub use generated::{
    balances_client::BalancesClient,
    balances_server::{Balances, BalancesServer},
    transfers_client::TransfersClient,
    transfers_server::{Transfers, TransfersServer},
};

/// What `build.rs` has written.
#[expect(
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    unreachable_pub,
    unused_qualifications,
    reason = "the code is generated"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/bank.Balances.rs"));
    include!(concat!(env!("OUT_DIR"), "/bank.Transfers.rs"));
}

/// How long a stop waits for what still runs.
const DRAIN: Duration = Duration::from_secs(65);

/// Who pays whom.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Transfer {
    /// The account that pays.
    #[prost(string, tag = "1")]
    pub from: String,
    /// The account that is paid.
    #[prost(string, tag = "2")]
    pub to: String,
    /// How much.
    #[prost(uint32, tag = "3")]
    pub cents: u32,
}

/// The proof of a transfer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Receipt {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub number: i64,
    /// What the one who paid had left.
    #[prost(int64, tag = "2")]
    pub left_cents: i64,
}

/// Whose account.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Account {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// What is in an account.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Balance {
    /// How much.
    #[prost(int64, tag = "1")]
    pub cents: i64,
}

/// The bank. Clones share everything.
#[derive(Clone, Debug)]
pub struct Bank {
    semel: Semel,
    accounts: Accounts,
}

#[async_trait]
impl Transfers for Bank {
    async fn transfer(&self, request: Request<Transfer>) -> Result<Response<Receipt>, Status> {
        let lease = request.extensions().get::<Lease>().cloned();
        let lease = lease.ok_or_else(|| Status::internal("this service must be guarded"))?;
        let receipt = self.accounts.transfer(lease.id(), request.into_inner()).await?;
        Ok(Response::new(receipt))
    }
}

#[async_trait]
impl Balances for Bank {
    async fn get(&self, request: Request<Account>) -> Result<Response<Balance>, Status> {
        let cents = self.accounts.balance(&request.get_ref().name).await?;
        Ok(Response::new(Balance { cents }))
    }
}

impl Bank {
    /// A bank with its files in this folder.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            semel: Semel::new(SqliteStore::open(folder.join("semel.db"))?),
            accounts: Accounts::at(&folder.join("bank.db"))?,
        })
    }

    /// The engine, for operators.
    #[must_use]
    pub const fn semel(&self) -> &Semel {
        &self.semel
    }

    /// The accounts, for the teller.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The layer around what moves money. Whether a caller's token is good, and whose money it may
    /// move, is for an authentication outside of it, which is left out here.
    ///
    /// # Errors
    ///
    /// None, as long as the scope has a valid name.
    pub fn idempotency(&self, secret: &Secret) -> Result<IdempotencyLayer, ScopeError> {
        let callers = Callers::authorization(secret);
        let policy = Policy { on_unknown: OnUnknown::Rerun, ..Policy::default() };
        Ok(IdempotencyLayer::new(&self.semel, Scope::new("transfers")?, callers)
            .key(KeyRule::default().required())
            .policy(policy))
    }

    /// Serves until shutdown, then waits for running work, and returns how many
    /// transfers did not.
    ///
    /// # Errors
    ///
    /// If it cannot serve.
    pub async fn serve(
        self,
        listener: TcpListener,
        secret: &Secret,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<usize> {
        let transfers = TransfersServer::new(self.clone());
        Server::builder()
            .add_service(self.idempotency(secret)?.named_layer(transfers))
            .add_service(BalancesServer::new(self.clone()))
            .serve_with_incoming_shutdown(TcpIncoming::from(listener), stop)
            .await?;
        // The server has waited for its clients. A transfer whose client hung up still runs.
        Ok(self.semel.drain(DRAIN).await)
    }
}
