//! Message reassembly (quinn `Assembler`; kcp-go `Recv`, `PeekSize`).
//!
//! The wire field `frg` counts the fragments still to come, so the first fragment announces their
//! number. Deviates from kcp-go, which delivers any sequence that ends in `frg` 0: fragments that
//! do not count down to 0, or that exceed the receive window or memory, end the connection.

use bytes::BytesMut;

use crate::core::recv::delivery_buffer::{Chunk, Payload};
use crate::error::ConnectionError;

/// A message whose last fragment has not arrived.
#[derive(Debug)]
struct IncompleteMessage {
    data: BytesMut,
    segments: u32,
    /// Receive memory charged for the fragments, bytes.
    charge: usize,
    /// `frg` of the next fragment.
    next_frg: u8,
}

/// Reassembles the messages of one connection, one at a time, from segments in order.
#[derive(Debug, Default)]
pub(super) struct MessageReassembly {
    partial: Option<IncompleteMessage>,
}

impl MessageReassembly {
    /// Whether the next segment in order may have this `frg` and charge.
    pub(super) fn admits(
        &self,
        (frg, charge): (u8, usize),
        (window, budget): (u16, usize),
    ) -> bool {
        match &self.partial {
            Some(partial) => partial.next_frg == frg && partial.charge + charge <= budget,
            // All fragments but the last are of equal size.
            None => {
                frg == 0 || (u16::from(frg) < window && (usize::from(frg) + 1) * charge <= budget)
            }
        }
    }

    /// Adds the next segment in order, with `charge` bytes of receive memory. Returns the message
    /// that it completes. `window`: most fragments of a message; `budget`: most memory of one,
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::ProtocolViolation`] if the segment does not continue the message, or the
    /// message exceeds `window` or `budget`. The segment is not stored then.
    pub(super) fn push(
        &mut self,
        (frg, charge): (u8, usize),
        payload: Payload<'_>,
        (window, budget): (u16, usize),
    ) -> Result<Option<Chunk>, ConnectionError> {
        if !self.admits((frg, charge), (window, budget)) {
            return Err(ConnectionError::ProtocolViolation);
        }
        let (partial, remaining) = (self.partial.take(), frg.checked_sub(1));
        if partial.is_none() && remaining.is_none() {
            return Ok(Some(Chunk { data: payload.into_owned(), segments: 1, charge }));
        }
        let mut partial = partial.unwrap_or_else(|| IncompleteMessage {
            data: BytesMut::new(),
            segments: 0,
            charge: 0,
            next_frg: frg,
        });
        partial.data.extend_from_slice(payload.bytes());
        partial.segments += 1;
        partial.charge += charge;
        if let Some(next_frg) = remaining {
            self.partial = Some(IncompleteMessage { next_frg, ..partial });
            return Ok(None);
        }
        let IncompleteMessage { data, segments, charge, .. } = partial;
        Ok(Some(Chunk { data: data.freeze(), segments, charge }))
    }

    /// Segments of the whole incomplete message, and their memory in bytes with `segment_charge`
    /// for each missing one.
    #[inline]
    pub(super) fn size(&self, segment_charge: usize) -> Option<(u16, usize)> {
        let partial = self.partial.as_ref()?;
        let rest = u16::from(partial.next_frg) + 1;
        let arrived = u16::try_from(partial.segments).unwrap_or(u16::MAX);
        let memory =
            partial.charge.saturating_add(usize::from(rest).saturating_mul(segment_charge));
        Some((arrived.saturating_add(rest), memory))
    }

    /// Segments and charge of the incomplete message.
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn totals(&self) -> (u32, usize) {
        self.partial.as_ref().map_or((0, 0), |partial| (partial.segments, partial.charge))
    }
}
