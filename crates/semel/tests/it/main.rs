//! The engine and its fronts on real stores.

mod once;
