//! Sending with the class of service that the socket has.
//!
//! The UDP library states a class with each datagram, for the ECN bits in it, and what a datagram
//! states goes before what its socket was given. So a socket with a class of its own sends without
//! it; only segmentation is asked for here as well, where the system has it.

use std::io;
use std::net::SocketAddr;

use socket2::SockRef;
use tokio::net::UdpSocket;

/// Whether the socket has another class than the system's default.
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
    // A socket of one version does not have the other's option. The low bits are not the class.
    [socket.tos_v4(), v6].into_iter().flatten().any(|class| class >> 2 != 0)
}

/// Whether trains can be sent in this way.
pub(super) const TRAINS: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// One system call for datagrams of `size` bytes, one of them without [`TRAINS`].
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
        let control = segmentation(size);
        socket.sendmsg(&message.with_control(&control), 0)?;
    } else {
        socket.sendmsg(&message, 0)?;
    }
    Ok(())
}

/// One system call for one datagram.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn send(
    socket: &UdpSocket,
    dst: SocketAddr,
    _size: usize,
    contents: &[u8],
) -> io::Result<()> {
    SockRef::from(socket).send_to(contents, &dst.into()).map(drop)
}

/// Bytes of a word, to whose multiple the kernel pads control messages.
#[cfg(any(target_os = "linux", target_os = "android"))]
const WORD: usize = size_of::<usize>();

/// The control message that has the kernel cut what is sent into datagrams of `size` bytes: its
/// length as a word, level and type as integers, the size, padding.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn segmentation(size: u16) -> [u8; 2 * WORD + 8] {
    let len = (WORD + 8 + 2).to_ne_bytes();
    let (level, kind) = (libc::SOL_UDP.to_ne_bytes(), libc::UDP_SEGMENT.to_ne_bytes());
    let fields = len.into_iter().chain(level).chain(kind).chain(size.to_ne_bytes());
    let mut message = [0; 2 * WORD + 8];
    message.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    message
}
