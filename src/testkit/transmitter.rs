//! The driver's stages between a connection and the socket, without a socket, for simulations of the
//! state machine. No cipher.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use crate::config::Config;
use crate::core::path::validation::PathValidation;
use crate::driver::fec::FecSender;
use crate::driver::output::send_batch::SendBatch;
use crate::driver::output::{Copies, PacketCodec, PacketWriter, PathCopies, SendExtras, Written};
use crate::fec::FecConfig;
use crate::proto::{InputError, Kcp, PacketType, PathId};
use crate::testkit::rng::Rng;
use crate::util::path::Path;

/// Sends and receives the datagrams of one connection, with or without FEC.
///
/// Paths have the numbers of their [`PathId`], which stand for addresses.
#[derive(Debug)]
pub struct Transmitter {
    codec: PacketCodec,
    tx: SendBatch,
    fec: Option<FecSender>,
    copies: PathCopies,
    /// Of challenges.
    cookies: Rng,
}

impl Transmitter {
    pub fn new(fec: Option<FecConfig>) -> Self {
        Self {
            codec: PacketCodec::new(&Config::new(), [0; 32]),
            tx: SendBatch::default(),
            fec: fec.map(FecSender::new),
            copies: PathCopies::default(),
            cookies: Rng::new(0),
        }
    }

    /// Calls `send` with each datagram that leaves now, including parity, and the number of its path.
    pub fn transmit(&mut self, now: Instant, kcp: &mut Kcp, mut send: impl FnMut(u8, &[u8])) {
        self.transmit_on_paths(now, kcp);
        self.drain(&mut send);
        let mut in_gso_batch = false;
        loop {
            self.copies.paths.clear();
            let copy_paths = kcp.copy_paths().map(|(id, mtu)| (path_of(id), mtu));
            self.copies.paths.extend(copy_paths);
            let to = path_of(kcp.active_path());
            let Self { tx, codec, fec, copies, .. } = self;
            let mut writer = PacketWriter { tx, codec, fec: fec.as_mut() };
            let copies = Copies { duplicates: 0, on_paths: Some(copies) };
            let appended = writer.transmit(now, kcp, to, copies, in_gso_batch, usize::MAX);
            self.drain(&mut send);
            // As in the driver: data behind a GSO batch follows if it is due.
            if appended.datagrams == 0 && !in_gso_batch {
                break;
            }
            in_gso_batch = appended.in_gso_batch && appended.datagrams > 0;
        }
        let Self { tx, codec, fec, .. } = self;
        let mut writer = PacketWriter { tx, codec, fec: fec.as_mut() };
        writer.close_group(now, kcp, path_of(PathId::FIRST));
        self.drain(&mut send);
    }

    /// A datagram of the peer without FEC header arrives on the path with this number. As in the driver, it is
    /// dropped while the path is unknown, and may validate the path.
    ///
    /// # Errors
    ///
    /// If the connection refuses the datagram.
    pub fn receive(
        &mut self,
        now: Instant,
        kcp: &mut Kcp,
        path: u8,
        datagram: &[u8],
    ) -> Result<(), InputError> {
        let id = PathId(path);
        let is_known = kcp.paths().any(|known| known.id == id);
        if !is_known && !self.validate(now, kcp, path_of(id), datagram) {
            return Ok(());
        }
        kcp.set_arrival(id);
        kcp.input(now, datagram, PacketType::Regular)
    }

    /// Returns whether the connection takes the path.
    fn validate(&mut self, now: Instant, kcp: &mut Kcp, path: Path, datagram: &[u8]) -> bool {
        let (is_new, cookie) = (kcp.has_something_new(datagram), self.cookies.next() as u32);
        match kcp.validate_other_path(now, path, datagram, is_new, cookie) {
            PathValidation::Unvalidated => false,
            PathValidation::Challenge(challenge) => {
                let segment = kcp.path_challenge(challenge);
                self.codec.encode_segment(now, &mut self.tx, path, &segment);
                false
            }
            PathValidation::Validated => {
                let announced = kcp.announced_path(now, path);
                announced.is_some_and(|(id, rtt)| kcp.add_peer_path(now, id, rtt))
            }
        }
    }

    /// Appends what leaves on other paths than data.
    fn transmit_on_paths(&mut self, now: Instant, kcp: &mut Kcp) {
        let Self { tx, codec, .. } = self;
        while let Some(id) = kcp.next_transmit_path(now) {
            let write = |tail: &mut Vec<u8>| match kcp.poll_transmit_on_path(now, tail) {
                Some(_) => Written::Other,
                None => Written::Nothing,
            };
            if codec.encode(now, tx, path_of(id), SendExtras::default(), write) == 0 {
                break;
            }
        }
    }

    fn drain(&mut self, send: &mut impl FnMut(u8, &[u8])) {
        self.tx.drain(|path, datagram| send(number_of(path), datagram));
    }

    /// When FEC needs the next call of [`Self::transmit`].
    pub fn deadline(&self, kcp: &Kcp) -> Option<Instant> {
        self.fec.as_ref()?.deadline(kcp.conv())
    }
}

/// The address that stands for a path: its number is the port, counted from 1.
fn path_of(id: PathId) -> Path {
    Path::to(SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + u16::from(id.number()))))
}

fn number_of(path: Path) -> u8 {
    path.peer.port() as u8 - 1
}

/// Bytes of memory: of unsent and unacknowledged data, and of received data.
pub fn memory(kcp: &Kcp) -> [usize; 2] {
    [kcp.send_memory(), kcp.recv_memory()]
}
