//! Classification of socket errors: transient ones count as loss, fatal ones end the endpoint.
//!
//! UDP sockets report errors of earlier datagrams, of other peers (ICMP), and temporary ones. They count
//! as loss, which retransmission repairs. Only a descriptor that is not a usable socket is fatal.

use std::io::{self, ErrorKind};

use super::options::MAX_UNFRAGMENTED_V6;
use crate::stats::SocketErrors;

/// The system has no memory for a datagram.
#[cfg(unix)]
const NO_BUFFERS: &[i32] = &[libc::ENOBUFS, libc::ENOMEM];
/// `WSAENOBUFS`.
#[cfg(windows)]
const NO_BUFFERS: &[i32] = &[10_055];

/// The socket was shut down through another handle.
#[cfg(unix)]
const SHUT_DOWN: i32 = libc::ESHUTDOWN;
/// `WSAESHUTDOWN`.
#[cfg(windows)]
const SHUT_DOWN: i32 = 10_058;
/// The descriptor is not a socket, closed, or shut down.
#[cfg(unix)]
const UNUSABLE: &[i32] = &[libc::EBADF, libc::ENOTSOCK, SHUT_DOWN];
/// `ERROR_INVALID_HANDLE`, `WSAEBADF`, `WSAENOTSOCK`, `WSANOTINITIALISED`.
#[cfg(windows)]
const UNUSABLE: &[i32] = &[6, 10_009, 10_038, 10_093, SHUT_DOWN];

/// The meaning of a failed send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendFault {
    /// The send buffer is full; the datagram waits.
    Blocked,
    /// Try again at once.
    Interrupted,
    /// The datagram is lost, like a loss in the network.
    Lost,
    /// The datagram is lost because of its size (`EMSGSIZE`), like any of that size to that peer.
    TooLarge,
    /// The socket is unusable.
    Fatal,
}

/// The meaning of a failed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvFault {
    /// No datagram waits.
    Empty,
    /// Try again at once.
    Interrupted,
    /// The error concerns an earlier sent datagram, or a received one that is lost.
    Ignore,
    /// The socket is unusable.
    Fatal,
}

/// Why the system refused a GSO batch and then took its datagrams one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GsoRefusal {
    /// The system or the network device cannot segment.
    Offload,
    /// The segments exceed the route's MTU: single datagrams leave in IP fragments.
    RouteMtu,
}

/// Classifies a send error. Unknown errors count as loss.
pub(crate) fn classify_send(error: &io::Error) -> SendFault {
    match error.kind() {
        ErrorKind::WouldBlock => SendFault::Blocked,
        ErrorKind::Interrupted => SendFault::Interrupted,
        _ if is_unusable(error) => SendFault::Fatal,
        _ if quinn_udp::is_msg_size_err(error) => SendFault::TooLarge,
        _ => SendFault::Lost,
    }
}

/// Classifies a receive error. Unknown errors are ignored.
pub(crate) fn classify_recv(error: &io::Error) -> RecvFault {
    match error.kind() {
        ErrorKind::WouldBlock => RecvFault::Empty,
        ErrorKind::Interrupted => RecvFault::Interrupted,
        _ if is_unusable(error) => RecvFault::Fatal,
        _ => RecvFault::Ignore,
    }
}

/// The error of a UDP socket that was shut down. It ends the endpoint.
pub(super) fn shut_down() -> io::Error {
    io::Error::from_raw_os_error(SHUT_DOWN)
}

/// Why the system may have refused a GSO batch with segments of `size` bytes; `None` if the error is
/// unrelated to GSO. Network drivers without segmentation fail with `EIO`. If the route's MTU is below
/// `size`, Linux fails with `EMSGSIZE`, or with `EINVAL` before 6.14.
pub(super) fn gso_refusal(error: &io::Error, size: usize) -> Option<GsoRefusal> {
    let is_linux = cfg!(any(target_os = "linux", target_os = "android"));
    if classify_send(error) == SendFault::TooLarge {
        return Some(GsoRefusal::RouteMtu);
    }
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::EIO) {
        return Some(GsoRefusal::Offload);
    }
    let is_invalid = error.kind() == ErrorKind::InvalidInput;
    let may_be_mtu = is_linux && size > MAX_UNFRAGMENTED_V6;
    is_invalid.then_some(if may_be_mtu { GsoRefusal::RouteMtu } else { GsoRefusal::Offload })
}

/// Counts a transient error in its class.
pub(crate) fn count(errors: &mut SocketErrors, error: &io::Error) {
    let counter = match error.kind() {
        _ if quinn_udp::is_msg_size_err(error) => &mut errors.too_large,
        _ if error.raw_os_error().is_some_and(|code| NO_BUFFERS.contains(&code)) => {
            &mut errors.no_buffers
        }
        ErrorKind::OutOfMemory => &mut errors.no_buffers,
        ErrorKind::PermissionDenied => &mut errors.denied,
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => &mut errors.refused,
        ErrorKind::NetworkUnreachable
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::AddrNotAvailable => &mut errors.unreachable,
        _ => &mut errors.other,
    };
    *counter += 1;
}

fn is_unusable(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| UNUSABLE.contains(&code))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn send_error_codes_are_classified() {
        let table = [
            (libc::EAGAIN, SendFault::Blocked),
            (libc::EWOULDBLOCK, SendFault::Blocked),
            (libc::EINTR, SendFault::Interrupted),
            (libc::ENOBUFS, SendFault::Lost),
            (libc::ENOMEM, SendFault::Lost),
            (libc::EPERM, SendFault::Lost),
            (libc::EACCES, SendFault::Lost),
            (libc::ENETUNREACH, SendFault::Lost),
            (libc::EHOSTUNREACH, SendFault::Lost),
            (libc::ENETDOWN, SendFault::Lost),
            (libc::EADDRNOTAVAIL, SendFault::Lost),
            (libc::ECONNREFUSED, SendFault::Lost),
            (libc::ECONNRESET, SendFault::Lost),
            (libc::EINVAL, SendFault::Lost),
            (libc::EIO, SendFault::Lost),
            (libc::EPIPE, SendFault::Lost),
            (libc::EAFNOSUPPORT, SendFault::Lost),
            (libc::ENODEV, SendFault::Lost),
            (9_999, SendFault::Lost),
            (libc::EMSGSIZE, SendFault::TooLarge),
            (libc::EBADF, SendFault::Fatal),
            (libc::ENOTSOCK, SendFault::Fatal),
            (libc::ESHUTDOWN, SendFault::Fatal),
        ];
        for (code, fault) in table {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(classify_send(&error), fault, "{error}");
        }
    }

    #[test]
    fn recv_error_codes_are_classified() {
        let table = [
            (libc::EAGAIN, RecvFault::Empty),
            (libc::EWOULDBLOCK, RecvFault::Empty),
            (libc::EINTR, RecvFault::Interrupted),
            (libc::ECONNREFUSED, RecvFault::Ignore),
            (libc::ECONNRESET, RecvFault::Ignore),
            (libc::EHOSTUNREACH, RecvFault::Ignore),
            (libc::ENETUNREACH, RecvFault::Ignore),
            (libc::EMSGSIZE, RecvFault::Ignore),
            (libc::ENOMEM, RecvFault::Ignore),
            (9_999, RecvFault::Ignore),
            (libc::EBADF, RecvFault::Fatal),
            (libc::ENOTSOCK, RecvFault::Fatal),
        ];
        for (code, fault) in table {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(classify_recv(&error), fault, "{error}");
        }
    }

    #[test]
    fn error_is_counted_once_in_its_class() {
        let mut errors = SocketErrors::default();
        for code in [
            libc::EMSGSIZE,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::EPERM,
            libc::EACCES,
            libc::ECONNREFUSED,
            libc::ECONNRESET,
            libc::ENETUNREACH,
            libc::EHOSTUNREACH,
            libc::ENETDOWN,
            libc::EADDRNOTAVAIL,
            libc::EINVAL,
            9_999,
        ] {
            count(&mut errors, &io::Error::from_raw_os_error(code));
        }
        let expected = SocketErrors {
            too_large: 1,
            no_buffers: 2,
            denied: 2,
            refused: 2,
            unreachable: 4,
            other: 2,
        };
        assert_eq!(errors, expected);
    }

    #[test]
    fn error_without_a_code_is_classified_by_kind() {
        assert_eq!(classify_send(&ErrorKind::WouldBlock.into()), SendFault::Blocked);
        assert_eq!(classify_send(&ErrorKind::Interrupted.into()), SendFault::Interrupted);
        assert_eq!(classify_send(&ErrorKind::InvalidInput.into()), SendFault::Lost);
        assert_eq!(classify_recv(&ErrorKind::WouldBlock.into()), RecvFault::Empty);
        assert_eq!(classify_recv(&io::Error::other("?")), RecvFault::Ignore);
    }

    #[test]
    fn refusals_of_gso_batches_are_classified() {
        let of_size = |code, size| gso_refusal(&io::Error::from_raw_os_error(code), size);
        let is_linux = cfg!(any(target_os = "linux", target_os = "android"));
        let offload = Some(GsoRefusal::Offload);
        let unless_linux = if is_linux { Some(GsoRefusal::RouteMtu) } else { offload };
        for (code, large, small) in [
            (libc::EIO, offload, offload),
            (libc::EINVAL, unless_linux, offload),
            (libc::EMSGSIZE, Some(GsoRefusal::RouteMtu), Some(GsoRefusal::RouteMtu)),
            (libc::ENOBUFS, None, None),
            (libc::EAGAIN, None, None),
        ] {
            assert_eq!(of_size(code, MAX_UNFRAGMENTED_V6 + 1), large, "{code}");
            assert_eq!(of_size(code, MAX_UNFRAGMENTED_V6), small, "{code}");
        }
    }
}

#[cfg(all(test, windows))]
mod tests {
    use super::*;

    #[test]
    fn windows_error_codes_are_classified() {
        // WSAENETRESET, WSAECONNRESET, WSAEMSGSIZE, WSAENOTSOCK.
        for (code, sent, received) in [
            (10_052, SendFault::Lost, RecvFault::Ignore),
            (10_054, SendFault::Lost, RecvFault::Ignore),
            (10_040, SendFault::TooLarge, RecvFault::Ignore),
            (10_038, SendFault::Fatal, RecvFault::Fatal),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!((classify_send(&error), classify_recv(&error)), (sent, received), "{error}");
        }
    }
}
