//! Binding UDP sockets: options set before the bind, and groups with `SO_REUSEPORT`.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::buffers;
use crate::config::SocketConfig;

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
    buffers::set(&socket, config);
    let versions = (addr, config.only_v6);
    if let Some(dscp) = config.dscp {
        let class = u32::from(dscp) << 2;
        set_for_versions(versions, || socket.set_tos_v4(class), || set_class_v6(&socket, class))
            .map_err(|error| named("dscp", &dscp, &error))?;
    }
    if let Some(ttl) = config.ttl {
        set_for_versions(versions, || socket.set_ttl_v4(ttl), || socket.set_unicast_hops_v6(ttl))
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
        io::ErrorKind::Unsupported,
        "shards require Linux or Android: set SocketConfig::shards to 1",
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
    (addr, only_v6): (SocketAddr, bool),
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
    Err(io::Error::new(io::ErrorKind::Unsupported, "not supported for IPv6 on this system"))
}

/// Binds the socket to one network interface (`SO_BINDTODEVICE`).
fn set_device(socket: &Socket, config: &SocketConfig) -> io::Result<()> {
    let Some(device) = &config.device else { return Ok(()) };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let result = socket.bind_device(Some(device.as_bytes()));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let result = {
        let _ = socket;
        Err(io::Error::new(io::ErrorKind::Unsupported, "not supported on this system"))
    };
    result.map_err(|error| named("device", device, &error))
}

/// Adds the name and value of the setting to the system's error.
fn named(field: &str, value: &dyn fmt::Debug, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{field} {value:?} cannot be set: {error}"))
}
