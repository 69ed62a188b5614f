//! The benchmarks: `cargo xtask bench NAME…`.
//!
//! Performance is reported, not asserted: a figure that misses its target is marked, and the
//! program still succeeds, unless `--strict` is given.
//!
//! Exit codes: 0 measured, 1 something failed or, with `--strict`, a target was missed, 2 usage
//! error.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark talks to a person")]
#![allow(clippy::disallowed_methods, reason = "a benchmark asks for the time")]

mod api;
mod attacks;
mod awake;
mod baseline;
mod gateway;
mod http;
mod layer;
mod load;
mod machine;
mod measure;
mod postgres;
mod pure;
mod random;
mod report;
mod settings;
mod sqlite;
mod sweeping;
mod transaction;

use std::process::ExitCode;

use anyhow::Context as _;

use crate::{awake::Cores, report::Report, settings::Settings};

const USAGE: &str = "\
usage: cargo xtask bench [NAME…] [--quick | --full] [--strict] [--save] [--dir FOLDER]
                         [--program FILE] [--against FILE] [--sleep]

  core                 canonicalise and hash a body, encode and decode an answer, read a key
  sqlite               all that follows
  sqlite.throughput    claims and completions per second, beside a plain table and a bare log
  sqlite.filled        the same in files of one and five million records
  sqlite.sweep         how long claims take while a million expired records are swept
  sqlite.size          bytes of file and of memory per record
  sqlite.open          how long it takes to open a file of a million records
  postgres             all that follows, on a PostgreSQL that is started for it
  postgres.alone       a claim and a completion at a time, beside the usual pattern
  postgres.throughput  claims and completions per second, beside the usual pattern well written
  postgres.filled      the same in a table of ten million records
  postgres.sweep       how long claims take while a million expired records are swept
  postgres.bloat       what the table occupies over many cycles of filling and sweeping
  postgres.redis       what Redis in front saves for replays, and what it costs without them
  transaction          a payment that is recorded by its own transaction, beside it alone
  layer                all that follows: HTTP requests through the layer, beside bare axum
  layer.memory         each request claims, executes and completes in the memory store
  layer.sqlite         the same in SQLite with full durability
  layer.replay         repeats that are answered from the cache
  gateway              all that follows: HTTP requests through `semel serve`, beside nginx
  gateway.pass         requests without a key, which pass unguarded
  gateway.unique       each request claims, executes and completes in SQLite
  gateway.replay       nine of ten are repeats that are answered from the record
  gateway.slow         what the gateway adds to an upstream that takes 20 ms
  gateway.jwt          verified JSON Web Tokens, beside opaque bearer tokens
  gateway.dashboards   guarded throughput with ten open dashboards, beside none
  gateway.memory       memory of the gateway after a million keys
  api                  claim and complete over the service API, alone and in batches of a hundred,
                       beside the gateway
  instructions         all that follows: instructions that the gateway executes for a request,
                       counted by valgrind; a busy machine does not change them
  instructions.pass    requests without a key, which pass unguarded
  instructions.claim   each request claims, executes and completes in SQLite
  instructions.replay  repeats that are answered from the record
  attacks              all that follows
  attacks.innocent     an innocent client beside each attack on the gateway
  attacks.memory       memory of a gateway that has as many connections as it admits by default

  --quick              a short edition of everything, to see that it works; nothing is judged
  --full               sweeps the whole million
  --strict             a missed target is a failure
  --save               writes raw values and a summary to bench/runs
  --dir FOLDER         where files are made and filled ones are kept (target/bench)
  --program FILE       the gateway to measure (the `semel` that was built beside this program)
  --against FILE       measures pass, unique and replay, or counts instructions, beside an
                       earlier build of the gateway
  --sleep              lets cores sleep that have nothing to do; otherwise none does

  --serve plain|memory|sqlite [FILE]
                       only one of the servers of `layer`, to be profiled: prints its port and
                       serves until its standard input ends
  --serve-upstream [MILLISECONDS]
                       only the upstream of `gateway`, in the same way
  --drive PORT [pass | unique | replay] [--connections N] [--seconds N]
                       only the load, for a server that runs already (unique, 64, 5)";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["--resident", path] = words[..] {
        return finish(sqlite::size::report_resident(path).map(|()| ExitCode::SUCCESS));
    }
    if let ["--serve", rest @ ..] = &words[..] {
        return finish(layer::serve::run(rest).map(|()| ExitCode::SUCCESS));
    }
    if let ["--serve-upstream", rest @ ..] = &words[..] {
        return finish(gateway::upstream::run(rest).map(|()| ExitCode::SUCCESS));
    }
    if let ["--drive", rest @ ..] = &words[..] {
        return finish(gateway::drive::run(rest).map(|()| ExitCode::SUCCESS));
    }
    if words.iter().any(|word| matches!(*word, "help" | "--help" | "-h")) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Settings::parse(&words) {
        Ok(settings) => finish(run(&settings)),
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn finish(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(settings: &Settings) -> anyhow::Result<ExitCode> {
    let mut report = Report::new(!settings.quick);
    let cores = Cores::hold(settings.sleep);
    eprintln!("{}", machine::describe());
    if settings.wants("core") {
        pure::run(settings, &mut report)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(sqlite::run(settings, &mut report))?;
    runtime.block_on(postgres::run(settings, &mut report))?;
    runtime.block_on(transaction::run(settings, &mut report))?;
    drop(runtime);
    layer::run(settings, &mut report)?;
    gateway::run(settings, &mut report)?;
    api::run(settings, &mut report)?;
    gateway::instructions::run(settings, &mut report)?;
    attacks::run(settings, &mut report)?;
    report.note(cores.tell());
    report.print();
    if settings.save {
        let folder = report.save(&settings.runs, &settings.title()).context("saving the run")?;
        eprintln!("saved in {}", folder.display());
    }
    let misses = report.misses();
    if misses > 0 {
        eprintln!("{misses} missed; load {} at the end", machine::load());
    }
    Ok(if settings.strict && misses > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
