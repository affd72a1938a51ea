//! Socket options: before the bind, and around what the UDP library changes.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::buffers;
use crate::config::SocketConfig;

/// Most datagrams that are thrown away while a group of sockets is not complete yet.
const EARLY: usize = 4_096;

/// A bound, non-blocking UDP socket.
pub(super) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<UdpSocket> {
    bind_reuse_port(addr, config, false)
}

/// As many of them as there are shards, all bound to the same address: the system spreads peers
/// over them.
///
/// The first one is bound like any other, so that an address in use is refused, by a group of
/// another process too.
pub(super) fn bind_group(addr: SocketAddr, config: &SocketConfig) -> io::Result<Vec<UdpSocket>> {
    let first = bind(addr, config)?;
    if config.shards <= 1 {
        return Ok(vec![first]);
    }
    share_address(&SockRef::from(&first))?;
    let local = first.local_addr()?;
    let mut group = vec![first];
    while group.len() < config.shards {
        group.push(bind_reuse_port(local, config, true)?);
    }
    // What came before the group was complete went to another socket than what its sender will say
    // next. It will be repeated.
    for socket in &group {
        let mut buffer = [0; 1];
        let early = std::iter::repeat_with(|| socket.recv_from(&mut buffer));
        early.take(EARLY).find(Result::is_err);
    }
    Ok(group)
}

fn bind_reuse_port(addr: SocketAddr, config: &SocketConfig, beside: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if addr.is_ipv6() {
        // Systems differ in their default.
        socket.set_only_v6(config.only_v6)?;
    }
    buffers::set(&socket, config);
    let versions = (addr, config.only_v6);
    if let Some(dscp) = config.dscp {
        let class = u32::from(dscp) << 2;
        for_versions(versions, || socket.set_tos_v4(class), || set_class_v6(&socket, class))
            .map_err(|error| named("dscp", &dscp, &error))?;
    }
    if let Some(ttl) = config.ttl {
        for_versions(versions, || socket.set_ttl_v4(ttl), || socket.set_unicast_hops_v6(ttl))
            .map_err(|error| named("ttl", &ttl, &error))?;
    }
    set_device(&socket, config)?;
    if beside {
        share_address(&socket)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn share_address(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_port(true)
}

/// Elsewhere such sockets do not share what arrives, or not by peer.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn share_address(_: &Socket) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "sockets cannot share an address here"))
}

/// Whether the system knows a way to `peer` from here. Nothing is sent.
pub(crate) fn check_route(peer: SocketAddr, config: &SocketConfig) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    set_device(&socket, config)?;
    socket.connect(&peer.into())
}

/// Sets an option for each IP version that a socket of this address speaks.
fn for_versions(
    (addr, only_v6): (SocketAddr, bool),
    v4: impl FnOnce() -> io::Result<()>,
    v6: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    if addr.is_ipv4() {
        return v4();
    }
    v6()?;
    if only_v6 {
        return Ok(());
    }
    // What leaves for a peer of IPv4 goes by that version's option. Not every system has it on a
    // socket of the other version.
    let result = v4();
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
    Err(io::Error::new(io::ErrorKind::Unsupported, "not for IPv6 on this system"))
}

/// Ties the socket to one network interface.
fn set_device(socket: &Socket, config: &SocketConfig) -> io::Result<()> {
    let Some(device) = &config.device else { return Ok(()) };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let result = socket.bind_device(Some(device.as_bytes()));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let result = {
        let _ = socket;
        Err(io::Error::new(io::ErrorKind::Unsupported, "not on this system"))
    };
    result.map_err(|error| named("device", device, &error))
}

/// What the system said about a setting.
fn named(field: &str, value: &dyn fmt::Debug, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{field} {value:?} cannot be set: {error}"))
}

/// Values of the options that the UDP library switches on, taken before it does.
///
/// Among them is Don't Fragment. A datagram above the path's MTU then fails or vanishes, and with
/// it the segments in it, whose size never changes; the system's own choice lets them through in
/// fragments. The others ask for a note with each datagram that nobody here reads.
#[derive(Debug)]
pub(super) struct SavedOptions([Option<i32>; OPTIONS.len()]);

impl SavedOptions {
    /// Reads the options; one that this socket does not have is left alone later.
    pub(super) fn of(socket: &UdpSocket) -> Self {
        Self(OPTIONS.map(|(level, name)| option::get(socket, level, name).ok()))
    }

    /// Writes them back.
    pub(super) fn restore(&self, socket: &UdpSocket) {
        for ((level, name), value) in OPTIONS.into_iter().zip(self.0) {
            if let Some(value) = value {
                // Where the system took the change and not its reverse, the socket still works:
                // too large a datagram is then reported as such.
                drop(option::set(socket, level, name, value));
            }
        }
    }
}

/// Level and name of each.
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

/// Options that no safe interface offers.
#[cfg(any(unix, windows))]
#[expect(unsafe_code, reason = "socket2 does not know these options")]
pub(super) mod option {
    use std::io;
    use std::net::UdpSocket;
    #[cfg(unix)]
    use std::os::fd::AsRawFd;
    #[cfg(windows)]
    use std::os::windows::io::AsRawSocket;

    #[cfg(unix)]
    type Len = libc::socklen_t;
    #[cfg(windows)]
    type Len = libc::c_int;
    #[cfg(unix)]
    type Handle = libc::c_int;
    #[cfg(windows)]
    type Handle = libc::SOCKET;

    /// Bytes of a value.
    const INT: Len = 4;
    const _: () = assert!(size_of::<libc::c_int>() == 4);

    #[cfg(unix)]
    fn handle(socket: &UdpSocket) -> io::Result<Handle> {
        Ok(socket.as_raw_fd())
    }

    #[cfg(windows)]
    fn handle(socket: &UdpSocket) -> io::Result<Handle> {
        Handle::try_from(socket.as_raw_socket()).map_err(io::Error::other)
    }

    /// The value of an integer option.
    pub(in super::super) fn get(
        socket: &UdpSocket,
        level: libc::c_int,
        name: libc::c_int,
    ) -> io::Result<libc::c_int> {
        let handle = handle(socket)?;
        let (mut value, mut len): (libc::c_int, Len) = (0, INT);
        // SAFETY: `socket` is borrowed and thus open. `value` and `len` are live and exclusive;
        // `len` says how much room `value` has, and the system writes no more than that.
        let result = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(handle, level, name, value, &raw mut len)
        };
        if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets an integer option.
    pub(in super::super) fn set(
        socket: &UdpSocket,
        level: libc::c_int,
        name: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        let handle = handle(socket)?;
        // SAFETY: `socket` is borrowed and thus open. The system reads `INT` bytes, all of `value`,
        // which is live, and keeps no pointer.
        let result =
            unsafe { libc::setsockopt(handle, level, name, (&raw const value).cast(), INT) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// What a socket keeps of its options when it is taken over.
#[cfg(all(test, target_os = "linux"))]
mod option_tests {
    use super::option::{get, set};
    use super::*;

    fn values(socket: &UdpSocket) -> Vec<Option<i32>> {
        OPTIONS.iter().map(|&(level, name)| get(socket, level, name).ok()).collect()
    }

    #[tokio::test]
    async fn fragmentation_is_left_to_the_system() {
        for (addr, options) in [("127.0.0.1:0", 4), ("[::1]:0", 8), ("[::]:0", 8)] {
            // Machines without IPv6 exist.
            let Ok(socket) = UdpSocket::bind(addr) else { continue };
            let twin = socket.try_clone().unwrap();
            let before = values(&twin);
            assert_eq!(before.iter().flatten().count(), options);
            assert_ne!(before[0], Some(libc::IP_PMTUDISC_PROBE));
            let _socket = crate::sys::UdpSocket::from_std(socket).unwrap();
            assert_eq!(values(&twin), before);
        }
    }

    #[tokio::test]
    async fn the_choice_of_the_application_stays() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        set(&socket, level, name, libc::IP_PMTUDISC_DO).unwrap();
        let twin = socket.try_clone().unwrap();
        let _socket = crate::sys::UdpSocket::from_std(socket).unwrap();
        assert_eq!(get(&twin, level, name).unwrap(), libc::IP_PMTUDISC_DO);
    }
}
