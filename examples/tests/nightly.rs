//! The nightly job can be started repeatedly without double charges.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use semel::{
    core::{
        Caller, Fence, Key, RecordId, Resolution, Resolved, Scope, Snapshot, StateName, StateView,
        Store,
    },
    once,
};
use semel_examples::nightly::{
    Bank, BankError, Bill, BillOutcome, Job, Ledger, LedgerError, Line, Report, ToyBank,
};
use semel_sqlite::SqliteStore;
use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};
use tempfile::TempDir;
use tokio::{sync::Notify, time::sleep};

const LEASE: Duration = Duration::from_secs(2);

/// A bank that charges as configured, and counts.
#[derive(Clone, Debug, Default)]
struct TestBank {
    charges: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Its behaviour at the next charge of a customer.
    behaviours: Arc<Mutex<BTreeMap<String, Behaviour>>>,
    /// Wakes a waiting charge.
    wake: Arc<Notify>,
}

#[derive(Clone, Copy, Debug)]
enum Behaviour {
    Declines,
    IsUnreachable,
    ChargesAndDisconnects,
    ChargesAndNeverReturns,
    WaitsAndCharges,
    WaitsAndIsUnreachable,
}

impl TestBank {
    fn set_behaviour(&self, customer: &str, behaviour: Behaviour) {
        self.behaviours.lock().unwrap().insert(customer.to_owned(), behaviour);
    }

    fn charges(&self, customer: &str) -> u32 {
        self.charges.lock().unwrap().get(customer).copied().unwrap_or_default()
    }
}

impl Bank for TestBank {
    async fn charge(&self, _key: &Key, bill: &Bill) -> Result<(), BankError> {
        let behaviour = self.behaviours.lock().unwrap().remove(&bill.customer);
        if let Some(Behaviour::WaitsAndCharges | Behaviour::WaitsAndIsUnreachable) = behaviour {
            self.wake.notified().await;
        }
        match behaviour {
            Some(Behaviour::Declines) => return Err(BankError::Declined("expired".to_owned())),
            Some(Behaviour::IsUnreachable | Behaviour::WaitsAndIsUnreachable) => {
                return Err(BankError::Unreachable);
            }
            _ => *self.charges.lock().unwrap().entry(bill.customer.clone()).or_default() += 1,
        }
        match behaviour {
            Some(Behaviour::ChargesAndNeverReturns) => std::future::pending().await,
            Some(Behaviour::ChargesAndDisconnects) => {
                Err(BankError::Disconnected(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Ok(()),
        }
    }
}

/// The job of a new process, with everything opened again.
fn job<B: Bank>(folder: &Path, bank: B) -> Job<B> {
    Job::new(store(folder), ledger(folder), bank, LEASE)
}

/// A job whose store can be made unavailable.
fn job_with_flaky_store<B: Bank>(folder: &Path, bank: B) -> (FlakyStore, Job<B>) {
    let store = FlakyStore::new(store(folder));
    (store.clone(), Job::new(store, ledger(folder), bank, LEASE))
}

fn store(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder.join("semel.db")).unwrap()
}

fn id(bill: &Bill) -> RecordId {
    RecordId::new(Scope::new("invoicing").unwrap(), Caller::anonymous(), bill.key())
}

async fn record(folder: &Path, bill: &Bill) -> Snapshot {
    store(folder).get(&id(bill)).await.unwrap().unwrap()
}

fn ledger(folder: &Path) -> Ledger {
    Ledger::at(&folder.join("ledger.db")).unwrap()
}

fn bill(customer: &str, cents: u32) -> Bill {
    Bill { customer: customer.to_owned(), month: "2026-02".to_owned(), cents }
}

fn bills() -> Vec<Bill> {
    vec![bill("ada", 4_900), bill("grace", 12_050), bill("zoë", 7)]
}

fn outcomes(report: &Report) -> Vec<&BillOutcome> {
    report.lines.iter().map(|line| &line.outcome).collect()
}

#[tokio::test]
async fn a_second_start_charges_no_customer_again() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let first = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
    let second = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
    for (first, second) in first.lines.iter().zip(&second.lines) {
        let invoice = first.bill.invoice();
        assert_eq!(first.outcome, BillOutcome::Billed(invoice.clone()));
        assert_eq!(second.outcome, BillOutcome::BilledBefore(invoice));
        assert_eq!(bank.charges(&first.bill.customer), 1);
    }
    assert!(first.is_settled() && second.is_settled());
    assert_eq!(ledger(folder.path()).count().await.unwrap(), 3);
}

#[tokio::test]
async fn two_concurrent_starts_charge_each_customer_once() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let (one, two) = (job(folder.path(), bank.clone()), job(folder.path(), bank.clone()));
    let all = bills();
    let (one, two) = tokio::join!(one.run(&all), two.run(&all));
    assert!(one.unwrap().is_settled() && two.unwrap().is_settled());
    for bill in bills() {
        assert_eq!(bank.charges(&bill.customer), 1);
    }
}

#[tokio::test]
async fn a_declined_charge_is_not_retried_and_an_unreachable_bank_is() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    bank.set_behaviour("ada", Behaviour::Declines);
    bank.set_behaviour("grace", Behaviour::IsUnreachable);
    for _ in 0..2 {
        let report = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
        assert_eq!(report.lines[0].outcome, BillOutcome::Declined("expired".to_owned()));
        assert!(matches!(
            outcomes(&report)[1..],
            [
                BillOutcome::Billed(_) | BillOutcome::BilledBefore(_),
                BillOutcome::Billed(_) | BillOutcome::BilledBefore(_)
            ]
        ));
    }
    assert_eq!(["ada", "grace", "zoë"].map(|customer| bank.charges(customer)), [0, 1, 1]);
}

#[tokio::test]
async fn an_unknown_outcome_is_listed_until_an_operator_settles_it() {
    for charged in [true, false] {
        let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
        bank.set_behaviour("grace", Behaviour::ChargesAndDisconnects);
        for _ in 0..2 {
            let report = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
            let listed: Vec<&str> =
                report.unresolved().map(|line| line.bill.customer.as_str()).collect();
            assert_eq!(listed, ["grace"]);
            assert!(
                matches!(report.lines[1].outcome, BillOutcome::Unknown(_)) && !report.is_settled()
            );
        }
        let job = job(folder.path(), bank.clone());
        let grace = &bills()[1];
        job.settle(grace, charged).await.unwrap();
        let again = job.settle(grace, charged).await;
        assert_eq!(
            again.is_ok(),
            charged,
            "only a completed record can be settled again: {again:?}"
        );

        let report = job.run(&bills()).await.unwrap();
        assert!(report.is_settled());
        assert_eq!(matches!(report.lines[1].outcome, BillOutcome::BilledBefore(_)), charged);
        assert_eq!(bank.charges("grace"), if charged { 1 } else { 2 });
        assert_eq!(ledger(folder.path()).count().await.unwrap(), 3);
    }
}

/// A bill whose charge has an unknown outcome.
async fn bill_with_unknown_outcome(folder: &Path, bank: &TestBank) -> Bill {
    let ada = bill("ada", 4_900);
    bank.set_behaviour("ada", Behaviour::ChargesAndDisconnects);
    let report = job(folder, bank.clone()).run(std::slice::from_ref(&ada)).await.unwrap();
    assert!(matches!(outcomes(&report)[..], [BillOutcome::Unknown(_)]), "{report}");
    ada
}

#[tokio::test]
async fn only_the_charged_amount_can_be_settled() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let ada = bill_with_unknown_outcome(folder.path(), &bank).await;
    for charged in [true, false] {
        let job = job(folder.path(), bank.clone());
        let error = job.settle(&bill("ada", 5_900), charged).await.unwrap_err();
        assert!(error.to_string().contains("another amount"), "{error}");
    }
    assert_eq!(record(folder.path(), &ada).await.state, StateView::Held);
    assert_eq!(ledger(folder.path()).count().await.unwrap(), 0);
}

#[tokio::test]
async fn a_settlement_that_lost_the_race_writes_no_invoice() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let ada = bill_with_unknown_outcome(folder.path(), &bank).await;
    let (flaky, slow) = job_with_flaky_store(folder.path(), bank.clone());
    flaky.set(StoreCall::Other, StoreCondition::Hanging);
    let bill = ada.clone();
    let slow = tokio::spawn(async move { slow.settle(&bill, true).await });
    while flaky.count(StoreCall::Other) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    job(folder.path(), bank).settle(&ada, false).await.unwrap();
    flaky.set_all(StoreCondition::Available);
    let error = slow.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("another process settled it first"), "{error}");
    assert_eq!(ledger(folder.path()).count().await.unwrap(), 0);
}

#[tokio::test]
async fn settling_again_writes_a_missing_invoice() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let ada = bill_with_unknown_outcome(folder.path(), &bank).await;
    // The state after a crash between the resolution and the invoice.
    let seen = record(folder.path(), &ada).await;
    let happened = Resolution::Completed(once::answer(&ada.invoice()));
    let resolved = store(folder.path()).resolve(&id(&ada), seen.fence, &happened).await.unwrap();
    assert_eq!(resolved, Resolved::Applied);
    let job = job(folder.path(), bank);
    for _ in 0..2 {
        job.settle(&ada, true).await.unwrap();
        assert_eq!(ledger(folder.path()).count().await.unwrap(), 1);
    }
    assert!(job.settle(&ada, false).await.is_err());
}

/// The store is unavailable to a run while the bank waits; another run settles and bills.
#[tokio::test]
async fn a_run_that_lost_its_record_is_listed_for_an_operator_unless_it_did_nothing() {
    for (behaviour, charges) in
        [(Behaviour::WaitsAndCharges, 2), (Behaviour::WaitsAndIsUnreachable, 1)]
    {
        let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
        let ada = bill("ada", 4_900);
        bank.set_behaviour("ada", behaviour);
        let (flaky, zombie) = job_with_flaky_store(folder.path(), bank.clone());
        let all = vec![ada.clone()];
        let zombie = tokio::spawn(async move { zombie.run(&all).await });
        while !bank.behaviours.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        flaky.set_all(StoreCondition::Unavailable);
        sleep(LEASE * 3 / 2).await;
        let second = job(folder.path(), bank.clone());
        second.settle(&ada, false).await.unwrap();
        let report = second.run(std::slice::from_ref(&ada)).await.unwrap();
        assert_eq!(outcomes(&report), [&BillOutcome::Billed(ada.invoice())]);

        flaky.set_all(StoreCondition::Available);
        bank.wake.notify_one();
        let report = zombie.await.unwrap().unwrap();
        assert_eq!(bank.charges("ada"), charges);
        assert_eq!(report.unresolved().count() == 1, charges == 2, "{report}");
        if charges == 1 {
            assert_eq!(outcomes(&report), [&BillOutcome::BilledBefore(ada.invoice())]);
        }
        assert_eq!(ledger(folder.path()).count().await.unwrap(), 1);
    }
}

#[tokio::test]
async fn the_job_does_not_end_before_its_results_are_recorded() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let (flaky, job) = job_with_flaky_store(folder.path(), bank);
    flaky.set(StoreCall::Finish, StoreCondition::Unavailable);
    let back = flaky.clone();
    tokio::spawn(async move {
        sleep(LEASE * 2 / 3).await;
        back.set_all(StoreCondition::Available);
    });
    let ada = bill("ada", 4_900);
    let report = job.run(std::slice::from_ref(&ada)).await.unwrap();
    assert!(matches!(outcomes(&report)[..], [BillOutcome::Unknown(_)]), "{report}");
    assert_eq!(record(folder.path(), &ada).await.state.name(), StateName::Completed);
}

#[tokio::test]
async fn a_changed_amount_is_reported_and_not_charged() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let job = job(folder.path(), bank.clone());
    job.run(&[bill("ada", 4_900)]).await.unwrap();
    let report = job.run(&[bill("ada", 5_900)]).await.unwrap();
    assert_eq!(outcomes(&report), [&BillOutcome::Changed]);
    assert_eq!(report.unresolved().count(), 1);
    assert_eq!(bank.charges("ada"), 1);
}

#[tokio::test]
async fn the_ledger_refuses_a_zombie() {
    let folder = TempDir::new().unwrap();
    let (ledger, ada) = (ledger(folder.path()), bill("ada", 4_900));
    let fence = |number| Fence::new(number).unwrap();
    ledger.open(&ada.key(), fence(1)).await.unwrap();
    ledger.open(&ada.key(), fence(2)).await.unwrap();
    let late = ledger.enter(&ada.key(), fence(1), &ada).await;
    assert!(matches!(late, Err(LedgerError::Zombie(1))), "{late:?}");
    assert_eq!(ledger.count().await.unwrap(), 0);
    ledger.enter(&ada.key(), fence(2), &ada).await.unwrap();
    assert!(matches!(ledger.open(&ada.key(), fence(1)).await, Err(LedgerError::Zombie(1))));
    assert_eq!(ledger.count().await.unwrap(), 1);
}

/// The bank never answers, and the runtime is shut down.
#[test]
fn a_start_after_a_crash_bills_the_rest_and_holds_the_interrupted_charge() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    bank.set_behaviour("grace", Behaviour::ChargesAndNeverReturns);
    let crashing = runtime();
    let (path, stuck) = (folder.path().to_owned(), bank.clone());
    crashing.spawn(async move { job(&path, stuck).run(&bills()).await });
    while bank.charges("grace") == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    crashing.shutdown_background();

    let report = runtime().block_on(job(folder.path(), bank.clone()).run(&bills())).unwrap();
    assert!(
        matches!(
            outcomes(&report)[..],
            [BillOutcome::BilledBefore(_), BillOutcome::Unknown(_), BillOutcome::Billed(_)]
        ),
        "{report}"
    );
    assert_eq!(["ada", "grace", "zoë"].map(|customer| bank.charges(customer)), [1, 1, 1]);
}

/// Number of charges of each customer on the toy bank's statement.
fn statement(folder: &Path) -> BTreeMap<String, u32> {
    let mut charges = BTreeMap::new();
    for line in fs::read_to_string(folder.join("statement.txt")).unwrap_or_default().lines() {
        let customer = line.split(' ').next().unwrap_or_default();
        *charges.entry(customer.to_owned()).or_default() += 1;
    }
    charges
}

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nightly"));
    command.arg(folder).arg("2026-02").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program is killed in the middle, started again, and settled according to the statement.
#[tokio::test]
async fn a_killed_and_restarted_program_charges_each_customer_once() {
    let folder = TempDir::new().unwrap();
    let mut killed = command(folder.path(), &[]).spawn().unwrap();
    while statement(folder.path()).len() < 2 {
        sleep(Duration::from_millis(5)).await;
        assert!(killed.try_wait().unwrap().is_none(), "it ended before it could be killed");
    }
    killed.kill().unwrap();
    killed.wait().unwrap();

    let again = command(folder.path(), &[]).output().unwrap();
    let table = String::from_utf8(again.stdout).unwrap();
    assert!(statement(folder.path()).values().all(|charges| *charges == 1), "{table}");
    let unknown: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("  UNKNOWN: "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    // At most the charge that was running when the process was killed.
    assert!(unknown.len() <= 1, "{table}");
    assert_eq!(again.status.success(), unknown.is_empty(), "{table}");
    for customer in unknown {
        let charged = statement(folder.path()).contains_key(customer);
        let found = if charged { "charged" } else { "not-charged" };
        let mut settle = command(folder.path(), &["settle", customer, found]);
        assert!(settle.status().unwrap().success());
    }
    let last = command(folder.path(), &[]).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stdout));
    let expected = ["ada", "barbara", "edsger", "grace", "zoë"].map(|name| (name.to_owned(), 1));
    assert_eq!(statement(folder.path()), expected.into());
}

#[test]
fn the_table_aligns() {
    let line = |customer: &str, cents, outcome| Line { bill: bill(customer, cents), outcome };
    let report = Report {
        lines: vec![
            line("ada", 4_900, BillOutcome::Billed(bill("ada", 4_900).invoice())),
            line("zoë", 100_005, BillOutcome::BilledBefore(bill("zoë", 100_005).invoice())),
            line("constantinople", 7, BillOutcome::Unknown("the connection was lost".to_owned())),
        ],
    };
    let expected = "\
customer        month     amount  outcome
ada             2026-02    49.00  billed, invoice 2026-02-ada
zoë             2026-02  1000.05  billed before, invoice 2026-02-zoë
constantinople  2026-02     0.07  UNKNOWN: the connection was lost

Check these bills before the next run:
- constantinople for 2026-02: UNKNOWN: the connection was lost
";
    assert_eq!(report.to_string(), expected);
}

#[tokio::test]
async fn the_toy_bank_charges_on_every_call() {
    let folder = TempDir::new().unwrap();
    let bank = ToyBank::new(folder.path().join("statement.txt"), Duration::ZERO);
    for _ in 0..2 {
        bank.charge(&bill("ada", 1).key(), &bill("ada", 1)).await.unwrap();
    }
    assert_eq!(statement(folder.path()), [("ada".to_owned(), 2)].into());
}
