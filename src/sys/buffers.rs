//! Kernel socket buffers (`SO_SNDBUF`, `SO_RCVBUF`): requested and granted sizes.

use std::io;
use std::sync::Once;

use socket2::Socket;

use crate::config::SocketConfig;
use crate::trace::{self, Grant};

/// Bytes of the smallest buffer requested after the system refused larger ones.
const MIN_BUFFER_LEN: usize = 4 * 1024;

/// Bytes reported per granted byte: Linux doubles the size for its own bookkeeping (socket(7),
/// `SO_RCVBUF`).
const REPORTED_PER_BYTE: usize =
    if cfg!(any(target_os = "linux", target_os = "android")) { 2 } else { 1 };

/// Requests the configured buffer sizes. Logs the first time in a process that the system grants less:
/// the limit is system-wide.
pub(super) fn set(socket: &Socket, config: &SocketConfig) {
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::sys::bind::bind;

    #[test]
    fn buffer_size_above_the_maximum_is_halved_until_accepted() {
        let requests = RefCell::new(Vec::new());
        set_largest_accepted(1 << 20, |bytes| {
            requests.borrow_mut().push(bytes);
            if bytes > 300_000 { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        });
        assert_eq!(requests.into_inner(), [1 << 20, 1 << 19, 1 << 18]);
        set_largest_accepted(1 << 30, |_| Err(io::ErrorKind::OutOfMemory.into()));
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
        assert!(!grant(1 << 20, capped, || Err(io::ErrorKind::Unsupported.into())).is_short());
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
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        let set = |bytes| socket.set_recv_buffer_size(bytes);
        let grant = grant(64 * 1024, set, || socket.recv_buffer_size());
        assert_eq!(grant, Grant { requested: 64 * 1024, granted: 64 * 1024 });
    }
}
