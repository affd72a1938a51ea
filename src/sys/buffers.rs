//! The kernel's buffers of a socket: asked for, and what became of it.

use std::io;
use std::sync::Once;

use socket2::Socket;

use crate::config::SocketConfig;
use crate::trace;

/// Smallest kernel buffer in bytes that is still tried when larger ones are refused.
const MIN_BUFFER: usize = 4 * 1024;

/// What the system reports for each byte that it was asked for and grants: Linux reserves as much
/// again for its own bookkeeping, and counts that in.
const REPORTED: usize = if cfg!(any(target_os = "linux", target_os = "android")) { 2 } else { 1 };

/// A kernel buffer in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) asked: usize,
    pub(crate) granted: usize,
}

impl Grant {
    fn is_short(self) -> bool {
        self.granted < self.asked
    }
}

/// Asks for the buffers that the configuration names. The first time in this process that less is
/// granted that is told: whoever runs the machine can change it, for all sockets at once.
pub(super) fn set(socket: &Socket, config: &SocketConfig) {
    static TOLD: Once = Once::new();
    let send = config.send_buffer_size.map(|asked| {
        let set = |bytes| socket.set_send_buffer_size(bytes);
        grant(asked, set, || socket.send_buffer_size())
    });
    let recv = config.recv_buffer_size.map(|asked| {
        let set = |bytes| socket.set_recv_buffer_size(bytes);
        grant(asked, set, || socket.recv_buffer_size())
    });
    if [send, recv].into_iter().flatten().any(Grant::is_short) {
        TOLD.call_once(|| trace::buffers_are_small(send, recv));
    }
}

fn grant(
    asked: usize,
    set: impl Fn(usize) -> io::Result<()>,
    get: impl Fn() -> io::Result<usize>,
) -> Grant {
    largest_accepted(asked, set);
    // A system that does not say is believed to have done as it was told.
    let granted = get().map_or(asked, |reported| reported / REPORTED);
    Grant { asked, granted }
}

/// Some systems take a buffer size as a wish and cap it, others refuse what is above their
/// maximum: those are asked for half of it until they agree. No answer leaves the default.
fn largest_accepted(mut bytes: usize, set: impl Fn(usize) -> io::Result<()>) {
    while set(bytes).is_err() && bytes / 2 >= MIN_BUFFER {
        bytes /= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::sys::bind::bind;

    #[test]
    fn buffer_sizes_above_the_maximum_are_halved_until_they_fit() {
        let asked = RefCell::new(Vec::new());
        largest_accepted(1 << 20, |bytes| {
            asked.borrow_mut().push(bytes);
            if bytes > 300_000 { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        });
        assert_eq!(asked.into_inner(), [1 << 20, 1 << 19, 1 << 18]);
        largest_accepted(1 << 30, |_| Err(io::ErrorKind::OutOfMemory.into()));
    }

    #[test]
    fn what_is_granted_is_what_the_system_says() {
        let size = Cell::new(0);
        let capped = |bytes: usize| {
            size.set(bytes.min(212_992) * REPORTED);
            Ok(())
        };
        let short = grant(4 << 20, capped, || Ok(size.get()));
        assert_eq!(short, Grant { asked: 4 << 20, granted: 212_992 });
        assert!(short.is_short());
        assert!(!grant(212_992, capped, || Ok(size.get())).is_short());
        assert!(!grant(1 << 20, capped, || Err(io::ErrorKind::Unsupported.into())).is_short());
    }

    #[test]
    fn sizes_that_the_system_cannot_give_are_no_error() {
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
    fn small_sizes_are_granted_in_full() {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        let set = |bytes| socket.set_recv_buffer_size(bytes);
        let grant = grant(64 * 1024, set, || socket.recv_buffer_size());
        assert_eq!(grant, Grant { asked: 64 * 1024, granted: 64 * 1024 });
    }
}
