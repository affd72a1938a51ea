//! Where the datagrams of one connection are written: the send batch of the turn, the packet codec
//! of the endpoint, and the FEC encoder of the destination address.

use crate::driver::packet_codec::PacketCodec;
use crate::driver::send_batch::SendBatch;
use crate::fec::FecEncoder;

/// Send batch, packet codec and FEC encoder, borrowed while one connection transmits.
#[derive(Debug)]
pub(super) struct PacketWriter<'a> {
    pub(super) tx: &'a mut SendBatch,
    pub(super) codec: &'a mut PacketCodec,
    /// The encoder of the destination address; `None` without FEC. All connections to one address
    /// share it, since parity carries no conversation id.
    pub(super) fec: Option<&'a mut FecEncoder>,
}
