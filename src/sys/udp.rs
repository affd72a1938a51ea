//! The UDP socket: quinn-udp's system calls, GSO and GRO on a socket registered with Tokio.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
#[cfg(all(test, target_os = "linux"))]
use std::sync::atomic::AtomicI32;
use std::task::{Context, Poll};

use quinn_udp::UdpSocketState;
#[cfg(any(target_os = "linux", target_os = "android"))]
use tokio::io::unix::AsyncFd;

use super::errors::{SendFault, classify_send, gso_refusal, shut_down};
use super::gso::{Gso, GsoRefusal};
use super::options::{
    CLASS_SEND_HAS_GSO, CLASS_SEND_STATES_SOURCE, MAX_UNFRAGMENTED_V6, SavedOptions, bind,
    bind_group, can_state_source, enable_pktinfo, families, has_traffic_class, may_be_source,
    send_with_class, set_ip_fragmentation, shares_port, stated_source,
};
use super::recv_batch;
use super::recv_batch::{MAX_GSO_BYTES, RxBatch};
use super::registration::{Registered, Registration};
use super::transport::Transmit;
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
    /// Whether the socket is IPv6 and takes IPv4 destinations as IPv4-mapped addresses.
    v6: bool,
    /// Whether the socket is bound to all addresses and can state the source of a datagram: each received
    /// datagram then comes with its destination.
    states_source: bool,
    /// Whether the socket serves IPv4 peers, and IPv6 peers.
    families: (bool, bool),
    /// Whether it has its own DSCP (sends then go through [`send_with_class`]).
    has_traffic_class: bool,
    gso: Gso,
    /// Whether IP fragmentation is allowed: IPv6 datagrams above `MAX_UNFRAGMENTED_V6` then leave in
    /// fragments, without GSO.
    fragments_v6: bool,
    /// See `Socket::take_source_gone`.
    source_gone: bool,
    /// See `Socket::bypass_readiness`.
    bypasses_readiness: bool,
    /// See `Socket::take_above_route_mtu`.
    above_route_mtu: bool,
    /// Keeps the sockets of its `SO_REUSEPORT` group open.
    _group: Option<Arc<[std::net::UdpSocket]>>,
    #[cfg(all(test, target_os = "linux"))]
    gso_failure: Option<GsoFailure>,
    /// Error code of the next send that states no source, for tests.
    #[cfg(all(test, target_os = "linux"))]
    failure_without_source: AtomicI32,
}

/// A simulated segmentation failure, for tests.
#[cfg(all(test, target_os = "linux"))]
#[derive(Debug)]
struct GsoFailure {
    /// GSO batches that leave before the failure.
    after: usize,
    /// The destination that fails; `None`: all.
    only: Option<SocketAddr>,
    /// The error code.
    code: i32,
    /// GSO batches so far, including failed ones.
    batches: Arc<AtomicUsize>,
}

impl UdpSocket {
    /// Binds a socket. Port 0 lets the system choose one.
    ///
    /// An IPv6 wildcard socket also serves IPv4 peers unless `only_v6` is set. The system may grant
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

    /// Binds one socket per shard to the same address (`SO_REUSEPORT`): all or none.
    ///
    /// None is closed before the last one is dropped: the system would redistribute the peers of the
    /// others.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub(crate) fn bind_group(addr: SocketAddr, config: &SocketConfig) -> io::Result<Vec<Self>> {
        Self::adopt_group(bind_group(addr, config)?)
    }

    /// Adopts sockets that are bound to one address (`SO_REUSEPORT`), see [`from_std`](Self::from_std).
    /// None is closed before the last one is dropped, as in [`bind_group`](Self::bind_group).
    ///
    /// # Errors
    ///
    /// As [`from_std`](Self::from_std).
    pub(crate) fn adopt_group(bound: Vec<std::net::UdpSocket>) -> io::Result<Vec<Self>> {
        if let [_] = bound.as_slice() {
            return bound.into_iter().map(Self::from_std).collect();
        }
        if bound.iter().any(|socket| !shares_port(socket)) {
            let text = "several sockets require SO_REUSEPORT, one lacks it: set it before the bind";
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

    /// Adopts a bound socket. Its options stay, except that it becomes non-blocking, coalesces received
    /// datagrams (`UDP_GRO`), and reports their destination if it is a wildcard socket (`IP_PKTINFO`).
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

    /// Registers a non-blocking socket. `saved`: the option values to restore.
    fn register(socket: std::net::UdpSocket, saved: &SavedOptions) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        saved.restore(&socket);
        let has_traffic_class = has_traffic_class(&socket);
        let has_gso = CLASS_SEND_HAS_GSO || !has_traffic_class;
        let local = socket.local_addr()?;
        let is_wildcard = local.ip().to_canonical().is_unspecified();
        if is_wildcard {
            enable_pktinfo(&socket, local);
        }
        Ok(Self {
            v6: local.is_ipv6(),
            states_source: is_wildcard && (!has_traffic_class || CLASS_SEND_STATES_SOURCE),
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

    /// Lets `after` GSO batches leave, then fails all (or those to `only`) with `code`.
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

    /// Makes the next send that states no source fail with `code`.
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

    /// Simulates a send that blocks. Returns whether the socket then counts as closed for writing.
    #[cfg(all(test, unix))]
    pub(super) fn block(&mut self) -> bool {
        let blocked = self.io.try_send(|_| io::Result::<()>::Err(ErrorKind::WouldBlock.into()));
        assert_eq!(blocked.unwrap_err().kind(), ErrorKind::WouldBlock);
        self.io.is_write_closed()
    }

    /// The socket, for its error reports.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn reports(&self) -> Arc<AsyncFd<std::net::UdpSocket>> {
        self.io.shared()
    }

    /// Returns the address in the form that this socket's system calls take: IPv4-mapped on IPv6.
    fn destination(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        if addr.port() == 0 {
            // No peer has port 0, but a forged source port may be 0. The system would reject it with the
            // error code of a GSO failure.
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

    /// Most datagrams of `size` bytes in one GSO batch to `dst` now.
    fn segments_of_next(&mut self, dst: SocketAddr, size: usize) -> usize {
        let is_fragmented = size > MAX_UNFRAGMENTED_V6;
        if is_fragmented && self.fragments_v6 && dst.is_ipv6() {
            return 1;
        }
        self.gso.segments_of_next(dst, size).min(MAX_GSO_BYTES / size).max(1)
    }

    /// As [`Self::send_once`], with a retry if the error says that the datagram is too large: on a
    /// connected socket the error may be an ICMP report about an earlier datagram, reported once, and
    /// easy to forge.
    fn send_or_retry(
        &mut self,
        destination: SocketAddr,
        source: &mut Option<IpAddr>,
        size: usize,
        contents: &[u8],
    ) -> io::Result<()> {
        match self.send_once(destination, source, size, contents) {
            Err(error) if classify_send(&error) == SendFault::TooLarge => {
                self.send_once(destination, source, size, contents)
            }
            result => result,
        }
    }

    /// Sends a GSO batch or a datagram with one system call. If the system does not take `source`, whose
    /// address may be gone, sends it again with the source of the system's choice and sets `source` to
    /// `None`.
    fn send_once(
        &mut self,
        destination: SocketAddr,
        source: &mut Option<IpAddr>,
        size: usize,
        contents: &[u8],
    ) -> io::Result<()> {
        let mut result = self.try_send(destination, *source, size, contents);
        if let Err(error) = &result
            && source.is_some()
            && may_be_source(error)
        {
            let (kind, second) = (error.kind(), self.try_send(destination, None, size, contents));
            match second.as_ref().map_err(io::Error::kind) {
                // The source was not the reason.
                Err(same) if same == kind => {}
                // The datagrams wait, like ones with a valid source.
                Err(ErrorKind::WouldBlock) => result = second,
                _ => (*source, result) = (None, second),
            }
        }
        result.map_err(|error| match error.kind() {
            // For a UDP socket: it was shut down for sending.
            ErrorKind::BrokenPipe => shut_down(),
            _ => error,
        })
    }

    fn try_send(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        size: usize,
        contents: &[u8],
    ) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux"))]
        self.check_failures(destination, source.is_some(), contents.len() > size)?;
        if self.has_traffic_class {
            return self.io.try_send(|socket| {
                send_with_class(socket.into(), destination, source, size, contents)
            });
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

/// The operations of the `Socket` trait, documented there (`socket.rs`).
impl UdpSocket {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.socket().local_addr()
    }

    pub(crate) fn check_peer(&self, peer: SocketAddr) -> io::Result<()> {
        let (v4, v6) = self.families;
        let refused = match peer {
            _ if peer.port() == 0 => {
                format!("the peer {peer} has port 0: connect to a port from 1 to 65535")
            }
            SocketAddr::V4(_) if !v4 => {
                let local = self.local_addr()?;
                format!("the peer {peer} is IPv4, the socket {local} supports IPv6 only")
            }
            SocketAddr::V6(_) if !v6 => {
                let local = self.local_addr()?;
                format!("the peer {peer} is IPv6, the socket {local} supports IPv4 only")
            }
            _ => return Ok(()),
        };
        Err(io::Error::new(ErrorKind::InvalidInput, refused))
    }

    pub(crate) fn set_ip_fragmentation(&mut self, allow: bool) {
        self.fragments_v6 = set_ip_fragmentation(self.io.socket(), allow);
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
        // Only destinations that answers can leave from.
        let has_local_ip = |peer| self.states_source && can_state_source(peer);
        // Receives until `WouldBlock`: only that clears Tokio's readiness, so that the next poll waits.
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
            // A socket that was shut down stays readable without data.
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
        let mut source = self.states_source.then(|| stated_source(destination, local)).flatten();
        let size = segment_size.clamp(1, contents.len().max(1));
        let mut segments = self.segments_of_next(dst, size);
        let mut refusal = None;
        let mut sent = 0;
        while let Some(rest) = contents.get(sent..).filter(|rest| !rest.is_empty()) {
            let (batch, _) = rest.split_at(rest.len().min(segments * size));
            let is_gso = batch.len() > size;
            let had_source = source.is_some();
            let result = self.send_or_retry(destination, &mut source, size, batch);
            self.source_gone |= had_source && source.is_none();
            match result {
                Ok(()) => {
                    sent += batch.len();
                    if is_gso {
                        self.gso.on_taken(dst, size);
                    }
                    // The batch's first datagram was taken alone: GSO was refused, not the datagram.
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
