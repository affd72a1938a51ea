//! Sending with the socket's own traffic class (DSCP: `IP_TOS`, `IPV6_TCLASS`).
//!
//! quinn-udp states a class with each datagram, for the ECN bits in it, which overrides the socket's
//! option. So a socket with its own class sends here, without that control message but with GSO where the
//! system has it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::SockRef;

#[cfg(any(target_os = "linux", target_os = "android"))]
use super::pktinfo;

/// Whether the socket's DSCP differs from the system's default of 0.
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
    // A socket of one IP version does not have the other's option. The low two bits are ECN.
    [socket.tos_v4(), v6].into_iter().flatten().any(|class| class >> 2 != 0)
}

/// Whether [`send`] takes GSO batches.
pub(super) const HAS_GSO: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Whether [`send`] can state a source.
pub(super) const STATES_SOURCE: bool = HAS_GSO;

/// Sends datagrams of `size` bytes with one system call; one datagram without [`HAS_GSO`]. `source`: the
/// local IP they leave from, on a wildcard socket.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn send(
    socket: SockRef<'_>,
    (dst, source): (SocketAddr, Option<IpAddr>),
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
        let size = u16::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        control.push((libc::SOL_UDP, libc::UDP_SEGMENT), &size.to_ne_bytes())?;
    }
    if let Some(source) = source {
        let (kind, data, len) = pktinfo::control_message(source);
        control.push(kind, &data[..len])?;
    }
    if control.len > 0 {
        message = message.with_control(control.as_slice());
    }
    socket.sendmsg(&message, 0).map(drop)
}

/// Sends one datagram with one system call. The system chooses the source.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn send(
    socket: SockRef<'_>,
    (dst, _source): (SocketAddr, Option<IpAddr>),
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
    /// Fits both messages that [`send`] writes.
    bytes: [u8; 64],
    len: usize,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl ControlMessages {
    /// Fails when the buffer is full: the datagrams must not leave without the message.
    fn push(&mut self, (level, kind): (i32, i32), data: &[u8]) -> io::Result<()> {
        let len = WORD + 8 + data.len();
        let end = self.len + len.next_multiple_of(WORD);
        let fields = len.to_ne_bytes().into_iter().chain(level.to_ne_bytes());
        let fields = fields.chain(kind.to_ne_bytes()).chain(data.iter().copied());
        let place = self.bytes.get_mut(self.len..end).ok_or(io::ErrorKind::InvalidInput)?;
        place.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        self.len = end;
        Ok(())
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
            control.push(offload, &1_200_u16.to_ne_bytes()).unwrap();
            let (kind, data, len) = pktinfo::control_message(source);
            control.push(kind, &data[..len]).unwrap();
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
            assert!(control.push(kind, &data[..len]).is_err());
            assert_eq!(control.as_slice(), before);
        }
    }
}
