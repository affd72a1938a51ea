//! Socket options that socket2 lacks, and the values of those that quinn-udp changes.

use std::io;
use std::net::UdpSocket;
#[cfg(unix)]
use std::os::fd::AsRawFd as AsRaw;
#[cfg(windows)]
use std::os::windows::io::AsRawSocket as AsRaw;

/// Values of the options that quinn-udp switches on, read before it does.
///
/// One is Don't Fragment: with it, datagrams above the path MTU fail or vanish, and retransmitted
/// segments keep their size. Without it they leave in IP fragments, see `ip_fragmentation.rs`. The other
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
/// leaves out Don't Fragment, see `ip_fragmentation.rs`.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
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
}
