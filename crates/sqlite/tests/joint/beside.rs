//! The other process of a test in `crates/sqlx`, which cannot have rusqlite in its own: it works on
//! the same file, and is led by lines on its standard input.
//!
//! For each line `KEY` it runs an operation under that key, and says `CALLED` when the operation
//! begins what is slow, before it writes. The operation goes on at the next line. Then it says
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
use semel_sqlite::joint::SqliteDatabase;

use super::insert;

const FILE: &str = "SEMEL_BESIDE_FILE";

fn say(line: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn line() -> Option<String> {
    stdin().lock().lines().next().map(Result::unwrap)
}

#[tokio::test]
async fn child() {
    let Some(file) = env::var_os(FILE) else { return };
    let store = SqliteDatabase::open(Path::new(&file)).unwrap().store();
    let semel = Semel::new(store.clone());
    say("READY");
    while let Some(key) = line() {
        let store = store.clone();
        let once = semel.once("orders", Caller::new("shop-3").unwrap(), Key::new(&key).unwrap());
        let once = once.on_unknown(OnUnknown::Rerun).wait(Duration::ZERO);
        let run = once.run(move |lease| async move {
            let mut tx = store.transaction(&lease).await?;
            say("CALLED");
            line();
            tx.run(|db| insert(db, "by rusqlite")).await?;
            Ok("by rusqlite".to_owned())
        });
        say(&format!("ENDED {:?}", run.await.unwrap()));
    }
}
