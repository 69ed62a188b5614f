//! `kill -9` under load: nothing that was acknowledged is lost.

use std::time::{Duration, Instant};

use semel_sqlite::SqliteStore;

use crate::child::{Job, Said};

/// Twenty lives of one file, each ended at another moment.
#[tokio::test]
async fn everything_acknowledged_survives_kill_9_at_twenty_moments() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    let mut lives = Vec::new();
    for life in 0..20_u64 {
        let mut child = Job::new(&file, format!("life-{life}")).command().spawn().unwrap();
        let moment = Duration::from_micros(500 + life * 7919 % 60_000);
        let mut first = None;
        let said = Said::listen(&mut child, |_, child| {
            #[expect(clippy::disallowed_methods, reason = "when to strike")]
            let now = Instant::now();
            if now - *first.get_or_insert(now) >= moment {
                child.kill().unwrap();
            }
        });
        assert!(!said.granted.is_empty());
        lives.push(said);
    }
    let store = SqliteStore::open(&file).unwrap();
    for said in &lives {
        assert_eq!(said.missing(&store).await, [] as [String; 0]);
    }
    let granted: usize = lives.iter().map(|said| said.granted.len()).sum();
    let completed: usize = lives.iter().map(|said| said.completed.len()).sum();
    assert!(completed > 1000, "{granted} granted and {completed} completed: too few to mean much");
}
