//! The nightly job may be started as often as one likes.
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
    Bank, BankError, Bill, Fate, Job, Ledger, LedgerError, Line, Report, ToyBank,
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
    /// What it does about the next charge of a customer.
    moods: Arc<Mutex<BTreeMap<String, Mood>>>,
    /// Wakes it where it waits.
    wake: Arc<Notify>,
}

#[derive(Clone, Copy, Debug)]
enum Mood {
    Declines,
    IsUnreachable,
    ChargesAndLosesTheLine,
    ChargesAndNeverReturns,
    WaitsAndCharges,
    WaitsAndIsUnreachable,
}

impl TestBank {
    fn mood(&self, customer: &str, mood: Mood) {
        self.moods.lock().unwrap().insert(customer.to_owned(), mood);
    }

    fn charges(&self, customer: &str) -> u32 {
        self.charges.lock().unwrap().get(customer).copied().unwrap_or_default()
    }
}

impl Bank for TestBank {
    async fn charge(&self, _key: &Key, bill: &Bill) -> Result<(), BankError> {
        let mood = self.moods.lock().unwrap().remove(&bill.customer);
        if let Some(Mood::WaitsAndCharges | Mood::WaitsAndIsUnreachable) = mood {
            self.wake.notified().await;
        }
        match mood {
            Some(Mood::Declines) => return Err(BankError::Declined("expired".to_owned())),
            Some(Mood::IsUnreachable | Mood::WaitsAndIsUnreachable) => {
                return Err(BankError::Unreachable);
            }
            _ => *self.charges.lock().unwrap().entry(bill.customer.clone()).or_default() += 1,
        }
        match mood {
            Some(Mood::ChargesAndNeverReturns) => std::future::pending().await,
            Some(Mood::ChargesAndLosesTheLine) => {
                Err(BankError::LineDead(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Ok(()),
        }
    }
}

/// The job as a new process would have it: everything is opened again.
fn job<B: Bank>(folder: &Path, bank: B) -> Job<B> {
    Job::new(store(folder), ledger(folder), bank, LEASE)
}

/// A job whose way to the store can be cut.
fn cut_off<B: Bank>(folder: &Path, bank: B) -> (FlakyStore, Job<B>) {
    let way = FlakyStore::new(store(folder));
    (way.clone(), Job::new(way, ledger(folder), bank, LEASE))
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

fn fates(report: &Report) -> Vec<&Fate> {
    report.lines.iter().map(|line| &line.fate).collect()
}

#[tokio::test]
async fn a_second_start_finds_everyone_billed() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let first = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
    let second = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
    for (first, second) in first.lines.iter().zip(&second.lines) {
        let invoice = first.bill.invoice();
        assert_eq!(first.fate, Fate::Billed(invoice.clone()));
        assert_eq!(second.fate, Fate::BilledBefore(invoice));
        assert_eq!(bank.charges(&first.bill.customer), 1);
    }
    assert!(first.is_settled() && second.is_settled());
    assert_eq!(ledger(folder.path()).count().await.unwrap(), 3);
}

#[tokio::test]
async fn two_starts_at_once_bill_everyone_once() {
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
async fn a_declined_customer_is_not_asked_again_and_an_unreachable_bank_is() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    bank.mood("ada", Mood::Declines);
    bank.mood("grace", Mood::IsUnreachable);
    for _ in 0..2 {
        let report = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
        assert_eq!(report.lines[0].fate, Fate::Declined("expired".to_owned()));
        assert!(matches!(
            fates(&report)[1..],
            [Fate::Billed(_) | Fate::BilledBefore(_), Fate::Billed(_) | Fate::BilledBefore(_)]
        ));
    }
    assert_eq!(["ada", "grace", "zoë"].map(|customer| bank.charges(customer)), [0, 1, 1]);
}

#[tokio::test]
async fn an_unknown_outcome_is_listed_for_a_person_who_settles_it() {
    for charged in [true, false] {
        let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
        bank.mood("grace", Mood::ChargesAndLosesTheLine);
        for _ in 0..2 {
            let report = job(folder.path(), bank.clone()).run(&bills()).await.unwrap();
            let listed: Vec<&str> =
                report.for_a_person().map(|line| line.bill.customer.as_str()).collect();
            assert_eq!(listed, ["grace"]);
            assert!(matches!(report.lines[1].fate, Fate::Unknown(_)) && !report.is_settled());
        }
        let job = job(folder.path(), bank.clone());
        let grace = &bills()[1];
        job.settle(grace, charged).await.unwrap();
        let again = job.settle(grace, charged).await;
        assert_eq!(again.is_ok(), charged, "only what is charged stays so: {again:?}");

        let report = job.run(&bills()).await.unwrap();
        assert!(report.is_settled());
        assert_eq!(matches!(report.lines[1].fate, Fate::BilledBefore(_)), charged);
        assert_eq!(bank.charges("grace"), if charged { 1 } else { 2 });
        assert_eq!(ledger(folder.path()).count().await.unwrap(), 3);
    }
}

/// A bill whose charge has an unknown outcome.
async fn unknown(folder: &Path, bank: &TestBank) -> Bill {
    let ada = bill("ada", 4_900);
    bank.mood("ada", Mood::ChargesAndLosesTheLine);
    let report = job(folder, bank.clone()).run(std::slice::from_ref(&ada)).await.unwrap();
    assert!(matches!(fates(&report)[..], [Fate::Unknown(_)]), "{report}");
    ada
}

#[tokio::test]
async fn only_the_amount_that_was_begun_can_be_settled() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let ada = unknown(folder.path(), &bank).await;
    for charged in [true, false] {
        let job = job(folder.path(), bank.clone());
        let error = job.settle(&bill("ada", 5_900), charged).await.unwrap_err();
        assert!(error.to_string().contains("another amount"), "{error}");
    }
    assert_eq!(record(folder.path(), &ada).await.state, StateView::Held);
    assert_eq!(ledger(folder.path()).count().await.unwrap(), 0);
}

#[tokio::test]
async fn who_settles_too_late_leaves_no_invoice() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let ada = unknown(folder.path(), &bank).await;
    let (way, slow) = cut_off(folder.path(), bank.clone());
    way.set(StoreCall::Other, StoreCondition::Hanging);
    let bill = ada.clone();
    let slow = tokio::spawn(async move { slow.settle(&bill, true).await });
    while way.count(StoreCall::Other) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    job(folder.path(), bank).settle(&ada, false).await.unwrap();
    way.set_all(StoreCondition::Available);
    let error = slow.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("another process settled it first"), "{error}");
    assert_eq!(ledger(folder.path()).count().await.unwrap(), 0);
}

#[tokio::test]
async fn settling_again_writes_an_invoice_that_was_not_written() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let ada = unknown(folder.path(), &bank).await;
    // The state that a process leaves that died here.
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

/// A run that is cut off while the bank waits, until another has settled and billed.
#[tokio::test]
async fn a_run_that_lost_its_record_is_for_a_person_unless_it_did_nothing() {
    for (mood, charges) in [(Mood::WaitsAndCharges, 2), (Mood::WaitsAndIsUnreachable, 1)] {
        let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
        let ada = bill("ada", 4_900);
        bank.mood("ada", mood);
        let (way, zombie) = cut_off(folder.path(), bank.clone());
        let all = vec![ada.clone()];
        let zombie = tokio::spawn(async move { zombie.run(&all).await });
        while !bank.moods.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        way.set_all(StoreCondition::Unavailable);
        sleep(LEASE * 3 / 2).await;
        let second = job(folder.path(), bank.clone());
        second.settle(&ada, false).await.unwrap();
        let report = second.run(std::slice::from_ref(&ada)).await.unwrap();
        assert_eq!(fates(&report), [&Fate::Billed(ada.invoice())]);

        way.set_all(StoreCondition::Available);
        bank.wake.notify_one();
        let report = zombie.await.unwrap().unwrap();
        assert_eq!(bank.charges("ada"), charges);
        assert_eq!(report.for_a_person().count() == 1, charges == 2, "{report}");
        if charges == 1 {
            assert_eq!(fates(&report), [&Fate::BilledBefore(ada.invoice())]);
        }
        assert_eq!(ledger(folder.path()).count().await.unwrap(), 1);
    }
}

#[tokio::test]
async fn the_job_does_not_end_before_what_it_did_is_recorded() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let (way, job) = cut_off(folder.path(), bank);
    way.set(StoreCall::Finish, StoreCondition::Unavailable);
    let back = way.clone();
    tokio::spawn(async move {
        sleep(LEASE * 2 / 3).await;
        back.set_all(StoreCondition::Available);
    });
    let ada = bill("ada", 4_900);
    let report = job.run(std::slice::from_ref(&ada)).await.unwrap();
    assert!(matches!(fates(&report)[..], [Fate::Unknown(_)]), "{report}");
    assert_eq!(record(folder.path(), &ada).await.state.name(), StateName::Completed);
}

#[tokio::test]
async fn an_amount_that_changed_is_noticed_and_not_charged() {
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    let job = job(folder.path(), bank.clone());
    job.run(&[bill("ada", 4_900)]).await.unwrap();
    let report = job.run(&[bill("ada", 5_900)]).await.unwrap();
    assert_eq!(fates(&report), [&Fate::Changed]);
    assert_eq!(report.for_a_person().count(), 1);
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

/// The bank never answers, and the whole runtime goes away under the job.
#[test]
fn a_start_after_a_crash_bills_the_rest_and_holds_what_was_under_way() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (folder, bank) = (TempDir::new().unwrap(), TestBank::default());
    bank.mood("grace", Mood::ChargesAndNeverReturns);
    let crashing = runtime();
    let (path, stuck) = (folder.path().to_owned(), bank.clone());
    crashing.spawn(async move { job(&path, stuck).run(&bills()).await });
    while bank.charges("grace") == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    crashing.shutdown_background();

    let report = runtime().block_on(job(folder.path(), bank.clone()).run(&bills())).unwrap();
    assert!(
        matches!(fates(&report)[..], [Fate::BilledBefore(_), Fate::Unknown(_), Fate::Billed(_)]),
        "{report}"
    );
    assert_eq!(["ada", "grace", "zoë"].map(|customer| bank.charges(customer)), [1, 1, 1]);
}

/// How often each customer is on the toy bank's statement.
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

/// The program itself: killed in the middle, started again, settled by what the statement says.
#[tokio::test]
async fn a_killed_program_is_started_again_until_everyone_is_charged_once() {
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
    // At most the one that was under way when the kill came.
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
    let line = |customer: &str, cents, fate| Line { bill: bill(customer, cents), fate };
    let report = Report {
        lines: vec![
            line("ada", 4_900, Fate::Billed(bill("ada", 4_900).invoice())),
            line("zoë", 100_005, Fate::BilledBefore(bill("zoë", 100_005).invoice())),
            line("constantinople", 7, Fate::Unknown("the line went dead".to_owned())),
        ],
    };
    let expected = "\
customer        month     amount  outcome
ada             2026-02    49.00  billed, invoice 2026-02-ada
zoë             2026-02  1000.05  billed before, invoice 2026-02-zoë
constantinople  2026-02     0.07  UNKNOWN: the line went dead

A person must look at these before the job is started again:
- constantinople for 2026-02: UNKNOWN: the line went dead
";
    assert_eq!(report.to_string(), expected);
}

#[tokio::test]
async fn the_toy_bank_charges_as_often_as_it_is_asked() {
    let folder = TempDir::new().unwrap();
    let bank = ToyBank::new(folder.path().join("statement.txt"), Duration::ZERO);
    for _ in 0..2 {
        bank.charge(&bill("ada", 1).key(), &bill("ada", 1)).await.unwrap();
    }
    assert_eq!(statement(folder.path()), [("ada".to_owned(), 2)].into());
}
