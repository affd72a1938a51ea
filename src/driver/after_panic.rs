//! The end of an endpoint whose driver panicked: its connections are reset (RFC 9293 3.5.2), the
//! handles get an error.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::{Driver, TURN_PACKETS};
use crate::driver::output::send_batch::SendBatch;
use crate::error::{ConnectionError, Heard};
use crate::sys::Socket;
use crate::trace;

impl<S: Socket> Driver<S> {
    /// Resets all connections after a turn has panicked with `panic`. To be dropped afterwards.
    pub(super) fn end_after_panic(&mut self, now: Instant, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("without a message");
        let error = io::Error::other(format!("the endpoint has ended, its task panicked: {text}"));
        // What panicked, such as the cipher, may do so again. Then no RST leaves.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            trace::endpoint_failed(self.local(), &error);
            // Where the socket fails too, no RST leaves.
            drop(self.reset_all(now));
        }));
        self.fail(error);
    }

    /// Ends every connection and sends the RSTs that the socket takes now.
    fn reset_all(&mut self, now: Instant) -> io::Result<()> {
        // What was not sealed is lost, and must not leave.
        (self.tx, self.blocked) = (SendBatch::default(), false);
        self.ready.clear();
        for (_, conn) in &mut self.conns {
            conn.end_early(ConnectionError::EndpointClosed);
            conn.publish_stats(None);
            // From now on it sends its RST alone.
            let _time_wait =
                conn.advance_lifecycle(now, |_| TimeoutCause::Nothing, &mut self.scratch);
            self.ready.push_back(conn.id());
        }
        // A connection is served once or twice; each round serves some, or is the last.
        for _ in 0..=self.ready.len() {
            if self.ready.is_empty() || self.blocked {
                break;
            }
            self.budget = TURN_PACKETS;
            self.serve(now)?;
            self.flush()?;
        }
        Ok(())
    }
}
