//! The end of a connection, as the driver reports it and handles see it.

use std::task::Waker;

use crate::error::ConnectionError;
use crate::shared::connection::Shared;

impl Shared {
    /// Ends the connection. Every pending and later call reports `error`, reads once the bytes
    /// delivered before are read. What was written and not taken is discarded. The first error
    /// stays. `is_delivered`: the peer has read what was taken. Returns all tasks to wake.
    pub(crate) fn end(
        &self,
        error: ConnectionError,
        is_delivered: bool,
    ) -> impl Iterator<Item = Waker> + use<> {
        let (writers, shutdown) = self.send.fail(error, is_delivered);
        let (readers, receivers) = (self.recv.fail(error), self.datagrams.fail(error));
        let established = self.established.fail(error);
        let single = [shutdown, established].into_iter().flatten();
        let ended = self.end_waiters.take_all();
        writers.chain(readers).chain(receivers).chain(ended).chain(single)
    }

    /// Why the connection failed, once.
    pub(crate) fn take_error(&self) -> Option<ConnectionError> {
        let error = self.error().filter(|error| *error != ConnectionError::Closed)?;
        self.options.take_error(error)
    }
}
