//! The UDP socket: quinn-udp's system calls, GSO and GRO on a socket registered with Tokio.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
#[cfg(all(test, target_os = "linux"))]
use std::sync::atomic::AtomicI32;
use std::task::{Context, Poll};

use quinn_udp::UdpSocketState;
#[cfg(any(target_os = "linux", target_os = "android"))]
use tokio::io::unix::AsyncFd;

#[cfg(not(unix))]
use self::other::Registration;
#[cfg(unix)]
use self::unix::Registration;
use super::errors::{GsoRefusal, SendFault, classify_send, gso_refusal, shut_down};
#[cfg(all(feature = "netlink", target_os = "linux"))]
use super::netlink::source_for;
use super::options::{
    CLASS_SEND_HAS_GSO, CLASS_SEND_STATES_SOURCE, MAX_UNFRAGMENTED_V6, SavedOptions, bind,
    bind_group, can_state_source, enable_pktinfo, families, has_traffic_class, may_be_source,
    send_with_class, set_ip_fragmentation, shares_port, stated_source,
};
use super::recv_batch::{self, MAX_GSO_BYTES, RxBatch};
use super::transport::Transmit;
use crate::config::SocketConfig;
use crate::util::path::canonical;
use crate::util::sync::Arc;
#[cfg(all(test, target_os = "linux"))]
use crate::util::sync::{AtomicUsize, Ordering};

/// The socket in a [`Registration`].
#[cfg(unix)]
type Registered = std::net::UdpSocket;
/// The socket in a [`Registration`].
#[cfg(not(unix))]
type Registered = tokio::net::UdpSocket;

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

    #[cfg(all(feature = "netlink", target_os = "linux"))]
    pub(crate) fn source_for(&self, peer: SocketAddr) -> Option<IpAddr> {
        source_for(self.io.socket(), peer)
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

/// Remembered destinations that refused; beyond it the oldest is replaced.
const MAX_DESTINATIONS: usize = 16;
/// Sends until a GSO batch is tried again: each refusal costs one system call.
const RETRY_AFTER: u32 = 256;
/// Destinations that refuse in a row before GSO is off for all.
const MAX_IN_A_ROW: usize = 4;

#[derive(Debug)]
struct Refused {
    dst: SocketAddr,
    refusal: GsoRefusal,
    /// Smallest refused segment size in bytes.
    size: usize,
    /// Sends until a batch is tried again.
    wait: u32,
}

/// GSO state of one socket.
///
/// A refusal usually concerns one destination, whose route has a device without segmentation or an MTU
/// below the segment size. Refusals of several destinations in a row mean that the system does not
/// segment at all. Routes change, so a batch is tried again after [`RETRY_AFTER`] sends.
#[derive(Debug)]
struct Gso {
    /// Most datagrams per batch: 1 if the system does not segment.
    max_segments: usize,
    /// Oldest first.
    refused: VecDeque<Refused>,
    /// Destinations refused for the device since a batch was last taken.
    in_a_row: usize,
    /// Sends until a batch is tried again to any destination; mostly 0.
    wait: u32,
}

impl Gso {
    fn new(max_segments: usize) -> Self {
        Self { max_segments: max_segments.max(1), refused: VecDeque::new(), in_a_row: 0, wait: 0 }
    }

    /// Most datagrams per batch now.
    #[inline]
    fn max_segments(&self) -> usize {
        if self.wait > 0 { 1 } else { self.max_segments }
    }

    /// Most datagrams of `size` bytes in the next send to `dst`.
    #[inline]
    fn segments_of_next(&mut self, dst: SocketAddr, size: usize) -> usize {
        if self.wait > 0 {
            self.wait -= 1;
            return 1;
        }
        if self.refused.is_empty() { self.max_segments } else { self.after_refusal(dst, size) }
    }

    fn after_refusal(&mut self, dst: SocketAddr, size: usize) -> usize {
        match self.refused.iter_mut().find(|refused| refused.dst == dst) {
            Some(refused) if refused.wait > 0 && size >= refused.size => {
                refused.wait -= 1;
                1
            }
            _ => self.max_segments,
        }
    }

    /// The system took a batch of datagrams of `size` bytes to `dst`.
    #[inline]
    fn on_taken(&mut self, dst: SocketAddr, size: usize) {
        self.in_a_row = 0;
        if !self.refused.is_empty() {
            self.refused.retain(|refused| refused.dst != dst || refused.size > size);
        }
    }

    /// The system refused a batch of datagrams of `size` bytes to `dst` and took its first datagram
    /// alone.
    fn on_refused(&mut self, dst: SocketAddr, size: usize, refusal: GsoRefusal) {
        let known = self.refused.iter().position(|refused| refused.dst == dst);
        let before = known.and_then(|place| self.refused.remove(place));
        if refusal == GsoRefusal::Offload {
            let is_new = before.as_ref().is_none_or(|before| before.refusal != refusal);
            self.in_a_row += usize::from(is_new);
            if self.in_a_row >= MAX_IN_A_ROW {
                self.wait = RETRY_AFTER;
            }
        }
        if self.refused.len() >= MAX_DESTINATIONS {
            self.refused.pop_front();
        }
        let size = before.map_or(size, |before| before.size.min(size));
        self.refused.push_back(Refused { dst, refusal, size, wait: RETRY_AFTER });
    }
}

/// A socket's registration with Tokio's poller.
///
/// A `tokio::net::UdpSocket` is registered for reading and writing, and Linux reports a UDP socket as
/// writable after each sent datagram: one process wake each. So on Unix a socket is registered for reading,
/// and for writing only while a send is blocked.
#[cfg(unix)]
mod unix {
    use std::future::Future;
    use std::io::{self, ErrorKind};
    use std::net::UdpSocket;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::unix::AsyncFd;
    use tokio::io::{Interest, Ready};
    use tokio::runtime::Handle;

    use crate::util::sync::Arc;

    /// Errors arrive in the socket's error queue (`sys/refusal.rs`).
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const RECEIVING: Interest = Interest::READABLE.add(Interest::ERROR);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const RECEIVING: Interest = Interest::READABLE;

    /// A socket registered for reading, and for writing while a send is blocked.
    #[derive(Debug)]
    pub(super) struct Registration {
        io: Arc<AsyncFd<UdpSocket>>,
        blocked: Blocked,
        /// True once nothing is registered, see [`Self::leave_runtime`].
        has_left: bool,
    }

    /// State of the socket's send buffer.
    #[derive(Debug)]
    enum Blocked {
        /// The last send did not block.
        No,
        /// It blocked. A second descriptor of the socket waits, since the poller takes each only once.
        Waits(AsyncFd<UdpSocket>),
        /// It blocked, but no descriptor or runtime was left: each send is tried.
        Unknown,
    }

    #[allow(
        deprecated,
        reason = "its successor is unsafe, for descriptors that may be closed meanwhile"
    )]
    fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
        AsyncFd::with_interest(socket, interest)
    }

    impl Registration {
        /// Registers a non-blocking socket with the runtime.
        pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
            let io = Arc::new(register(socket, RECEIVING)?);
            Ok(Self { io, blocked: Blocked::No, has_left: false })
        }

        pub(super) fn socket(&self) -> &UdpSocket {
            self.io.get_ref()
        }

        /// The socket, for its error reports.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        pub(super) fn shared(&self) -> Arc<AsyncFd<UdpSocket>> {
            self.io.clone()
        }

        /// Calls `recv` unless the socket is known to be empty.
        pub(super) fn try_recv<T>(
            &self,
            recv: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            if self.has_left {
                return recv(self.socket());
            }
            self.io.try_io(Interest::READABLE, recv)
        }

        /// Calls `send` unless the last send blocked and the socket has not become writable since.
        pub(super) fn try_send<T>(
            &mut self,
            send: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            let sent = match &self.blocked {
                Blocked::Waits(io) => io.try_io(Interest::WRITABLE, send),
                Blocked::No | Blocked::Unknown => send(self.socket()),
            };
            match &sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Tokio keeps "closed", which an ICMP report may have caused: waiting on it would
                    // spin.
                    if !matches!(&self.blocked, Blocked::Waits(io) if !is_write_closed(io)) {
                        let second = self.register_for_writing();
                        self.blocked = second.map_or(Blocked::Unknown, Blocked::Waits);
                    }
                }
                _ => self.blocked = Blocked::No,
            }
            sent
        }

        /// From now on each call is tried, whatever the runtime has seen. Returns whether that is
        /// possible.
        pub(super) fn leave_runtime(&mut self) -> bool {
            (self.has_left, self.blocked) = (true, Blocked::Unknown);
            true
        }

        fn register_for_writing(&self) -> io::Result<AsyncFd<UdpSocket>> {
            // Without a runtime, or while one ends, `AsyncFd` panics.
            let runtime = Handle::try_current().ok().filter(|_| !self.has_left);
            runtime.ok_or(ErrorKind::NotConnected)?;
            register(self.socket().try_clone()?, Interest::WRITABLE)
        }

        pub(super) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.io.poll_read_ready(cx).map_ok(drop)
        }

        pub(super) fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match &self.blocked {
                Blocked::No => Poll::Ready(Ok(())),
                Blocked::Waits(io) => io.poll_write_ready(cx).map_ok(drop),
                // Does not spin: unsent data has a timer, and each received datagram is another chance.
                Blocked::Unknown => Poll::Pending,
            }
        }

        /// Whether the runtime has seen the socket shut down for receiving.
        pub(super) fn is_shut_down(&self) -> bool {
            readiness(&self.io, Interest::READABLE).is_read_closed()
        }

        /// Whether the runtime counts the socket as closed for writing while a send is blocked.
        #[cfg(test)]
        pub(super) fn is_write_closed(&self) -> bool {
            matches!(&self.blocked, Blocked::Waits(io) if is_write_closed(io))
        }
    }

    fn is_write_closed(io: &AsyncFd<UdpSocket>) -> bool {
        readiness(io, Interest::WRITABLE).is_write_closed()
    }

    /// The readiness that the runtime has seen so far.
    fn readiness(io: &AsyncFd<UdpSocket>, interest: Interest) -> Ready {
        let ready = pin!(io.ready(interest));
        match ready.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(guard)) => guard.ready(),
            Poll::Ready(Err(_)) | Poll::Pending => Ready::EMPTY,
        }
    }
}

/// A socket's registration with Tokio's poller.
#[cfg(not(unix))]
mod other {
    use std::future::Future;
    use std::io;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::Interest;
    use tokio::net::UdpSocket;

    /// A socket that is registered for reading and writing.
    #[derive(Debug)]
    pub(super) struct Registration(UdpSocket);

    impl Registration {
        /// Registers a non-blocking socket with the runtime.
        pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
            UdpSocket::from_std(socket).map(Self)
        }

        pub(super) fn socket(&self) -> &UdpSocket {
            &self.0
        }

        /// Calls `recv` unless the socket is known to be empty.
        pub(super) fn try_recv<T>(
            &self,
            recv: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            self.0.try_io(Interest::READABLE, || recv(&self.0))
        }

        /// From now on each call is tried, whatever the runtime has seen. Returns whether that is
        /// possible.
        #[expect(
            clippy::needless_pass_by_ref_mut,
            clippy::unused_self,
            reason = "as the one of Unix"
        )]
        pub(super) fn leave_runtime(&mut self) -> bool {
            false
        }

        /// Calls `send` unless the socket is known to be blocked.
        #[expect(clippy::needless_pass_by_ref_mut, reason = "as the one of Unix")]
        pub(super) fn try_send<T>(
            &mut self,
            send: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            self.0.try_io(Interest::WRITABLE, || send(&self.0))
        }

        pub(super) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_recv_ready(cx)
        }

        pub(super) fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_send_ready(cx)
        }

        /// Whether the runtime has seen the socket shut down for receiving.
        pub(super) fn is_shut_down(&self) -> bool {
            let ready = pin!(self.0.ready(Interest::READABLE));
            match ready.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(ready)) => ready.is_read_closed(),
                Poll::Ready(Err(_)) | Poll::Pending => false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1_400;

    fn peer(number: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], number))
    }

    /// Counts sends to `dst` until a batch is tried again.
    fn waits(gso: &mut Gso, dst: SocketAddr) -> u32 {
        let mut sends = 0;
        while gso.segments_of_next(dst, SIZE) == 1 {
            sends += 1;
        }
        sends
    }

    #[test]
    fn refusal_of_one_destination_leaves_the_others_alone_and_is_tried_again() {
        let mut gso = Gso::new(64);
        for refusal in [GsoRefusal::Offload, GsoRefusal::RouteMtu] {
            for _ in 0..10 {
                gso.on_refused(peer(1), SIZE, refusal);
                assert_eq!(gso.max_segments(), 64);
                assert_eq!(gso.segments_of_next(peer(2), SIZE), 64);
                assert_eq!(gso.segments_of_next(peer(1), SIZE - 1), 64, "a smaller one may pass");
                assert_eq!(waits(&mut gso, peer(1)), RETRY_AFTER);
            }
        }
        gso.on_taken(peer(1), SIZE);
        assert_eq!(gso.segments_of_next(peer(1), SIZE), 64);
        assert!(gso.refused.is_empty());
    }

    #[test]
    fn batch_of_smaller_datagrams_does_not_end_the_refusal_of_larger_ones() {
        let mut gso = Gso::new(64);
        gso.on_refused(peer(1), SIZE, GsoRefusal::RouteMtu);
        gso.on_taken(peer(1), SIZE - 200);
        assert_eq!(gso.segments_of_next(peer(1), SIZE), 1);
    }

    #[test]
    fn several_destinations_in_a_row_turn_gso_off_for_a_while() {
        let mut gso = Gso::new(64);
        for number in 1..=3 {
            gso.on_refused(peer(number), SIZE, GsoRefusal::Offload);
            assert_eq!(gso.max_segments(), 64);
        }
        gso.on_taken(peer(9), SIZE);
        for number in 4..=7 {
            assert_eq!(gso.max_segments(), 64);
            gso.on_refused(peer(number), SIZE, GsoRefusal::Offload);
        }
        assert_eq!((gso.max_segments(), waits(&mut gso, peer(9))), (1, RETRY_AFTER));
        // One more refusal is enough now.
        assert_eq!(gso.max_segments(), 64);
        gso.on_refused(peer(9), SIZE, GsoRefusal::Offload);
        assert_eq!((gso.max_segments(), waits(&mut gso, peer(8))), (1, RETRY_AFTER));
        gso.on_taken(peer(8), SIZE);
        gso.on_refused(peer(10), SIZE, GsoRefusal::Offload);
        assert_eq!(gso.max_segments(), 64);
    }

    #[test]
    fn paths_with_a_small_mtu_never_turn_gso_off_for_others() {
        let mut gso = Gso::new(64);
        for number in 1..=1_000 {
            gso.on_refused(peer(number), SIZE, GsoRefusal::RouteMtu);
        }
        assert_eq!((gso.max_segments(), gso.refused.len()), (64, MAX_DESTINATIONS));
        assert_eq!(gso.segments_of_next(peer(1_001), SIZE), 64);
    }
}
