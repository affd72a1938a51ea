//! The real socket: Tokio's readiness around quinn-udp's system calls.

use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::task::{Context, Poll};

use quinn_udp::UdpSocketState;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::runtime::Handle;

use super::bind::{SavedOptions, bind, bind_group};
use super::errors::{SendFault, classify_send, may_be_offload};
use super::{MAX_TRAIN_BYTES, RxBatch, Socket, Transmit, canonical};
use crate::config::SocketConfig;
use crate::sys::dscp;
use crate::sys::ip_fragmentation;
use crate::util::sync::Arc;
#[cfg(all(test, target_os = "linux"))]
use crate::util::sync::{AtomicUsize, Ordering};

/// A UDP socket registered with the runtime it was made in.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    /// An IPv6 socket takes IPv4 peers as mapped addresses only.
    v6: bool,
    /// Whether it takes peers of IPv4, and of IPv6.
    families: (bool, bool),
    /// It has a class of service of its own.
    marked: bool,
    /// 1 where the system does not segment, or did not when it came to it.
    max_train: usize,
    /// The last peer whose path could not take segments of this size, and the size in bytes.
    gso_refused_for: Option<(SocketAddr, usize)>,
    /// IPv6 datagrams that not every path carries whole leave in fragments, which a train cannot.
    fragments_v6: bool,
    /// Keeps every socket of its group open, if it has one.
    _group: Option<Arc<[std::net::UdpSocket]>>,
    #[cfg(all(test, target_os = "linux"))]
    refusing: Option<Refusing>,
}

/// A system that cannot segment and says so when it comes to it.
#[cfg(all(test, target_os = "linux"))]
#[derive(Debug)]
struct Refusing {
    /// Trains that still leave.
    after: usize,
    /// What all others fail with.
    code: i32,
    /// Trains so far, those that failed included.
    trains: Arc<AtomicUsize>,
}

/// Why a train was refused that may well leave as single datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The system or the network device cannot segment.
    Offload,
    /// The segments are larger than the path's MTU: singly they are fragmented, in a train not.
    PathMtu,
}

impl UdpSocket {
    /// Binds a socket. Port 0 has the system choose one.
    ///
    /// An IPv6 socket serves IPv4 peers too unless the configuration says otherwise. Buffer sizes
    /// are wishes.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound, or outside a Tokio runtime.
    pub(crate) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<Self> {
        Self::from_std(bind(addr, config)?)
    }

    /// Binds as many sockets to the same address as the configuration says. Either all are bound or
    /// none stays so.
    ///
    /// None of them is closed before the last one is dropped: the system would spread the peers of
    /// the others anew.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub(crate) fn bind_group(addr: SocketAddr, config: &SocketConfig) -> io::Result<Vec<Self>> {
        let bound = bind_group(addr, config)?;
        if let [_] = bound.as_slice() {
            return bound.into_iter().map(Self::from_std).collect();
        }
        let group = bound.iter().map(std::net::UdpSocket::try_clone);
        let group: Arc<[_]> = group.collect::<io::Result<Vec<_>>>()?.into();
        let mut sockets = Vec::new();
        for socket in bound {
            let group = Some(group.clone());
            sockets.push(Self { _group: group, ..Self::from_std(socket)? });
        }
        Ok(sockets)
    }

    /// Takes over a bound socket. Its options stay, except that it becomes non-blocking and
    /// coalesces what it receives.
    ///
    /// # Errors
    ///
    /// When it is no usable UDP socket, or outside a Tokio runtime.
    ///
    /// # Panics
    ///
    /// In a Tokio runtime without I/O.
    pub(crate) fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        Handle::try_current().map_err(io::Error::other)?;
        socket.set_nonblocking(true)?;
        let saved = SavedOptions::of(&socket);
        let state = UdpSocketState::new((&socket).into())?;
        saved.restore(&socket);
        let marked = dscp::has_traffic_class(&socket);
        let trains = dscp::TRAINS || !marked;
        let local = socket.local_addr()?;
        Ok(Self {
            v6: local.is_ipv6(),
            families: versions(&socket, local),
            marked,
            max_train: if trains { state.max_gso_segments().max(1) } else { 1 },
            io: tokio::net::UdpSocket::from_std(socket)?,
            state,
            gso_refused_for: None,
            fragments_v6: false,
            _group: None,
            #[cfg(all(test, target_os = "linux"))]
            refusing: None,
        })
    }

    /// Turns segmentation off.
    #[cfg(test)]
    pub(crate) fn without_trains(mut self) -> Self {
        self.max_train = 1;
        self
    }

    /// Lets so many trains leave, and has all others fail with `code`. Returns what counts both.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn refuse_trains(&mut self, after: usize, code: i32) -> Arc<AtomicUsize> {
        let trains = Arc::default();
        self.refusing = Some(Refusing { after, code, trains: Arc::clone(&trains) });
        trains
    }

    #[cfg(all(test, target_os = "linux"))]
    fn refuse_train(&self) -> io::Result<()> {
        match &self.refusing {
            Some(it) if it.trains.fetch_add(1, Ordering::Relaxed) >= it.after => {
                Err(io::Error::from_raw_os_error(it.code))
            }
            _ => Ok(()),
        }
    }

    /// The address as this socket's system calls want it.
    fn destination(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        if addr.port() == 0 {
            // Nobody can have it. The system refuses it in the words in which it refuses
            // segmentation, so a forged source must not get that far.
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(match addr {
            SocketAddr::V4(v4) if self.v6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            SocketAddr::V6(_) if !self.v6 => canonical(addr),
            other => other,
        })
    }

    /// Whether trains of this size cannot go to `dst`, or were refused on the way.
    fn is_narrow(&self, dst: SocketAddr, size: usize) -> bool {
        let cut = self.fragments_v6 && dst.is_ipv6() && size > ip_fragmentation::WHOLE_V6;
        cut || self.gso_refused_for.is_some_and(|(peer, refused)| peer == dst && size >= refused)
    }

    /// One system call.
    fn send_once(&self, destination: SocketAddr, size: usize, contents: &[u8]) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux"))]
        if contents.len() > size {
            self.refuse_train()?;
        }
        if self.marked {
            return self
                .io
                .try_io(Interest::WRITABLE, || dscp::send(&self.io, destination, size, contents));
        }
        let transmit = quinn_udp::Transmit {
            destination,
            ecn: None,
            contents,
            segment_size: Some(size),
            src_ip: None,
        };
        self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit))
    }
}

impl Socket for UdpSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn check_peer(&self, peer: SocketAddr) -> io::Result<()> {
        let (v4, v6) = self.families;
        let refused = match peer {
            _ if peer.port() == 0 => format!("the peer {peer} has port 0, allowed is 1 to 65535"),
            SocketAddr::V4(_) if !v4 => {
                let local = self.local_addr()?;
                format!("the peer {peer} is IPv4, the socket {local} speaks IPv6 only")
            }
            SocketAddr::V6(_) if !v6 => {
                let local = self.local_addr()?;
                format!("the peer {peer} is IPv6, the socket {local} speaks IPv4 only")
            }
            _ => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, refused))
    }

    fn replace(&mut self, socket: UdpSocket) -> io::Result<()> {
        *self = socket;
        Ok(())
    }

    fn set_ip_fragmentation(&mut self, allow: bool) {
        self.fragments_v6 = ip_fragmentation::allow(&self.io, allow);
    }

    fn max_gso_segments(&self) -> usize {
        self.max_train
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        // Until it would block: only that clears the readiness, so that the next poll waits.
        batch.fill(|buffers, meta| {
            self.io.try_io(Interest::READABLE, || self.state.recv((&self.io).into(), buffers, meta))
        })
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        let Transmit { dst, segment_size, contents } = *transmit;
        let destination = self.destination(dst)?;
        let size = segment_size.clamp(1, contents.len().max(1));
        let mut longest = (MAX_TRAIN_BYTES / size).clamp(1, self.max_train);
        if self.is_narrow(dst, size) {
            longest = 1;
        }
        let mut refusal = None;
        let mut sent = 0;
        while let Some(rest) = contents.get(sent..).filter(|rest| !rest.is_empty()) {
            let (train, _) = rest.split_at(rest.len().min(longest * size));
            match self.send_once(destination, size, train) {
                Ok(()) => {
                    sent += train.len();
                    // The same datagram alone went through: it was the train that was refused.
                    match refusal.take() {
                        Some(Refusal::Offload) => self.max_train = 1,
                        Some(Refusal::PathMtu) => self.gso_refused_for = Some((dst, size)),
                        None => {}
                    }
                }
                Err(error) if train.len() > size && may_be_offload(&error) => {
                    (refusal, longest) = (Some(Refusal::Offload), 1);
                }
                Err(error)
                    if train.len() > size && classify_send(&error) == SendFault::TooLarge =>
                {
                    (refusal, longest) = (Some(Refusal::PathMtu), 1);
                }
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_recv_ready(cx)
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_send_ready(cx)
    }
}

/// Whether a socket takes peers of IPv4, and of IPv6.
fn versions(socket: &std::net::UdpSocket, local: SocketAddr) -> (bool, bool) {
    let SocketAddr::V6(v6) = local else { return (true, false) };
    let mapped = v6.ip().to_ipv4_mapped().is_some();
    // Bound to one IPv6 address it has none that an IPv4 peer could answer to.
    let both = v6.ip().is_unspecified() && matches!(SockRef::from(socket).only_v6(), Ok(false));
    (mapped || both, !mapped)
}
