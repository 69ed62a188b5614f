//! `kill -9` under load: nothing that was acknowledged is lost.

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
        // From the first acknowledgements on to many checkpoints later.
        let acks = 1 + usize::try_from(life * 7919 % 601).unwrap();
        let said = Said::listen(&mut child, |said, child| {
            if said.completed.len() >= acks {
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
