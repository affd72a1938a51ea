//! Helpers of the behaviours.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;

use chacha20::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::transport::{Listener, Stream, Transport};

/// The result of a behaviour in words.
pub(crate) type Observation = String;

/// A running behaviour.
pub(crate) type Run = Pin<Box<dyn Future<Output = Observation>>>;

/// A behaviour on one transport: its name and its function.
pub(crate) type Behaviour = (&'static str, fn() -> Run);

/// Lists the behaviours of a file, for any transport.
macro_rules! behaviours {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn all<T: crate::transport::Transport>() -> Vec<crate::support::Behaviour> {
            vec![$((stringify!($name), || Box::pin($name::<T>()))),*]
        }
    };
}
pub(crate) use behaviours;

/// Both ends of a new connection. Dropping its listener has no effect on them.
pub(crate) async fn pair<T: Transport>() -> (T::Stream, T::Stream) {
    let listener = T::bind().await;
    pair_with::<T>(&listener).await
}

pub(crate) async fn pair_with<T: Transport>(listener: &T::Listener) -> (T::Stream, T::Stream) {
    let addr = listener.local_addr().expect("an address");
    let (client, server) = tokio::join!(T::connect(addr), listener.accept());
    (client.expect("a client"), server.expect("a server").0)
}

/// Resets a connection once the listener has it: an unvalidated peer gets no reset.
pub(crate) async fn abort<T: Transport>(stream: T::Stream) {
    T::known(&stream).await.expect("a connection");
    stream.set_zero_linger().expect("an option");
    drop(stream);
}

/// A result in words: the value, or the kind of the error.
pub(crate) fn seen<T: Debug>(result: io::Result<T>) -> String {
    match result {
        Ok(value) => format!("Ok({value:?})"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// One read in words: the bytes, the end or the error.
pub(crate) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> String {
    let mut buf = [0; 64];
    match reader.read(&mut buf).await {
        Ok(0) => "end".to_owned(),
        Ok(count) => String::from_utf8_lossy(&buf[..count]).into_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// Reads `len` bytes as text.
pub(crate) async fn text(reader: &mut (impl AsyncRead + Unpin), len: usize) -> String {
    let mut buf = vec![0; len];
    match reader.read_exact(&mut buf).await {
        Ok(_) => String::from_utf8_lossy(&buf).into_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// Reads to the end and tells, in words, if the bytes are `expected`, and how the stream ends.
pub(crate) async fn rest(reader: &mut (impl AsyncRead + Unpin), expected: &[u8]) -> String {
    let mut got = Vec::new();
    let end = match reader.read_to_end(&mut got).await {
        Ok(_) => "end".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    };
    format!("{}, {end}", same(&got, expected))
}

/// Compares bytes, in words.
pub(crate) fn same(got: &[u8], expected: &[u8]) -> String {
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        Some(place) => format!("other bytes from {place} on"),
        None if got.len() == expected.len() => "every byte".to_owned(),
        None => format!("{} of {} bytes", got.len(), expected.len()),
    }
}

/// Polls a future at most `polls` times, and drops it if it is still pending.
pub(crate) async fn at_most<F: Future>(mut polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(move |cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            polls -= 1;
            if polls == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// Lets other tasks run `turns` times.
pub(crate) async fn turns(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// `len` random bytes, always the same.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut bytes);
    bytes
}
