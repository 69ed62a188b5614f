//! The conformance kit: one case for each law of a store and each cell of its state table.
//!
//! A backend provides a [fixture](crate::fixture) and one line; each case becomes a test in the
//! backend's crate:
//!
//! ```text
//! semel_conformance::conform!(volatile, MemoryFixture::new());
//! semel_conformance::conform!(durable, PostgresFixture::open().await);
//! semel_conformance::conform!(restorable, SqliteFixture::open().await);
//! ```
//!
//! A case uses the trait only. To add one, write it in the file of its theme and name it in
//! [`themes`](crate::conform_themes), or add a line to the table in
//! [`cells`](crate::conform_cells).

mod answers;
mod cell;
mod cells;
mod claim;
mod details;
mod durable;
mod fence;
mod forgotten;
mod harness;
mod held;
mod limits;
mod list;
mod maintenance;
mod operator;
mod races;
mod restore;
mod retention;
mod stage;
mod takeover;
mod themes;
mod velocity;
mod watch;

use std::{fmt, pin::Pin, time::Duration};

use tokio::{runtime, time::timeout};

pub use harness::{DurableHarness, Handle, StoreHarness, answer, fingerprint, id};
pub use restore::RestorableHarness;

use crate::fixture::{Durable, Fixture, Restorable};

/// Timeout of a case.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// A running case.
type RunningCase<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A test case: one property that every store must have.
pub struct Case<B> {
    /// `theme::sentence`.
    pub name: &'static str,
    /// Runs the case; panics if the store does not have the property.
    pub run: fn(&B) -> RunningCase<'_>,
}

impl<B> fmt::Debug for Case<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The cases for every store.
#[must_use]
pub fn cases() -> Vec<Case<StoreHarness>> {
    let mut cases = crate::conform_cells! { __cells_as_data };
    cases.extend(crate::conform_themes! { __cases_as_data });
    cases
}

/// The further cases for a store that outlives its process.
#[must_use]
pub fn durable_cases() -> Vec<Case<DurableHarness>> {
    crate::conform_durable_themes! { __cases_as_data }
}

/// The further cases for a store that can be backed up and restored.
#[must_use]
pub fn restorable_cases() -> Vec<Case<RestorableHarness>> {
    crate::conform_restore_themes! { __cases_as_data }
}

/// Runs the case of this name on a fixture. The tests of [`conform!`](crate::conform) call it.
#[doc(hidden)]
pub fn run<F: Fixture>(name: &str, make: impl AsyncFnOnce() -> F) {
    let case = cases().into_iter().find(|case| case.name == name).expect("a case of this name");
    on_a_runtime(async {
        let harness = StoreHarness::new(make().await);
        (case.run)(&harness).await;
    });
}

/// Runs the durable case of this name on a fixture.
#[doc(hidden)]
pub fn run_durable<F: Durable>(name: &str, make: impl AsyncFnOnce() -> F) {
    let mut cases = durable_cases().into_iter();
    let case = cases.find(|case| case.name == name).expect("a case of this name");
    on_a_runtime(async {
        let harness = DurableHarness::new(make().await);
        (case.run)(&harness).await;
    });
}

/// Runs the restorable case of this name on a fixture.
#[doc(hidden)]
pub fn run_restorable<F: Restorable>(name: &str, make: impl AsyncFnOnce() -> F) {
    let mut cases = restorable_cases().into_iter();
    let case = cases.find(|case| case.name == name).expect("a case of this name");
    on_a_runtime(async {
        let harness = RestorableHarness::new(make().await);
        (case.run)(&harness).await;
    });
}

/// Runs a test on a runtime with more than one thread, so that races are races.
pub fn on_a_runtime<T>(test: impl Future<Output = T>) -> T {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        // Boxed, because a case with its fixture may be large.
        timeout(CASE_TIMEOUT, Box::pin(test)).await.expect("the case hangs")
    })
}

/// One test for each case, in a module for each theme.
///
/// The first word selects the cases: a `volatile` store loses its records with its process, a
/// `durable` one keeps them, and a `restorable` one can also be restored from a backup. The
/// expression creates a [`Fixture`] ([`Durable`] or [`Restorable`] where needed) and may await.
#[macro_export]
macro_rules! conform {
    (volatile, $make:expr) => {
        $crate::conform_cells! { __cells_as_tests ($make) }
        $crate::conform_themes! { __cases_as_tests (run, $make) }
    };
    (durable, $make:expr) => {
        $crate::conform!(volatile, $make);
        $crate::conform_durable_themes! { __cases_as_tests (run_durable, $make) }
    };
    (restorable, $make:expr) => {
        $crate::conform!(durable, $make);
        $crate::conform_restore_themes! { __cases_as_tests (run_restorable, $make) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cells_as_tests {
    (($make:expr) $($case:ident: $stage:ident $act:ident => $result:expr, $after:ident;)*) => {
        $crate::__cases_as_tests! { (run, $make) cells { $($case)* } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cases_as_tests {
    (($run:ident, $make:expr) $($theme:ident { $($case:ident)* })*) => {
        $(mod $theme {
            #[allow(unused_imports, reason = "the expression may name what is beside the macro")]
            use super::*;

            $(#[test]
            fn $case() {
                let name = concat!(stringify!($theme), "::", stringify!($case));
                $crate::conform::$run(name, async || $make);
            })*
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cells_as_data {
    ($($case:ident: $stage:ident $act:ident => $result:expr, $after:ident;)*) => {{
        #[allow(clippy::enum_glob_use, reason = "a table reads better without prefixes")]
        use cell::{CellAct::*, CellResult::*};
        vec![$(Case {
            name: concat!("cells::", stringify!($case)),
            run: |harness| {
                let (stage, after) = (stage::Stage::$stage, cell::RecordAfter::$after);
                Box::pin(cell::play(harness, stage, $act, $result, after))
            },
        }),*]
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cases_as_data {
    ($($theme:ident { $($case:ident)* })*) => {
        vec![$($(Case {
            name: concat!(stringify!($theme), "::", stringify!($case)),
            run: |harness| Box::pin($theme::$case(harness)),
        }),*),*]
    };
}
