//! Messages, put together from their fragments.

use bytes::BytesMut;

use super::receiver::{Chunk, Payload, Receiver};
use crate::error::ConnectionError;
use crate::util::queue;

/// A message whose last fragment has not arrived.
#[derive(Debug)]
pub(super) struct MessageReassembly {
    data: BytesMut,
    pub(super) segments: u32,
    pub(super) charge: usize,
    /// `frg` of the next fragment.
    expected: u8,
}

impl Receiver {
    pub(super) fn deliver_fragment(
        &mut self,
        frg: u8,
        charge: usize,
        payload: Payload<'_>,
    ) -> Result<(), ConnectionError> {
        let fits = match &self.partial {
            Some(partial) => partial.expected == frg && partial.charge + charge <= self.budget,
            // Its fragments are of equal size, the last one aside.
            None => {
                frg == 0
                    || (u16::from(frg) < self.window
                        && (usize::from(frg) + 1) * charge <= self.budget)
            }
        };
        if !fits {
            // It is not stored.
            (self.unread, self.charged) = (self.unread - 1, self.charged - charge);
            return Err(ConnectionError::ProtocolViolation);
        }
        let chunk = match (self.partial.take(), frg) {
            (None, 0) => Chunk { data: payload.into_owned(), segments: 1, charge },
            (partial, _) => {
                let mut partial = partial.unwrap_or_else(|| MessageReassembly {
                    data: BytesMut::new(),
                    segments: 0,
                    charge: 0,
                    expected: frg,
                });
                partial.data.extend_from_slice(payload.bytes());
                partial.segments += 1;
                partial.charge += charge;
                if frg > 0 {
                    partial.expected = frg - 1;
                    self.partial = Some(partial);
                    return Ok(());
                }
                Chunk {
                    data: partial.data.freeze(),
                    segments: partial.segments,
                    charge: partial.charge,
                }
            }
        };
        if chunk.data.is_empty() && !self.empty_messages {
            (self.unread, self.charged) =
                (self.unread - chunk.segments, self.charged - chunk.charge);
        } else {
            queue::push(&mut self.ready, chunk);
        }
        Ok(())
    }
}
