//! Options of UDP sockets: bind-time options and `SO_REUSEPORT` groups, buffers, the options that quinn-udp
//! changes, IP fragmentation, local addresses, and sends with a traffic class.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
#[cfg(unix)]
use std::os::fd::AsRawFd as AsRaw;
#[cfg(windows)]
use std::os::windows::io::AsRawSocket as AsRaw;
use std::sync::Once;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::config::SocketConfig;
use crate::trace::{self, Grant};
use crate::util::path::LocalIp;

/// Most datagrams discarded per socket while its group is incomplete.
const MAX_EARLY_DATAGRAMS: usize = 4_096;

/// Binds a non-blocking UDP socket.
pub(super) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<UdpSocket> {
    bind_reuse_port(addr, config, false)
}

/// Binds one socket per shard to an address (`SO_REUSEPORT`): the system distributes peers over them by a
/// hash of the addresses.
///
/// The first socket is bound without the option, so that an address in use is refused, even by a group of
/// another process.
pub(super) fn bind_group(addr: SocketAddr, config: &SocketConfig) -> io::Result<Vec<UdpSocket>> {
    let first = bind(addr, config)?;
    if config.shards <= 1 {
        return Ok(vec![first]);
    }
    set_reuse_port(&SockRef::from(&first))?;
    let local = first.local_addr()?;
    let mut group = vec![first];
    while group.len() < config.shards {
        group.push(bind_reuse_port(local, config, true)?);
    }
    // A datagram that arrived before the group was complete may be at another socket than its sender's
    // next ones. The sender retransmits what is discarded here.
    for socket in &group {
        let mut buffer = [0; 1];
        let early = std::iter::repeat_with(|| socket.recv_from(&mut buffer));
        early.take(MAX_EARLY_DATAGRAMS).find(Result::is_err);
    }
    Ok(group)
}

fn bind_reuse_port(
    addr: SocketAddr,
    config: &SocketConfig,
    reuse_port: bool,
) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if addr.is_ipv6() {
        // The default differs between systems.
        socket.set_only_v6(config.only_v6)?;
    }
    set_buffers(&socket, config);
    let only_v6 = config.only_v6;
    if let Some(dscp) = config.dscp {
        let class = u32::from(dscp) << 2;
        set_for_versions(
            addr,
            only_v6,
            || socket.set_tos_v4(class),
            || set_class_v6(&socket, class),
        )
        .map_err(|error| named("dscp", &dscp, &error))?;
    }
    if let Some(ttl) = config.ttl {
        set_for_versions(
            addr,
            only_v6,
            || socket.set_ttl_v4(ttl),
            || socket.set_unicast_hops_v6(ttl),
        )
        .map_err(|error| named("ttl", &ttl, &error))?;
    }
    set_device(&socket, config)?;
    if reuse_port {
        set_reuse_port(&socket)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn set_reuse_port(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_port(true)
}

/// Fails: elsewhere `SO_REUSEPORT` does not distribute datagrams by peer.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn set_reuse_port(_: &Socket) -> io::Result<()> {
    Err(io::Error::new(
        ErrorKind::Unsupported,
        "shards require Linux or Android: set Config::shards to 1",
    ))
}

/// Whether other sockets may share the address (`SO_REUSEPORT`).
#[cfg(unix)]
pub(super) fn shares_port(socket: &UdpSocket) -> bool {
    matches!(SockRef::from(socket).reuse_port(), Ok(true))
}

/// Other systems do not have such groups.
#[cfg(not(unix))]
pub(super) fn shares_port(_: &UdpSocket) -> bool {
    false
}

/// Whether a socket serves IPv4 peers, and IPv6 peers.
pub(super) fn families(socket: &UdpSocket, local: SocketAddr) -> (bool, bool) {
    let SocketAddr::V6(v6) = local else { return (true, false) };
    let mapped = v6.ip().to_ipv4_mapped().is_some();
    // A socket bound to one IPv6 address does not have an IPv4 address.
    let both = v6.ip().is_unspecified() && matches!(SockRef::from(socket).only_v6(), Ok(false));
    (mapped || both, !mapped)
}

/// Checks that the system has a route to `peer`. Sends nothing.
pub(crate) fn check_route(peer: SocketAddr, config: &SocketConfig) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    set_device(&socket, config)?;
    socket.connect(&peer.into())
}

/// The address that datagrams to `peer` leave from: `local`, or, if that is a wildcard, the address that
/// the system's routes choose now. Sends nothing.
pub(crate) fn source_addr(local: SocketAddr, peer: SocketAddr) -> SocketAddr {
    if !local.ip().to_canonical().is_unspecified() {
        return local;
    }
    let chosen = || -> io::Result<Option<SocketAddr>> {
        let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
        socket.connect(&peer.into())?;
        Ok(socket.local_addr()?.as_socket())
    };
    // Includes the scope of a link-local address.
    let mut chosen = chosen().ok().flatten().unwrap_or(local);
    chosen.set_port(local.port());
    chosen
}

/// Sets an option for each IP version that the socket serves.
fn set_for_versions(
    addr: SocketAddr,
    only_v6: bool,
    set_v4: impl FnOnce() -> io::Result<()>,
    set_v6: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    if addr.is_ipv4() {
        return set_v4();
    }
    set_v6()?;
    if only_v6 {
        return Ok(());
    }
    // Datagrams to IPv4 peers take the IPv4 option. Systems other than Linux may lack it on IPv6 sockets.
    let result = set_v4();
    if cfg!(any(target_os = "linux", target_os = "android")) { result } else { Ok(()) }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", target_os = "macos"))]
fn set_class_v6(socket: &Socket, class: u32) -> io::Result<()> {
    socket.set_tclass_v6(class)
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_os = "macos"
)))]
fn set_class_v6(_: &Socket, _: u32) -> io::Result<()> {
    Err(io::Error::new(ErrorKind::Unsupported, "not supported for IPv6 on this system"))
}

/// Binds the socket to one network interface (`SO_BINDTODEVICE`).
fn set_device(socket: &Socket, config: &SocketConfig) -> io::Result<()> {
    let Some(device) = &config.device else { return Ok(()) };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let result = socket.bind_device(Some(device.as_bytes()));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let result = {
        let _ = socket;
        Err(io::Error::new(ErrorKind::Unsupported, "not supported on this system"))
    };
    result.map_err(|error| named("device", device, &error))
}

/// Adds the name and value of the setting to the system's error.
fn named(field: &str, value: &dyn fmt::Debug, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{field} {value:?} cannot be set: {error}"))
}

/// Bytes of the smallest buffer requested after the system refused larger ones.
const MIN_BUFFER_LEN: usize = 4 * 1024;

/// Bytes reported per granted byte: Linux doubles the size for its own bookkeeping (socket(7),
/// `SO_RCVBUF`).
const REPORTED_PER_BYTE: usize =
    if cfg!(any(target_os = "linux", target_os = "android")) { 2 } else { 1 };

/// Requests the configured buffer sizes. Logs the first time in a process that the system grants less:
/// the limit is system-wide.
fn set_buffers(socket: &Socket, config: &SocketConfig) {
    static REPORTED: Once = Once::new();
    let send = config.send_buffer_size.map(|requested| {
        let set = |bytes| socket.set_send_buffer_size(bytes);
        grant(requested, set, || socket.send_buffer_size())
    });
    let recv = config.recv_buffer_size.map(|requested| {
        let set = |bytes| socket.set_recv_buffer_size(bytes);
        grant(requested, set, || socket.recv_buffer_size())
    });
    if [send, recv].into_iter().flatten().any(Grant::is_short) {
        REPORTED.call_once(|| trace::socket_buffers_limited(send, recv));
    }
}

fn grant(
    requested: usize,
    set: impl Fn(usize) -> io::Result<()>,
    get: impl Fn() -> io::Result<usize>,
) -> Grant {
    set_largest_accepted(requested, set);
    // Without a report, everything counts as granted.
    let granted = get().map_or(requested, |reported| reported / REPORTED_PER_BYTE);
    Grant { requested, granted }
}

/// Sets a buffer size, halved until the system accepts it. Linux caps the size itself; others refuse
/// sizes above their maximum. If all are refused, the system's default stays.
fn set_largest_accepted(mut bytes: usize, set: impl Fn(usize) -> io::Result<()>) {
    while set(bytes).is_err() && bytes / 2 >= MIN_BUFFER_LEN {
        bytes /= 2;
    }
}

/// Values of the options that quinn-udp switches on, read before it does.
///
/// One is Don't Fragment: with it, datagrams above the path MTU fail or vanish, and retransmitted
/// segments keep their size. Without it they leave in IP fragments, see [`set_ip_fragmentation`]. The other
/// options request control messages that are not read here.
#[derive(Debug)]
pub(super) struct SavedOptions([Option<i32>; OPTIONS.len()]);

impl SavedOptions {
    /// Reads the options; [`restore`](Self::restore) skips those that the socket lacks.
    pub(super) fn of(socket: &UdpSocket) -> Self {
        Self(OPTIONS.map(|(level, name)| {
            let value = get(socket, level, name).ok()?;
            #[cfg(any(target_os = "linux", target_os = "android"))]
            if (level, name, value) == DEFAULT_V4 {
                return Some(PMTU_DISCOVERY_V4);
            }
            Some(value)
        }))
    }

    /// The same for a new socket, where most options are known to be off.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn of_new(_: &UdpSocket, is_v6: bool) -> Self {
        Self(OPTIONS.map(|(level, name)| match (level, name) {
            (libc::IPPROTO_IPV6, _) if !is_v6 => None,
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => Some(PMTU_DISCOVERY_V4),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => Some(libc::IPV6_PMTUDISC_WANT),
            _ => Some(0),
        }))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn of_new(socket: &UdpSocket, _: bool) -> Self {
        Self::of(socket)
    }

    /// Restores the values.
    pub(super) fn restore(&self, socket: &UdpSocket) {
        for ((level, name), value) in OPTIONS.into_iter().zip(self.0) {
            if let Some(value) = value {
                // If the system refuses, the socket still works: oversized datagrams are then reported
                // (EMSGSIZE).
                drop(set(socket, level, name, value));
            }
        }
    }
}

/// Path MTU discovery mode of an IPv4 socket unless the application has set one: ignores ICMP reports and
/// leaves out Don't Fragment, see [`set_ip_fragmentation`].
#[cfg(any(target_os = "linux", target_os = "android"))]
const PMTU_DISCOVERY_V4: i32 = libc::IP_PMTUDISC_OMIT;
/// Linux's default, which is replaced.
#[cfg(any(target_os = "linux", target_os = "android"))]
const DEFAULT_V4: (i32, i32, i32) =
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT);

/// Level and name of each saved option.
#[cfg(any(target_os = "linux", target_os = "android"))]
const OPTIONS: [(i32, i32); 8] = [
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
];
#[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
const OPTIONS: [(i32, i32); 2] =
    [(libc::IPPROTO_IP, libc::IP_DONTFRAG), (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG)];
/// `IP_DONTFRAGMENT` of `IPPROTO_IP`, `IPV6_DONTFRAG` of `IPPROTO_IPV6`.
#[cfg(windows)]
const OPTIONS: [(i32, i32); 2] = [(0, 14), (41, 14)];
#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_vendor = "apple",
    target_os = "freebsd",
    windows
)))]
const OPTIONS: [(i32, i32); 0] = [];

#[cfg(unix)]
type Len = libc::socklen_t;
#[cfg(windows)]
type Len = libc::c_int;
#[cfg(unix)]
type RawHandle = libc::c_int;
#[cfg(windows)]
type RawHandle = libc::SOCKET;

/// Length of an integer option in bytes.
const INT: Len = 4;
const _: () = assert!(size_of::<libc::c_int>() == 4);

#[cfg(unix)]
fn handle(socket: &impl AsRaw) -> io::Result<RawHandle> {
    Ok(socket.as_raw_fd())
}

#[cfg(windows)]
fn handle(socket: &impl AsRaw) -> io::Result<RawHandle> {
    RawHandle::try_from(socket.as_raw_socket()).map_err(io::Error::other)
}

/// Returns the value of an integer option (`getsockopt`).
#[expect(unsafe_code, reason = "socket2 does not have these options")]
pub(super) fn get(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_int> {
    let handle = handle(socket)?;
    let (mut value, mut len): (libc::c_int, Len) = (0, INT);
    // SAFETY: `socket` is borrowed and thus open. `value` and `len` are live and exclusive; `len`
    // is the size of `value` in bytes, and the system writes no more than that.
    let result = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(handle, level, name, value, &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an integer option (`setsockopt`).
#[expect(unsafe_code, reason = "socket2 does not have these options")]
pub(super) fn set(
    socket: &impl AsRaw,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let handle = handle(socket)?;
    // SAFETY: `socket` is borrowed and thus open. The system reads `INT` bytes, all of `value`,
    // which is live, and keeps no pointer.
    let result = unsafe { libc::setsockopt(handle, level, name, (&raw const value).cast(), INT) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Largest UDP payload in bytes that every IPv6 path carries without fragments: the minimum MTU of IPv6
/// (RFC 8200 section 5) less IP and UDP headers.
pub(super) const MAX_UNFRAGMENTED_V6: usize = 1_280 - 40 - 8;

/// Minimum MTU of IPv6 in bytes. Only the sender fragments there.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MIN_MTU_V6: libc::c_int = 1_280;

/// Allows IP fragmentation, or restores the default. When allowed, the sender fragments IPv6
/// datagrams above `MAX_UNFRAGMENTED_V6`, whatever was reported; IPv4 always allows it. Returns
/// whether the sender fragments IPv6 datagrams from now on.
///
/// An option set by the application stays.
///
/// By default Linux remembers path MTUs reported by ICMP, fragments larger datagrams, and rejects GSO
/// batches. Such a report is easy to forge, since only the quoted addresses and ports are checked. So
/// IPv4 datagrams leave without Don't Fragment, whatever was reported (`IP_PMTUDISC_OMIT`, see
/// `SavedOptions`): a router in front of a smaller link fragments them, and the sender fragments those
/// above the MTU of its own link.
///
/// Routers do not fragment IPv6 (RFC 8200 section 5), so reports count there; the least they can claim is
/// 1,280. The driver then lowers the MTU (`Socket::take_above_route_mtu`), and earlier datagrams leave in
/// fragments. If reports are filtered, datagrams above the path MTU vanish (a PMTU black hole, RFC 2923)
/// until path MTU discovery allows fragments.
///
/// Other systems leave Don't Fragment off by default, so nothing is done there.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn set_ip_fragmentation(socket: &UdpSocket, allow: bool) -> bool {
    let level = libc::IPPROTO_IPV6;
    let is = |name, value| get(socket, level, name).is_ok_and(|mode| mode == value);
    let default = is(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT);
    let default = default && is(libc::IPV6_DONTFRAG, 0);
    let size = if allow { MIN_MTU_V6 } else { 0 };
    // On failure oversized segments stay in flight until the path carries them or the connection
    // times out.
    default && set(socket, level, libc::IPV6_MTU, size).is_ok() && allow
}

/// Does nothing on this system. Returns whether the sender fragments IPv6 datagrams.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn set_ip_fragmentation<S>(_: &S, _: bool) -> bool {
    false
}

/// Requests the local address of each datagram on a wildcard socket (`IP_PKTINFO`, `IPV6_RECVPKTINFO`; RFC
/// 3542 6.1). Otherwise answers leave from the address that the system's routes choose.
///
/// quinn-udp reads and writes these control messages and requests them; [`SavedOptions`] undoes the request.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn enable_pktinfo(socket: &UdpSocket, local: SocketAddr) {
    let (level, name) = match local {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        // Covers IPv4 datagrams too.
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    drop(set(socket, level, name, 1));
}

/// quinn-udp has requested it on other systems.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn enable_pktinfo(_: &UdpSocket, _: SocketAddr) {}

/// Whether a datagram to `peer`, in the form that the socket takes, can state its source. An IPv6 socket
/// can state one for IPv4 peers only on Linux and Windows.
pub(super) fn can_state_source(peer: SocketAddr) -> bool {
    let has_both = cfg!(any(target_os = "linux", target_os = "android", windows));
    has_both || peer.is_ipv4() || peer.ip().to_canonical().is_ipv6()
}

/// The source of a datagram to `destination`, in the form that the socket takes.
pub(super) fn stated_source(destination: SocketAddr, local: LocalIp) -> Option<IpAddr> {
    let is_v4 = destination.ip().to_canonical().is_ipv4();
    local.get().filter(|local| local.is_ipv4() == is_v4 && can_state_source(destination))
}

/// Whether a send may have failed because the source is no longer an address of this host.
pub(super) fn may_be_source(error: &io::Error) -> bool {
    use ErrorKind::{AddrNotAvailable, InvalidInput, NetworkUnreachable};
    matches!(error.kind(), AddrNotAvailable | InvalidInput | NetworkUnreachable)
}

/// Whether the socket's DSCP differs from the system's default of 0.
pub(super) fn has_traffic_class(socket: &UdpSocket) -> bool {
    let socket = SockRef::from(socket);
    let v6 = {
        #[cfg(any(
            target_os = "linux",
            target_os = "android",
            target_os = "freebsd",
            target_os = "macos"
        ))]
        {
            socket.tclass_v6()
        }
        #[cfg(not(any(
            target_os = "linux",
            target_os = "android",
            target_os = "freebsd",
            target_os = "macos"
        )))]
        {
            io::Result::Ok(0)
        }
    };
    // A socket of one IP version does not have the other's option. The low two bits are ECN.
    [socket.tos_v4(), v6].into_iter().flatten().any(|class| class >> 2 != 0)
}

/// Whether [`send_with_class`] takes GSO batches.
pub(super) const CLASS_SEND_HAS_GSO: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Whether [`send_with_class`] can state a source.
pub(super) const CLASS_SEND_STATES_SOURCE: bool = CLASS_SEND_HAS_GSO;

/// Sends datagrams of `size` bytes with the socket's own traffic class (DSCP: `IP_TOS`, `IPV6_TCLASS`),
/// with one system call; one datagram without [`CLASS_SEND_HAS_GSO`]. `source`: the local IP they leave
/// from, on a wildcard socket.
///
/// quinn-udp states a class with each datagram, for the ECN bits in it, which overrides the socket's
/// option. So a socket with its own class sends here, without that control message but with GSO where the
/// system has it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn send_with_class(
    socket: SockRef<'_>,
    dst: SocketAddr,
    source: Option<IpAddr>,
    size: usize,
    contents: &[u8],
) -> io::Result<()> {
    use std::io::IoSlice;

    use socket2::MsgHdr;

    let (dst, buffers) = (dst.into(), [IoSlice::new(contents)]);
    let mut message = MsgHdr::new().with_addr(&dst).with_buffers(&buffers);
    let mut control = ControlMessages { bytes: [0; 64], len: 0 };
    if contents.len() > size {
        // Makes the kernel split `contents` into datagrams of `size` bytes.
        let size = u16::try_from(size).map_err(|_| ErrorKind::InvalidInput)?;
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes())?;
    }
    if let Some(source) = source {
        control.push_source(source)?;
    }
    if control.len > 0 {
        message = message.with_control(control.as_slice());
    }
    socket.sendmsg(&message, 0).map(drop)
}

/// Sends one datagram with one system call. The system chooses the source.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn send_with_class(
    socket: SockRef<'_>,
    dst: SocketAddr,
    _source: Option<IpAddr>,
    _size: usize,
    contents: &[u8],
) -> io::Result<()> {
    socket.send_to(contents, &dst.into()).map(drop)
}

/// Alignment of control messages in bytes (`CMSG_ALIGN`).
#[cfg(any(target_os = "linux", target_os = "android"))]
const WORD: usize = size_of::<usize>();

/// Control messages of one send (RFC 3542 20): each has its length as a word, level and type as integers,
/// and data, padded to words.
#[cfg(any(target_os = "linux", target_os = "android"))]
struct ControlMessages {
    /// Fits both messages that [`send_with_class`] writes.
    bytes: [u8; 64],
    len: usize,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl ControlMessages {
    /// Fails when the buffer is full: the datagrams must not leave without the message.
    fn push(&mut self, level: i32, kind: i32, data: &[u8]) -> io::Result<()> {
        let len = WORD + 8 + data.len();
        let end = self.len + len.next_multiple_of(WORD);
        let fields = len.to_ne_bytes().into_iter().chain(level.to_ne_bytes());
        let fields = fields.chain(kind.to_ne_bytes()).chain(data.iter().copied());
        let place = self.bytes.get_mut(self.len..end).ok_or(ErrorKind::InvalidInput)?;
        place.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        self.len = end;
        Ok(())
    }

    /// Adds the message that states the source (`in_pktinfo`, `in6_pktinfo`), for any interface.
    fn push_source(&mut self, source: IpAddr) -> io::Result<()> {
        let mut data = [0; 20];
        match source {
            // Interface, source address, destination address of the header.
            IpAddr::V4(ip) => {
                data[4..8].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &data[..12])
            }
            // Address, interface.
            IpAddr::V6(ip) => {
                data[..16].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data)
            }
        }
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn buffer_size_above_the_maximum_is_halved_until_accepted() {
        let requests = RefCell::new(Vec::new());
        set_largest_accepted(1 << 20, |bytes| {
            requests.borrow_mut().push(bytes);
            if bytes > 300_000 { Err(ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        });
        assert_eq!(requests.into_inner(), [1 << 20, 1 << 19, 1 << 18]);
        set_largest_accepted(1 << 30, |_| Err(ErrorKind::OutOfMemory.into()));
    }

    #[test]
    fn granted_buffer_size_is_the_systems_report() {
        let size = Cell::new(0);
        let capped = |bytes: usize| {
            size.set(bytes.min(212_992) * REPORTED_PER_BYTE);
            Ok(())
        };
        let short = grant(4 << 20, capped, || Ok(size.get()));
        assert_eq!(short, Grant { requested: 4 << 20, granted: 212_992 });
        assert!(short.is_short());
        assert!(!grant(212_992, capped, || Ok(size.get())).is_short());
        assert!(!grant(1 << 20, capped, || Err(ErrorKind::Unsupported.into())).is_short());
    }

    #[test]
    fn buffer_size_that_is_not_granted_is_no_error() {
        let config = SocketConfig {
            send_buffer_size: Some(1 << 30),
            recv_buffer_size: Some(1),
            ..SocketConfig::default()
        };
        let socket = bind("127.0.0.1:0".parse().unwrap(), &config).unwrap();
        assert_ne!(socket.local_addr().unwrap().port(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn small_buffer_size_is_granted_in_full() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let set = |bytes| socket.set_recv_buffer_size(bytes);
        let grant = grant(64 * 1024, set, || socket.recv_buffer_size());
        assert_eq!(grant, Grant { requested: 64 * 1024, granted: 64 * 1024 });
    }

    #[cfg(target_os = "linux")]
    mod linux {
        use super::*;

        fn values(socket: &UdpSocket) -> Vec<Option<i32>> {
            OPTIONS.iter().map(|&(level, name)| get(socket, level, name).ok()).collect()
        }

        /// An adopted socket keeps the application's options, except for the system's default of path MTU
        /// discovery.
        #[tokio::test]
        async fn adopted_socket_keeps_its_options_but_ignores_reports_of_a_path_mtu() {
            for (addr, options) in [("127.0.0.1:0", 4), ("[::1]:0", 8), ("[::]:0", 8)] {
                // Machines without IPv6 exist.
                let Ok(socket) = UdpSocket::bind(addr) else { continue };
                let clone = socket.try_clone().unwrap();
                let mut expected = values(&clone);
                assert_eq!(expected.iter().flatten().count(), options);
                assert_eq!(expected[0], Some(libc::IP_PMTUDISC_WANT));
                expected[0] = Some(libc::IP_PMTUDISC_OMIT);
                let _socket = crate::sys::UdpSocket::from_std(socket).unwrap();
                if addr == "[::]:0" {
                    let name = (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO);
                    let place = OPTIONS.iter().position(|option| *option == name).unwrap();
                    expected[place] = Some(1);
                }
                assert_eq!(values(&clone), expected);
            }
        }

        #[test]
        fn options_of_a_new_socket_are_the_known_ones() {
            for addr in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
                let Ok(socket) = UdpSocket::bind(addr) else { continue };
                let is_v6 = socket.local_addr().unwrap().is_ipv6();
                assert_eq!(
                    SavedOptions::of_new(&socket, is_v6).0,
                    SavedOptions::of(&socket).0,
                    "{addr}"
                );
            }
        }

        #[tokio::test]
        async fn adopted_socket_keeps_the_applications_fragmentation() {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
            set(&socket, level, name, libc::IP_PMTUDISC_DO).unwrap();
            let clone = socket.try_clone().unwrap();
            let _socket = crate::sys::UdpSocket::from_std(socket).unwrap();
            assert_eq!(get(&clone, level, name).unwrap(), libc::IP_PMTUDISC_DO);
        }

        /// The control message at `at`: level and type, data, and the offset of the next one.
        fn message(control: &[u8], at: usize) -> ((i32, i32), &[u8], usize) {
            let len = usize::from_ne_bytes(control[at..at + WORD].try_into().unwrap());
            let int = |at: usize| i32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
            let kind = (int(at + WORD), int(at + WORD + 4));
            (kind, &control[at + WORD + 8..at + len], at + len.next_multiple_of(WORD))
        }

        #[test]
        fn control_messages_have_the_layout_of_the_system_and_stay_in_their_buffer() {
            let offload = (libc::SOL_UDP, libc::UDP_SEGMENT);
            for (source, expected, address) in [
                ("192.0.2.7", (libc::IPPROTO_IP, libc::IP_PKTINFO), 4),
                ("2001:db8::7", (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), 0),
            ] {
                let source: IpAddr = source.parse().unwrap();
                let mut control = ControlMessages { bytes: [0; 64], len: 0 };
                control.push(offload.0, offload.1, &1_200_u16.to_ne_bytes()).unwrap();
                control.push_source(source).unwrap();
                let (first, size, next) = message(control.as_slice(), 0);
                assert_eq!((first, size), (offload, &1_200_u16.to_ne_bytes()[..]));
                let (second, info, end) = message(control.as_slice(), next);
                assert_eq!((second, end), (expected, control.as_slice().len()));
                let octets = match source {
                    IpAddr::V4(ip) => ip.octets().to_vec(),
                    IpAddr::V6(ip) => ip.octets().to_vec(),
                };
                let size = if source.is_ipv4() {
                    size_of::<libc::in_pktinfo>()
                } else {
                    size_of::<libc::in6_pktinfo>()
                };
                assert_eq!(info.len(), size);
                assert_eq!(info[address..address + octets.len()], octets);
                let others = info.iter().enumerate();
                let mut others =
                    others.filter(|(at, _)| !(address..address + octets.len()).contains(at));
                assert!(others.all(|(_, byte)| *byte == 0), "no interface");
                // No message is cut, and none is written beyond the buffer.
                let before = control.as_slice().to_vec();
                assert!(control.push_source(source).is_err());
                assert_eq!(control.as_slice(), before);
            }
        }
    }
}
