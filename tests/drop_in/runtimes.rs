//! Runtimes that end, and streams that are used in another one.

use std::sync::mpsc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::support::{Observation, behaviours, bytes, pair, read, rest, text, turns};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    runtime_dropped_while_tasks_wait,
    stream_outlives_its_runtime,
    stream_used_in_another_runtime,
    peer_of_a_dropped_runtime,
    panic_in_a_task,
);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Runs what needs a runtime of its own.
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
            // Has read something, so they were running.
            server.read_u8().await.unwrap();
        });
        drop(inner);
        // Every task is dropped, with its sender.
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
        // Without the message that a panic prints.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let panicked = task.await.is_err();
    format!("panicked: {panicked}, {}", read(&mut server).await)
}
