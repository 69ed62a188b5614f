//! The other process of a test in `crates/sqlx`, which cannot link rusqlite itself: it works on the
//! same file, and takes commands on its standard input.
//!
//! For each line `KEY` it runs an operation under that key, and prints `CALLED` when the operation
//! begins its slow part, before it writes. The operation continues at the next line. Then it prints
//! `ENDED` with the outcome.

use std::{
    env,
    io::{BufRead as _, Write as _, stdin},
    path::Path,
    time::Duration,
};

use semel::{
    Semel,
    core::{Caller, Key, OnUnknown},
};
use semel_sqlite::transactional::SqliteDatabase;

use super::insert;

const FILE: &str = "SEMEL_BESIDE_FILE";

fn print_line(line: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn read_line() -> Option<String> {
    stdin().lock().lines().next().map(Result::unwrap)
}

#[tokio::test]
async fn child() {
    let Some(file) = env::var_os(FILE) else { return };
    let store = SqliteDatabase::open(Path::new(&file)).unwrap().store();
    let semel = Semel::new(store.clone());
    print_line("READY");
    while let Some(key) = read_line() {
        let store = store.clone();
        let once = semel.once("orders", Caller::new("shop-3").unwrap(), Key::new(&key).unwrap());
        let once = once.on_unknown(OnUnknown::Rerun).wait(Duration::ZERO);
        let run = once.run(move |lease| async move {
            let mut tx = store.transaction(&lease).await?;
            print_line("CALLED");
            read_line();
            tx.run(|db| insert(db, "by rusqlite")).await?;
            Ok("by rusqlite".to_owned())
        });
        print_line(&format!("ENDED {:?}", run.await.unwrap()));
    }
}
