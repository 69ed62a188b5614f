//! The SQLite store against the world: crashes, power cuts, neighbours, bad files and odd clocks.

mod child;
mod clocks;
mod crashes;
mod files;
mod neighbours;
mod powercuts;
