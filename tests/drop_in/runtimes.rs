//! Runtimes that end, and streams that another runtime uses.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::support::{Observation, behaviours, bytes, pair, read, rest, seen, text, turns};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    runtime_dropped_while_tasks_wait,
    stream_outlives_its_runtime,
    stream_used_in_another_runtime,
    peer_of_a_dropped_runtime,
    panic_in_a_task,
    bind_and_connect_outside_a_runtime,
    bind_and_connect_in_a_runtime_without_io,
    bind_in_a_runtime_without_time,
);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Runs `run` where it may block, so it can start and drop a runtime.
async fn elsewhere<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

async fn runtime_dropped_while_tasks_wait<T: Transport>() -> Observation {
    elsewhere(|| {
        let inner = runtime();
        let (running, gone) = mpsc::channel::<()>();
        inner.block_on(async {
            let (client, mut server) = pair::<T>().await;
            let listener = T::bind().await;
            let (mut reader, mut writer) = client.into_split();
            let waiting = running.clone();
            tokio::spawn(async move {
                let _running = waiting;
                reader.read_u8().await
            });
            let waiting = running.clone();
            tokio::spawn(async move {
                let _running = waiting;
                writer.write_all(&vec![0; 64 << 20]).await
            });
            tokio::spawn(async move {
                let _running = running;
                listener.accept().await.map(drop)
            });
            turns(10).await;
            // The server reads a byte, so the tasks were running.
            server.read_u8().await.unwrap();
        });
        drop(inner);
        // Fails once every task is dropped, with its sender.
        match gone.recv() {
            Err(mpsc::RecvError) => "every task is gone".to_owned(),
            Ok(()) => "a message?".to_owned(),
        }
    })
    .await
}

async fn stream_outlives_its_runtime<T: Transport>() -> Observation {
    let (mut client, _server) = elsewhere(|| runtime().block_on(pair::<T>())).await;
    read(&mut client).await
}

async fn stream_used_in_another_runtime<T: Transport>() -> Observation {
    let (inner, mut client, mut server) = elsewhere(|| {
        let inner = runtime();
        let (client, server) = inner.block_on(pair::<T>());
        (inner, client, server)
    })
    .await;
    let data = bytes(300_000);
    let write = async {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let ((), got) = tokio::join!(write, rest(&mut server, &data));
    elsewhere(|| drop(inner)).await;
    got
}

async fn peer_of_a_dropped_runtime<T: Transport>() -> Observation {
    let listener = T::bind_hastily().await;
    let addr = listener.local_addr().unwrap();
    let inner = runtime();
    let (up, is_up) = oneshot::channel();
    inner.spawn(async move {
        let mut client = T::connect(addr).await.unwrap();
        client.write_all(b"ask").await.unwrap();
        up.send(text(&mut client, 6).await).unwrap();
        read(&mut client).await
    });
    let (mut server, _) = listener.accept().await.unwrap();
    let asked = text(&mut server, 3).await;
    server.write_all(b"answer").await.unwrap();
    let answered = is_up.await.unwrap();
    elsewhere(|| drop(inner)).await;
    format!("{asked}, {answered}, {}", read(&mut server).await)
}

async fn panic_in_a_task<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let task = tokio::spawn(async move {
        let _client = client;
        // Panics without printing a message.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let panicked = task.await.is_err();
    format!("panicked: {panicked}, {}", read(&mut server).await)
}

/// Calls `call` in a thread without a runtime. Returns the result or the panic message.
fn outcome<R: Debug>(call: impl FnOnce() -> io::Result<R> + Send + 'static) -> Observation {
    let thread = thread::spawn(move || seen(call().map(drop)));
    thread.join().unwrap_or_else(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or("?", |text| text).to_owned(),
    })
}

/// Polls a future once, without a runtime.
fn polled<R>(future: impl Future<Output = io::Result<R>>) -> io::Result<R> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn bind_and_connect_outside_a_runtime<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    elsewhere(move || {
        let bind = outcome(|| polled(T::Listener::bind_to(LOCAL)));
        format!("bind: {bind}; connect: {}", outcome(move || polled(T::connect(addr))))
    })
    .await
}

async fn bind_and_connect_in_a_runtime_without_io<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let without_io = || Builder::new_current_thread().enable_time().build().unwrap();
    elsewhere(move || {
        let bind = outcome(move || without_io().block_on(T::Listener::bind_to(LOCAL)));
        let connect = outcome(move || without_io().block_on(T::connect(addr)));
        format!("bind: {bind}; connect: {connect}")
    })
    .await
}

async fn bind_in_a_runtime_without_time<T: Transport>() -> Observation {
    let without_time = || Builder::new_current_thread().enable_io().build().unwrap();
    elsewhere(move || outcome(move || without_time().block_on(T::Listener::bind_to(LOCAL)))).await
}
