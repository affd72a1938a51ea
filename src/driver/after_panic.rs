//! The end of an endpoint whose driver panicked: its connections are reset (RFC 9293 3.5.2), the
//! handles get an error.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::{Driver, TURN_PACKETS};
use crate::driver::send_batch::SendBatch;
use crate::error::ConnectionError;
use crate::shared::conn_id::ConnId;
use crate::sys::Socket;
use crate::trace;

impl<S: Socket> Driver<S> {
    /// Resets all connections after a turn has panicked with `panic`. To be dropped afterwards.
    pub(super) fn end_after_panic(&mut self, now: Instant, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("without a message");
        let error = io::Error::other(format!("the endpoint has ended, its task panicked: {text}"));
        trace::socket_failed(self.local(), &error);
        // What panicked, such as the cipher, may do so again. Then no RST leaves.
        if let Ok(Err(send_error)) = catch_unwind(AssertUnwindSafe(|| self.reset_all(now))) {
            trace::socket_failed(self.local(), &send_error);
        }
        self.notifier.set_error(error);
    }

    /// Ends every connection and sends the RSTs that the socket takes now.
    fn reset_all(&mut self, now: Instant) -> io::Result<()> {
        // What was not sealed is lost, and must not leave.
        self.tx = SendBatch::default();
        let ids: Vec<ConnId> = self.conns.iter().map(|(_, conn)| conn.id()).collect();
        for id in &ids {
            if let Some(conn) = self.get_mut(*id) {
                conn.end_early(ConnectionError::EndpointClosed);
            }
        }
        // The connection is ended when it is served first, and its RST leaves when it is next.
        for _ in 0..2 {
            self.ready = ids.iter().copied().collect();
            let mut left = usize::MAX;
            // Each round sends something, or is the last.
            while !self.ready.is_empty() && !self.blocked && self.ready.len() < left {
                (left, self.budget) = (self.ready.len(), TURN_PACKETS);
                self.serve(now)?;
                self.flush()?;
            }
        }
        Ok(())
    }
}
