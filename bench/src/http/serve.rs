//! An ordinary server: axum on a runtime with two threads, in a process of its own.

use std::{
    io::{self, Write as _},
    net::Ipv4Addr,
};

use axum::Router;
use tokio::net::TcpSocket;

/// As many as the rivals had when they were measured.
const WORKERS: usize = 2;

/// All connections come at once; one that does not fit in here would wait for a second.
const BACKLOG: u32 = 1024;

/// Prints the port that it is bound to and serves until its standard input ends: with the process
/// that started it.
pub(crate) fn serve(name: &'static str, routes: Router) -> anyhow::Result<()> {
    // A profiler tells the servers apart by the names of their threads.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name(name)
        .enable_all()
        .build()?;
    let inside = runtime.enter();
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    runtime.spawn(async { axum::serve(listener, routes).await });
    drop(inside);
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    runtime.shutdown_background();
    Ok(())
}
