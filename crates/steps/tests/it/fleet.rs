//! A fleet of three processes that are killed at random: every operation ends, and each effect
//! happens once.
//!
//! A child is this test binary again; environment variables make it run [`child`]. It prints
//! `END number` for each operation that has ended.

use std::{
    collections::HashSet,
    env,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use semel_steps::{Operation, OperationOutcome, Operations, StepContext, StepError};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    databases::{self, PgServer, SqliteFile, TestDatabase},
    harness::Callee,
};

const DATABASE: &str = "SEMEL_STEPS_DATABASE";
const CALLEE: &str = "SEMEL_STEPS_CALLEE";
const SHARE: &str = "SEMEL_STEPS_SHARE";

const PROCESSES: usize = 3;
/// Operations of one process at a time.
const TASKS: usize = 6;
const LEASE: Duration = Duration::from_secs(1);

/// Every fifth operation is refused and undone.
const fn is_refused(number: usize) -> bool {
    number.is_multiple_of(5)
}

/// Calls the callee in the parent.
async fn call(callee: SocketAddr, key: &str, what: String) -> Result<String, StepError> {
    let mut stream = TcpStream::connect(callee).await?;
    stream.write_all(format!("{key} {what}\n").as_bytes()).await?;
    let mut reply = String::new();
    tokio::io::BufReader::new(stream).read_line(&mut reply).await?;
    if reply == "ok\n" { Ok(what) } else { Err(StepError::unknown("no reply")) }
}

async fn order<D: TestDatabase>(
    op: Operation<D::Store>,
    number: usize,
    callee: SocketAddr,
) -> Result<usize, StepError> {
    let charge = move |step: StepContext| async move {
        call(callee, step.key(), format!("charge {number}")).await
    };
    op.step("charge", charge)
        .undo(move |undo, _| async move {
            call(callee, undo.key(), format!("refund {number}")).await.map(drop)
        })
        .await?;
    op.step_tx("reserve", |mut transaction| async move {
        D::put(&mut transaction, format!("line {number}")).await
    })
    .undo_tx(move |mut transaction, ()| async move {
        D::remove(&mut transaction, format!("line {number}")).await
    })
    .await?;
    op.step("ship", |step| async move {
        if is_refused(number) {
            return Err(StepError::refused("out of stock"));
        }
        call(callee, step.key(), format!("ship {number}")).await
    })
    .await?;
    Ok(number)
}

fn variable(name: &str) -> Option<String> {
    env::var_os(name)?.into_string().ok()
}

#[test]
fn child() {
    let Some(database) = variable(DATABASE) else { return };
    if database.starts_with("postgres:") {
        run_child(&PgServer { url: database });
    } else {
        run_child(&SqliteFile { path: database.into() });
    }
}

fn run_child<D: TestDatabase>(database: &D) {
    let callee: SocketAddr = variable(CALLEE).unwrap().parse().unwrap();
    let share: Vec<usize> =
        variable(SHARE).unwrap().split(',').map(|text| text.parse().unwrap()).collect();
    let [first, count] = share[..] else { panic!("{share:?}") };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let operations = Operations::new(database.store()).lease(LEASE).attempts_max(10_000);
        let handle =
            operations.operation("order", 1, move |op, number| order::<D>(op, number, callee));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let numbers = (first..count).step_by(PROCESSES).skip(task).step_by(TASKS);
                    for number in numbers {
                        loop {
                            match handle.run(&number.to_string(), &number).await {
                                Ok(OperationOutcome::Running) | Err(_) => {}
                                Ok(OperationOutcome::Done(_)) => {
                                    break assert!(!is_refused(number));
                                }
                                Ok(OperationOutcome::Undone(_)) => {
                                    break assert!(is_refused(number));
                                }
                                Ok(other) => panic!("{number}: {other:?}"),
                            }
                        }
                        let mut out = std::io::stdout();
                        out.write_all(format!("\nEND {number}\n").as_bytes()).unwrap();
                        out.flush().unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Counts effects for the children until the test ends.
fn serve(callee: &Callee) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let callee = callee.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let callee = callee.clone();
            thread::spawn(move || {
                let mut line = String::new();
                let mut reader = BufReader::new(&stream);
                if reader.read_line(&mut line).is_ok()
                    && let Some((key, what)) = line.trim_end().split_once(' ')
                {
                    callee.keyed(key, what);
                    // The child may have been killed meanwhile.
                    let _ = (&stream).write_all(b"ok\n");
                }
            });
        }
    });
    address
}

fn start(database: &str, callee: SocketAddr, first: usize, count: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "fleet::child", "--nocapture"])
        .env(DATABASE, database)
        .env(CALLEE, callee.to_string())
        .env(SHARE, format!("{first},{count}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A number that follows from the seed.
fn draw(seed: &AtomicUsize) -> usize {
    let drawn = seed.fetch_add(0x9E37_79B9, Ordering::Relaxed);
    (drawn ^ (drawn >> 7)).wrapping_mul(0x85EB_CA6B) >> 9
}

/// Runs one process after the other for a share, until one reaches the end.
fn run_share(
    database: &str,
    callee: SocketAddr,
    first: usize,
    count: usize,
    seed: &AtomicUsize,
    kills_left: &AtomicUsize,
    ended: &Mutex<HashSet<usize>>,
) {
    loop {
        let mut child = start(database, callee, first, count);
        let kill_after = draw(seed) % 20;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ends = lines.map_while(Result::ok);
        let ends = ends.filter_map(|line| line.strip_prefix("END ")?.parse().ok());
        for (seen, number) in ends.enumerate() {
            // The first after a restart are replays.
            let is_first = ended.lock().unwrap().insert(number);
            let kills = seen >= kill_after && is_first;
            if kills
                && kills_left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
            {
                child.kill().unwrap();
            }
        }
        if child.wait().unwrap().success() {
            return;
        }
    }
}

fn all_end<D: TestDatabase>(database: &D, url: &str, operations: usize, kills: usize) {
    let seed = semel_testkit::seed();
    let seed = AtomicUsize::new(usize::try_from(seed & 0xFFFF_FFFF).unwrap());
    let (callee, ended) = (Callee::default(), Mutex::default());
    let (address, kills_left) = (serve(&callee), AtomicUsize::new(kills));
    thread::scope(|scope| {
        for first in 0..PROCESSES {
            let (seed, kills_left, ended) = (&seed, &kills_left, &ended);
            scope
                .spawn(move || run_share(url, address, first, operations, seed, kills_left, ended));
        }
    });
    assert_eq!(kills_left.into_inner(), 0, "processes were killed");
    assert_eq!(ended.into_inner().unwrap().len(), operations);
    let states = database.sql("SELECT state FROM semel_operation");
    let count = |wanted: &str| states.iter().filter(|state| **state == wanted).count();
    let refused = (0..operations).filter(|number| is_refused(*number)).count();
    assert_eq!((count("done"), count("undone")), (operations - refused, refused));
    for number in 0..operations {
        let once = |what: &str| callee.count(&format!("{what} {number}"));
        let undone = usize::from(is_refused(number));
        let counts = [once("charge"), once("refund"), once("ship")];
        assert_eq!(counts, [1, undone, 1 - undone], "{number}");
    }
    let mut lines = database.sql("SELECT entry FROM ledger");
    assert_eq!(lines.len(), operations - refused);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), operations - refused, "one line each");
}

#[test]
fn a_fleet_with_random_kills_ends_every_operation_torture_on_postgres() {
    let database = databases::postgres();
    let (operations, kills) = if semel_testkit::torture() { (10_000, 200) } else { (500, 12) };
    all_end(&database, &database.url, operations, kills);
}

#[test]
fn a_fleet_with_random_kills_ends_every_operation_torture_on_sqlite() {
    let database = SqliteFile::new();
    let (operations, kills) = if semel_testkit::torture() { (2_000, 50) } else { (100, 6) };
    all_end(&database, database.path.to_str().unwrap(), operations, kills);
}
