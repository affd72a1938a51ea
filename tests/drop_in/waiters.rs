//! Several tasks wait on one handle: all of them wake up.

use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::task::JoinSet;

use crate::support::{Observation, at_most, behaviours, pair, read, seen, turns};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    readable_in_several_tasks,
    writable_in_several_tasks,
    ready_in_several_tasks,
    peek_in_several_tasks,
    readable_beside_a_poll,
    readable_in_one_task_twice,
    accepts_that_wait_together,
    readable_given_up_beside_another,
    futures_are_small,
    ready_for_urgent_data_at_the_end,
    ready_for_errors,
    try_read_into_an_empty_buffer,
    write_of_nothing,
    write_of_nothing_after_shutdown,
);

const TASKS: usize = 5;

/// Spawns tasks that run `wait`, and returns when each has been polled.
async fn tasks<F>(mut wait: impl FnMut() -> F) -> JoinSet<String>
where
    F: Future<Output = String> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(wait());
    }
    turns(20).await;
    tasks
}

/// Returns the common result of the tasks, or all results if they differ.
async fn all_saw(tasks: JoinSet<String>) -> String {
    let seen = tasks.join_all().await;
    let same = seen.iter().all(|one| *one == seen[0]);
    if same { format!("{} times {}", seen.len(), seen[0]) } else { format!("{seen:?}") }
}

/// Spawns tasks that run `wait` on one stream, sends a byte, and returns their results.
async fn woken_by_a_byte<T, F>(wait: impl Fn(Arc<T::Stream>) -> F) -> Observation
where
    T: Transport,
    F: Future<Output = String> + Send + 'static,
{
    let (client, mut server) = pair::<T>().await;
    let client = Arc::new(client);
    let waiting = tasks(|| wait(client.clone())).await;
    server.write_all(b"!").await.unwrap();
    all_saw(waiting).await
}

async fn readable_in_several_tasks<T: Transport>() -> Observation {
    woken_by_a_byte::<T, _>(|client| async move { seen(client.readable().await) }).await
}

async fn writable_in_several_tasks<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    client.writable().await.unwrap();
    while client.try_write(&[7; 16_000]).is_ok() {}
    let client = Arc::new(client);
    let waiting = tasks(|| {
        let client = client.clone();
        async move { seen(client.writable().await) }
    });
    let waiting = waiting.await;
    let mut buf = vec![0; 1 << 20];
    let drain = async {
        loop {
            server.readable().await.unwrap();
            let _ = server.try_read(&mut buf);
        }
    };
    tokio::select! {
        seen = all_saw(waiting) => seen,
        () = drain => unreachable!("it never ends"),
    }
}

async fn ready_in_several_tasks<T: Transport>() -> Observation {
    woken_by_a_byte::<T, _>(|client| async move {
        seen(client.ready(Interest::READABLE).await.map(|ready| ready.is_readable()))
    })
    .await
}

async fn peek_in_several_tasks<T: Transport>() -> Observation {
    woken_by_a_byte::<T, _>(|client| async move { seen(client.peek(&mut [0; 1]).await) }).await
}

/// A waker of `poll_read_ready` replaces no waiting task.
async fn readable_beside_a_poll<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let stream = Arc::new(client);
    let waiting = tasks(|| {
        let stream = stream.clone();
        async move { seen(stream.readable().await) }
    });
    let waiting = waiting.await;
    let polled = at_most(1, std::future::poll_fn(|cx| stream.poll_read_ready(cx))).await.is_none();
    server.write_all(b"!").await.unwrap();
    format!("polled: {polled}, {}", all_saw(waiting).await)
}

async fn readable_in_one_task_twice<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let both = async { tokio::join!(client.readable(), client.readable()) };
    let ((one, two), ()) = tokio::join!(both, async {
        turns(10).await;
        server.write_all(b"!").await.unwrap();
    });
    format!("{}, {}", seen(one), seen(two))
}

async fn accepts_that_wait_together<T: Transport>() -> Observation {
    let listener = Arc::new(T::bind().await);
    let addr = listener.local_addr().unwrap();
    let waiting = tasks(|| {
        let listener = listener.clone();
        async move { seen(listener.accept().await.map(|_| ())) }
    });
    let waiting = waiting.await;
    let mut clients = Vec::new();
    for _ in 0..TASKS {
        let mut client = T::connect(addr).await.unwrap();
        client.write_all(b"!").await.unwrap();
        clients.push(client);
    }
    all_saw(waiting).await
}

async fn readable_given_up_beside_another<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let stays = async { seen(client.readable().await) };
    let leaves = async {
        for _ in 0..3 {
            assert!(at_most(1, client.readable()).await.is_none());
            turns(1).await;
        }
        server.write_all(b"!").await.unwrap();
    };
    let (stays, ()) = tokio::join!(stays, leaves);
    stays
}

async fn futures_are_small<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let connect = size_of_val(&T::connect(addr)) < 500;
    let bind = size_of_val(&T::Listener::bind_to(addr)) < 500;
    format!("connect: {connect}, bind: {bind}, accept: {}", size_of_val(&listener.accept()) < 500)
}

async fn ready_for_urgent_data_at_the_end<T: Transport>() -> Observation {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const URGENT: Interest = Interest::PRIORITY;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const URGENT: Interest = Interest::READABLE;
    let (client, mut server) = pair::<T>().await;
    let waits = at_most(1, client.ready(URGENT)).await.is_none();
    server.shutdown().await.unwrap();
    let ready = client.ready(URGENT).await.unwrap();
    format!("waits: {waits}, read closed: {}", ready.is_read_closed())
}

async fn ready_for_errors<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let waits = at_most(1, client.ready(Interest::ERROR)).await.is_none();
    server.write_all(b"!").await.unwrap();
    let read = read(&mut client).await;
    let still = at_most(1, client.ready(Interest::ERROR)).await.is_none();
    format!("waits: {waits}, {read}, waits: {still}")
}

async fn try_read_into_an_empty_buffer<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let before = seen(client.try_read(&mut []));
    server.write_all(b"!").await.unwrap();
    client.readable().await.unwrap();
    let there = seen(client.try_read(&mut []));
    format!("{before}, {there}, {}", seen(client.try_read(&mut [0; 2])))
}

async fn write_of_nothing<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let nothing = seen(client.write(b"").await);
    client.write_all(b"here").await.unwrap();
    format!("{nothing}, {}", read(&mut server).await)
}

async fn write_of_nothing_after_shutdown<T: Transport>() -> Observation {
    let (mut client, _server) = pair::<T>().await;
    client.shutdown().await.unwrap();
    format!("{}, {}", seen(client.write(b"").await), seen(client.try_write(b"")))
}
