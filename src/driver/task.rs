//! [`DriverTask`]: the future that runs a driver on Tokio. Between turns the task is parked until the socket,
//! a handle or a deadline wakes it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::Sleep;

use super::{Driver, Turn};
use crate::sys::Socket;

/// Most turns per poll. After `Turn::Again` the task yields at once; after `Turn::Idle` another turn runs if
/// the socket, a handle or a deadline has become ready.
const TURNS_PER_POLL: usize = 8;

/// A driver as a future that is ready after [`Turn::Finished`].
#[derive(Debug)]
pub(crate) struct DriverTask<S: Socket> {
    driver: Driver<S>,
    sleep: Pin<Box<Sleep>>,
    /// The time that `sleep` is set to: the deadline, or an earlier time.
    armed: Option<Instant>,
}

impl<S: Socket + Unpin> DriverTask<S> {
    /// Panics outside a Tokio runtime with time enabled.
    pub(crate) fn new(driver: Driver<S>) -> Self {
        let sleep = Box::pin(tokio::time::sleep(std::time::Duration::ZERO));
        Self { driver, sleep, armed: None }
    }

    /// Registers for everything that may wake the driver: a readable socket, a writable socket while blocked,
    /// a notification of a handle, the deadline. Returns true if one of these has happened already.
    fn register(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let driver = &mut self.driver;
        if !driver.is_in_recv_backoff()
            && let Poll::Ready(ready) = driver.socket.poll_recv_ready(cx)
        {
            driver.on_socket_ready(ready);
            return true;
        }
        if driver.is_blocked()
            && let Poll::Ready(ready) = driver.socket.poll_send_ready(cx)
        {
            driver.on_socket_ready(ready);
            return true;
        }
        self.driver.register(cx.waker()) || self.poll_sleep(cx, now)
    }

    fn poll_sleep(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(deadline) = self.driver.deadline() else {
            return false;
        };
        // `Sleep` takes part in Tokio's cooperative budget: it may be pending after its deadline.
        if deadline <= now {
            return true;
        }
        loop {
            // Deadlines move to later times with most datagrams. A sleep that ends too early is set again.
            if self.armed.is_none_or(|armed| armed > deadline) {
                self.sleep.as_mut().reset(deadline.into());
                self.armed = Some(deadline);
            }
            if self.sleep.as_mut().poll(cx).is_pending() {
                return false;
            }
            if self.armed.take() == Some(deadline) {
                return true;
            }
        }
    }
}

impl<S: Socket + Unpin> Future for DriverTask<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        for _ in 0..TURNS_PER_POLL {
            // Tokio's clock: `tokio::time::pause` stops the timers of the protocol as well.
            let now = tokio::time::Instant::now().into_std();
            // A turn calls code of the application that may panic: cipher, filters, transport, wakers. The
            // driver is then used only to end its connections.
            match catch_unwind(AssertUnwindSafe(|| this.driver.turn(now))).unwrap_or_else(|panic| {
                this.driver.end_after_panic(now, &*panic);
                Turn::Finished
            }) {
                Turn::Finished => return Poll::Ready(()),
                Turn::Again => break,
                // An event since the turn, such as an answer, ends the delay.
                Turn::Idle | Turn::DelaysAcks if this.register(cx, now) => {}
                // A later event ends it too, or that no other task of this thread is ready.
                Turn::DelaysAcks => {
                    let _ = pin!(yield_now()).poll(cx);
                    return Poll::Pending;
                }
                Turn::Idle => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: Socket> Drop for DriverTask<S> {
    #[expect(clippy::disallowed_methods, reason = "Tokio's clock may be paused")]
    fn drop(&mut self) {
        // Tokio's clock panics in a thread that is about to end. During a panic no peer is notified.
        let has_clock = Handle::try_current().err().is_none_or(|e| e.is_missing_context());
        if has_clock && !std::thread::panicking() {
            self.driver.on_exit(tokio::time::Instant::now().into_std(), Some(Instant::now));
        }
    }
}
