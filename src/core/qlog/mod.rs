//! qlog of a connection (draft-ietf-quic-qlog-main-schema): the events that the state machine reports.
//!
//! The state machine calls [`Qlog`], which does nothing while the connection has no log. `log` has the log, the only
//! part that the feature `qlog` adds.

#![cfg_attr(
    not(feature = "qlog"),
    expect(unused_variables, clippy::needless_pass_by_ref_mut, reason = "the feature is off")
)]

#[cfg(feature = "qlog")]
pub(crate) mod log;

use crate::core::clock::Micros;
use crate::core::send::SendCandidate;
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::util::Framing;

#[cfg(feature = "qlog")]
use self::log::Log;

/// The log of a connection, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Qlog {
    #[cfg(feature = "qlog")]
    pub(crate) log: Option<Box<Log>>,
}

impl Qlog {
    /// A datagram was written.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Micros, datagram: Option<&[u8]>) {
        #[cfg(feature = "qlog")]
        if let (Some(log), Some(datagram)) = (&mut self.log, datagram) {
            log.on_sent(now, datagram);
        }
    }

    /// Datagrams of `size` bytes were written one after the other, each with space for `framing`.
    #[inline]
    pub(crate) fn on_batch_sent(
        &mut self,
        now: Micros,
        batch: Option<&[u8]>,
        size: usize,
        framing: Framing,
    ) {
        #[cfg(feature = "qlog")]
        if let (Some(log), Some(batch)) = (&mut self.log, batch) {
            for framed in batch.chunks_exact(framing.around(size).max(1)) {
                if let Some(datagram) = framed.get(framing.header_len..framing.header_len + size) {
                    log.on_sent(now, datagram);
                }
            }
        }
    }

    /// A datagram was processed. `una`: SND.UNA afterwards. `recovered`: FEC has recovered it.
    #[inline]
    pub(crate) fn on_received(&mut self, now: Micros, datagram: &[u8], una: Sn, recovered: bool) {
        #[cfg(feature = "qlog")]
        if let Some(log) = &mut self.log {
            log.on_received(now, datagram, una, recovered);
        }
    }

    /// Bytes of memory of the log.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        #[cfg(feature = "qlog")]
        if let Some(log) = &self.log {
            return log.memory();
        }
        0
    }

    /// The connection has ended.
    pub(crate) fn on_ended(&mut self, now: Micros, reason: ConnectionError) {
        #[cfg(feature = "qlog")]
        if let Some(log) = &mut self.log {
            log.on_ended(now, reason);
        }
    }

    /// The connection is idle.
    pub(crate) fn release_memory(&mut self) {
        #[cfg(feature = "qlog")]
        if let Some(log) = &mut self.log {
            log.release_memory();
        }
    }

    /// `next` leaves; if it is a retransmission, its last transmission is lost.
    #[inline]
    pub(crate) fn on_transmit(&mut self, now: Micros, next: SendCandidate) {
        #[cfg(feature = "qlog")]
        if let Some(log) = &mut self.log
            && let Some((sn, trigger)) = next.lost()
        {
            log.on_lost(now, sn, trigger);
        }
    }
}
