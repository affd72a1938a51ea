//! Sending with the socket's own traffic class (DSCP: `IP_TOS`, `IPV6_TCLASS`).
//!
//! quinn-udp states a class with each datagram, for the ECN bits in it, and a control message
//! overrides the socket's option. So a socket with a class of its own sends here, without that
//! control message; GSO is requested here as well, where the system has it.

use std::io;
use std::net::SocketAddr;

use socket2::SockRef;
use tokio::net::UdpSocket;

/// Whether the socket has another DSCP than the system's default of 0.
pub(super) fn has_traffic_class(socket: &std::net::UdpSocket) -> bool {
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
    // A socket of one IP version does not have the option of the other. The low two bits are ECN.
    [socket.tos_v4(), v6].into_iter().flatten().any(|class| class >> 2 != 0)
}

/// Whether [`send`] takes GSO batches.
pub(super) const HAS_GSO: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Sends datagrams of `size` bytes with one system call; one datagram without [`HAS_GSO`].
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn send(
    socket: &UdpSocket,
    dst: SocketAddr,
    size: usize,
    contents: &[u8],
) -> io::Result<()> {
    use std::io::IoSlice;

    use socket2::MsgHdr;

    let (dst, buffers) = (dst.into(), [IoSlice::new(contents)]);
    let message = MsgHdr::new().with_addr(&dst).with_buffers(&buffers);
    let socket = SockRef::from(socket);
    if contents.len() > size {
        let size = u16::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        let control = gso_control_message(size);
        socket.sendmsg(&message.with_control(&control), 0)?;
    } else {
        socket.sendmsg(&message, 0)?;
    }
    Ok(())
}

/// Sends one datagram with one system call.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn send(
    socket: &UdpSocket,
    dst: SocketAddr,
    _size: usize,
    contents: &[u8],
) -> io::Result<()> {
    SockRef::from(socket).send_to(contents, &dst.into()).map(drop)
}

/// Bytes to whose multiple the kernel pads control messages (`CMSG_ALIGN`).
#[cfg(any(target_os = "linux", target_os = "android"))]
const WORD: usize = size_of::<usize>();

/// The control message `UDP_SEGMENT`, which has the kernel cut `contents` into datagrams of `size`
/// bytes: length as a word, level and type as integers, size, padding.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn gso_control_message(size: u16) -> [u8; 2 * WORD + 8] {
    let len = (WORD + 8 + 2).to_ne_bytes();
    let (level, kind) = (libc::SOL_UDP.to_ne_bytes(), libc::UDP_SEGMENT.to_ne_bytes());
    let fields = len.into_iter().chain(level).chain(kind).chain(size.to_ne_bytes());
    let mut message = [0; 2 * WORD + 8];
    message.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    message
}
