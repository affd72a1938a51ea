//! The UDP socket: Tokio's readiness around quinn-udp's system calls, with GSO and GRO.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
#[cfg(all(test, target_os = "linux"))]
use std::sync::atomic::AtomicI32;
use std::task::{Context, Poll};

use quinn_udp::UdpSocketState;
#[cfg(any(target_os = "linux", target_os = "android"))]
use tokio::io::unix::AsyncFd;

use super::bind::{bind, bind_group, families, shares_port};
use super::errors::{SendFault, classify_send, gso_refusal, shut_down};
use super::gso::{Gso, GsoRefusal};
use super::options::SavedOptions;
use super::recv_batch::{MAX_GSO_BYTES, RxBatch};
use super::registration::{Registered, Registration};
use super::transport::Transmit;
use super::{dscp, ip_fragmentation, pktinfo, recv_batch};
use crate::config::SocketConfig;
use crate::util::path::canonical;
use crate::util::sync::Arc;
#[cfg(all(test, target_os = "linux"))]
use crate::util::sync::{AtomicUsize, Ordering};

/// A UDP socket, registered with the runtime it was created in.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    io: Registration,
    state: UdpSocketState,
    /// Whether the socket is IPv6: then IPv4 destinations must be IPv4-mapped.
    v6: bool,
    /// Whether it is bound to all addresses of the host and states the one that a datagram leaves from:
    /// then each datagram comes with the one that it was sent to.
    states_source: bool,
    /// Whether it serves IPv4 peers, and IPv6 peers.
    families: (bool, bool),
    /// Whether it has a DSCP of its own (`dscp.rs` then sends).
    has_traffic_class: bool,
    gso: Gso,
    /// True while IP fragmentation is allowed: IPv6 datagrams above `MAX_UNFRAGMENTED_V6` then leave
    /// in fragments, which GSO cannot do.
    fragments_v6: bool,
    /// The system did not take the source of the last send, see `Socket::take_source_gone`.
    source_gone: bool,
    /// See `Socket::bypass_readiness`.
    bypasses_readiness: bool,
    /// The last send was above the MTU of the route, see `Socket::take_above_route_mtu`.
    above_route_mtu: bool,
    /// Keeps every socket of its `SO_REUSEPORT` group open, if it has one.
    _group: Option<Arc<[std::net::UdpSocket]>>,
    #[cfg(all(test, target_os = "linux"))]
    gso_failure: Option<GsoFailure>,
    /// The error code of the next send that states no source, for tests.
    #[cfg(all(test, target_os = "linux"))]
    failure_without_source: AtomicI32,
}

/// A system that fails to segment at run time, for tests.
#[cfg(all(test, target_os = "linux"))]
#[derive(Debug)]
struct GsoFailure {
    /// GSO batches that still leave.
    after: usize,
    /// All other destinations are taken; `None`: no destination is.
    only: Option<SocketAddr>,
    /// The error code of all others.
    code: i32,
    /// GSO batches so far, those that failed included.
    batches: Arc<AtomicUsize>,
}

impl UdpSocket {
    /// Binds a socket. Port 0 lets the system choose one.
    ///
    /// An IPv6 wildcard socket serves IPv4 peers too unless `only_v6` is set. The system may grant
    /// smaller buffers than requested.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O enabled.
    pub(crate) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<Self> {
        let socket = bind(addr, config)?;
        let saved = SavedOptions::of_new(&socket, addr.is_ipv6());
        Self::register(socket, &saved)
    }

    /// Binds one socket per shard to the same address (`SO_REUSEPORT`). Either all are bound or
    /// none stays bound.
    ///
    /// None of them is closed before the last one is dropped: closing one makes the system
    /// redistribute the peers of the others.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub(crate) fn bind_group(addr: SocketAddr, config: &SocketConfig) -> io::Result<Vec<Self>> {
        Self::adopt_group(bind_group(addr, config)?)
    }

    /// Adopts sockets that are bound to one address (`SO_REUSEPORT`), as [`from_std`](Self::from_std). None
    /// of them is closed before the last one is dropped, as in [`bind_group`](Self::bind_group).
    ///
    /// # Errors
    ///
    /// As [`from_std`](Self::from_std).
    pub(crate) fn adopt_group(bound: Vec<std::net::UdpSocket>) -> io::Result<Vec<Self>> {
        if let [_] = bound.as_slice() {
            return bound.into_iter().map(Self::from_std).collect();
        }
        if bound.iter().any(|socket| !shares_port(socket)) {
            let text = "a socket has no SO_REUSEPORT, allowed are several sockets that have it";
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
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

    /// Adopts a bound socket. Its options stay, except that it becomes non-blocking, coalesces
    /// received datagrams (`UDP_GRO`), and reports their local address if it is bound to all
    /// (`IP_PKTINFO`).
    ///
    /// # Errors
    ///
    /// When it is not a usable UDP socket.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O enabled.
    pub(crate) fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let saved = SavedOptions::of(&socket);
        Self::register(socket, &saved)
    }

    /// Of a non-blocking socket. `saved`: its options, of which those that are not asked for stay.
    fn register(socket: std::net::UdpSocket, saved: &SavedOptions) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        saved.restore(&socket);
        let has_traffic_class = dscp::has_traffic_class(&socket);
        let has_gso = dscp::HAS_GSO || !has_traffic_class;
        let local = socket.local_addr()?;
        let is_wildcard = local.ip().to_canonical().is_unspecified();
        if is_wildcard {
            pktinfo::enable(&socket, local);
        }
        Ok(Self {
            v6: local.is_ipv6(),
            states_source: is_wildcard && (!has_traffic_class || dscp::STATES_SOURCE),
            families: families(&socket, local),
            has_traffic_class,
            gso: Gso::new(if has_gso { state.max_gso_segments() } else { 1 }),
            io: Registration::new(socket)?,
            state,
            fragments_v6: false,
            source_gone: false,
            bypasses_readiness: false,
            above_route_mtu: false,
            _group: None,
            #[cfg(all(test, target_os = "linux"))]
            gso_failure: None,
            #[cfg(all(test, target_os = "linux"))]
            failure_without_source: AtomicI32::new(0),
        })
    }

    /// Turns GSO off.
    #[cfg(test)]
    pub(crate) fn without_gso(mut self) -> Self {
        self.gso = Gso::new(1);
        self
    }

    /// Lets `after` GSO batches leave, to `only` this destination if given; all later ones fail with `code`.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn refuse_gso_batches(
        &mut self,
        after: usize,
        code: i32,
        only: Option<SocketAddr>,
    ) -> Arc<AtomicUsize> {
        let batches = Arc::default();
        self.gso_failure = Some(GsoFailure { after, only, code, batches: Arc::clone(&batches) });
        batches
    }

    /// The next send that states no source fails with `code`.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn fail_once_without_source(&mut self, code: i32) {
        self.failure_without_source = AtomicI32::new(code);
    }

    #[cfg(all(test, target_os = "linux"))]
    fn check_failures(&self, dst: SocketAddr, has_source: bool, is_gso: bool) -> io::Result<()> {
        if !has_source && self.failure_without_source.load(Ordering::Relaxed) != 0 {
            let code = self.failure_without_source.swap(0, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(code));
        }
        let concerns = |failure: &&GsoFailure| is_gso && failure.only.is_none_or(|it| it == dst);
        match self.gso_failure.as_ref().filter(concerns) {
            Some(failure) if failure.batches.fetch_add(1, Ordering::Relaxed) >= failure.after => {
                Err(io::Error::from_raw_os_error(failure.code))
            }
            _ => Ok(()),
        }
    }

    /// As a send that would block. Returns whether the socket counts as closed for writing then.
    #[cfg(all(test, unix))]
    pub(super) fn block(&mut self) -> bool {
        let blocked = self.io.try_send(|_| io::Result::<()>::Err(ErrorKind::WouldBlock.into()));
        assert_eq!(blocked.unwrap_err().kind(), ErrorKind::WouldBlock);
        self.io.is_write_closed()
    }

    /// The socket, for the error reports about it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn reports(&self) -> Arc<AsyncFd<std::net::UdpSocket>> {
        self.io.shared()
    }

    /// Returns the address in the form that this socket's system calls take: IPv4-mapped on IPv6.
    fn destination(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        if addr.port() == 0 {
            // No peer has port 0. The system rejects it with the error code of a GSO failure, so a
            // forged source port of 0 must not reach the system.
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(match addr {
            SocketAddr::V4(v4) if self.v6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            SocketAddr::V6(_) if !self.v6 => canonical(addr),
            other => other,
        })
    }

    /// Most datagrams of `size` bytes that may go to `dst` as one GSO batch now.
    fn segments_of_next(&mut self, dst: SocketAddr, size: usize) -> usize {
        let is_fragmented = size > ip_fragmentation::MAX_UNFRAGMENTED_V6;
        if is_fragmented && self.fragments_v6 && dst.is_ipv6() {
            return 1;
        }
        self.gso.segments_of_next(dst, size).min(MAX_GSO_BYTES / size).max(1)
    }

    /// As [`Self::send_once`], once more if the error says that the datagram is too large: a connected
    /// socket reports so an ICMP message about an earlier datagram, once, and anyone can forge one.
    fn send_or_retry(
        &mut self,
        destination: SocketAddr,
        source: &mut Option<IpAddr>,
        batch: (usize, &[u8]),
    ) -> io::Result<()> {
        match self.send_once(destination, source, batch) {
            Err(error) if classify_send(&error) == SendFault::TooLarge => {
                self.send_once(destination, source, batch)
            }
            result => result,
        }
    }

    /// Sends a GSO batch or a datagram with one system call; with another one where the system does
    /// not take `source`, which then becomes `None`: the address may be gone, and no other one is
    /// better than the one that the system chooses.
    fn send_once(
        &mut self,
        destination: SocketAddr,
        source: &mut Option<IpAddr>,
        (size, contents): (usize, &[u8]),
    ) -> io::Result<()> {
        let mut result = self.try_send(destination, *source, (size, contents));
        if let Err(error) = &result
            && source.is_some()
            && pktinfo::may_be_source(error)
        {
            let (kind, second) = (error.kind(), self.try_send(destination, None, (size, contents)));
            match second.as_ref().map_err(io::Error::kind) {
                // It is not the source that the system does not take.
                Err(same) if same == kind => {}
                // The datagrams wait, as those that the system does take.
                Err(ErrorKind::WouldBlock) => result = second,
                _ => (*source, result) = (None, second),
            }
        }
        result.map_err(|error| match error.kind() {
            // Of a UDP socket: it was shut down for sending.
            ErrorKind::BrokenPipe => shut_down(),
            _ => error,
        })
    }

    fn try_send(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        (size, contents): (usize, &[u8]),
    ) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux"))]
        self.check_failures(destination, source.is_some(), contents.len() > size)?;
        if self.has_traffic_class {
            let path = (destination, source);
            return self.io.try_send(|socket| dscp::send(socket.into(), path, size, contents));
        }
        let transmit = quinn_udp::Transmit {
            destination,
            ecn: None,
            contents,
            segment_size: Some(size),
            src_ip: source,
        };
        self.io.try_send(|socket| self.state.try_send(socket.into(), &transmit))
    }
}

/// The operations of the `Socket` trait, which documents them (`socket.rs`).
impl UdpSocket {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().local_addr()
    }

    pub(crate) fn check_peer(&self, peer: SocketAddr) -> io::Result<()> {
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
        Err(io::Error::new(ErrorKind::InvalidInput, refused))
    }

    pub(crate) fn set_ip_fragmentation(&mut self, allow: bool) {
        self.fragments_v6 = ip_fragmentation::allow(self.io.socket(), allow);
    }

    pub(crate) fn max_gso_segments(&self) -> usize {
        self.gso.max_segments()
    }

    pub(crate) fn bypass_readiness(&mut self) {
        self.bypasses_readiness = true;
    }

    pub(crate) fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        if batch.is_full() {
            return Ok(());
        }
        let mut is_readable = false;
        // No address is reported that datagrams do not leave from.
        let has_local_ip = |peer| self.states_source && pktinfo::can_state_source(peer);
        // Until `WouldBlock`: only that clears Tokio's readiness, so that the next poll waits.
        let mut has_received = false;
        let mut fill = |socket: &Registered| {
            let is_empty = batch.fill(has_local_ip, |buffers, meta| {
                let count = self.state.recv(socket.into(), buffers, meta)?;
                Ok((count, recv_batch::is_last(count, buffers.len(), meta)))
            })?;
            has_received = true;
            if is_empty { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        let mut received = self.io.try_recv(|socket| {
            is_readable = true;
            fill(socket)
        });
        if self.bypasses_readiness && !is_readable {
            received = fill(self.io.socket());
        }
        self.bypasses_readiness &= batch.is_full();
        match received {
            _ if has_received => Ok(()),
            // A socket that was shut down is readable for ever, and has nothing to read.
            Err(error)
                if is_readable
                    && error.kind() == ErrorKind::WouldBlock
                    && self.io.is_shut_down() =>
            {
                Err(shut_down())
            }
            other => other,
        }
    }

    pub(crate) fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        let Transmit { dst, segment_size, contents, local } = *transmit;
        let destination = self.destination(dst)?;
        let mut source = self.states_source.then(|| pktinfo::source(destination, local)).flatten();
        let size = segment_size.clamp(1, contents.len().max(1));
        let mut segments = self.segments_of_next(dst, size);
        let mut refusal = None;
        let mut sent = 0;
        while let Some(rest) = contents.get(sent..).filter(|rest| !rest.is_empty()) {
            let (batch, _) = rest.split_at(rest.len().min(segments * size));
            let is_gso = batch.len() > size;
            let had_source = source.is_some();
            let result = self.send_or_retry(destination, &mut source, (size, batch));
            self.source_gone |= had_source && source.is_none();
            match result {
                Ok(()) => {
                    sent += batch.len();
                    if is_gso {
                        self.gso.on_taken(dst, size);
                    }
                    // The first datagram of the batch was taken alone: GSO was refused, not it.
                    if let Some(refusal) = refusal.take() {
                        self.gso.on_refused(dst, size, refusal);
                        self.above_route_mtu |= refusal == GsoRefusal::RouteMtu;
                    }
                }
                Err(error) if is_gso && gso_refusal(&error, size).is_some() => {
                    (refusal, segments) = (gso_refusal(&error, size), 1);
                }
                Err(error) => return if sent > 0 { Ok(sent) } else { Err(error) },
            }
        }
        Ok(sent)
    }

    pub(crate) fn take_source_gone(&mut self) -> bool {
        mem::take(&mut self.source_gone)
    }

    pub(crate) fn take_above_route_mtu(&mut self) -> bool {
        mem::take(&mut self.above_route_mtu)
    }

    pub(crate) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_recv_ready(cx)
    }

    pub(crate) fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_send_ready(cx)
    }

    pub(crate) fn leave_runtime(&mut self) -> bool {
        self.io.leave_runtime()
    }
}
