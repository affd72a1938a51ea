//! The driver's stages between a connection and the socket, without a socket, for simulations of the
//! state machine. No cipher.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use crate::config::Config;
use crate::driver::fec::FecSender;
use crate::driver::output::send_batch::SendBatch;
use crate::driver::output::{Copies, PacketCodec, PacketWriter};
use crate::fec::FecConfig;
use crate::proto::Kcp;
use crate::util::path::Path;

/// Sends the datagrams of one connection, with or without FEC.
#[derive(Debug)]
pub struct Transmitter {
    codec: PacketCodec,
    tx: SendBatch,
    fec: Option<FecSender>,
}

impl Transmitter {
    pub fn new(fec: Option<FecConfig>) -> Self {
        let codec = PacketCodec::new(&Config::new(), [0; 32]);
        Self { codec, tx: SendBatch::default(), fec: fec.map(FecSender::new) }
    }

    /// Calls `send` with each datagram that leaves now, including parity.
    pub fn transmit(&mut self, now: Instant, kcp: &mut Kcp, mut send: impl FnMut(&[u8])) {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut in_gso_batch = false;
        loop {
            let to = Path::to(to);
            let appended =
                self.writer().transmit(now, kcp, to, Copies::default(), in_gso_batch, usize::MAX);
            self.tx.drain(&mut send);
            // As in the driver: data behind a GSO batch follows if it is due.
            if appended.datagrams == 0 && !in_gso_batch {
                break;
            }
            in_gso_batch = appended.in_gso_batch && appended.datagrams > 0;
        }
        self.writer().close_group(now, kcp, Path::to(to));
        self.tx.drain(&mut send);
    }

    /// When FEC needs the next call of [`Self::transmit`].
    pub fn deadline(&self, kcp: &Kcp) -> Option<Instant> {
        self.fec.as_ref()?.deadline(kcp.conv())
    }

    fn writer(&mut self) -> PacketWriter<'_> {
        let Self { tx, codec, fec } = self;
        PacketWriter { tx, codec, fec: fec.as_mut() }
    }
}
