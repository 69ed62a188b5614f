//! The program `semel`.
fn main() {}
