//! Fronts on a real Redis: what they save, and what they never do.

mod fleet;

mod appetite;
mod harm;
mod hints;
mod operators;
mod replays;
mod wakes;
mod ways;
