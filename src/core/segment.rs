//! The KCP wire format: 24-byte segment headers (C `ikcp_encode_seg`) and datagrams made of
//! segments.
//!
//! A datagram is any number of segments of one connection, back to back. [`validate`] checks the
//! whole datagram first, so a datagram with one malformed segment has no effect. Deviates: kcp-go
//! `Input` and C `ikcp_input` apply the segments before the malformed one.
//!
//! Layout, little-endian, lengths in bytes: conv 4, cmd 1, frg 1, wnd 2, ts 4, sn 4, una 4, len 4,
//! payload.

use std::ops::Range;

use super::seq::{Sn, Ts};

/// Bytes of a segment header.
#[doc(alias = "IKCP_OVERHEAD")]
pub const HEADER_LEN: usize = crate::config::SEGMENT_HEADER;
/// The bytes of `sn` in a header, to patch headers that differ in nothing else.
pub(crate) const SN: Range<usize> = 12..16;

/// Segment type, the wire field `cmd`.
///
/// ```
/// use kcpx::proto::{Command, InputError, segment::Header};
///
/// let mut window_probe = [0; 24];
/// window_probe[4] = 83;
/// assert_eq!(Header::parse(&window_probe).unwrap().command, Command::WindowProbe);
/// window_probe[4] = 80;
/// assert_eq!(Header::parse(&window_probe), Err(InputError::UnknownCommand(80)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Command {
    /// PUSH: carries payload.
    #[doc(alias = "IKCP_CMD_PUSH")]
    Push = 81,
    /// ACK: acknowledges one PUSH, copies its `sn` and `ts`.
    #[doc(alias = "IKCP_CMD_ACK")]
    Ack = 82,
    /// WASK: window probe; the peer answers with a window update (RFC 9293 3.8.6.1).
    #[doc(alias("IKCP_CMD_WASK", "WASK"))]
    WindowProbe = 83,
    /// WINS: window update; `wnd` is the receive window of its sender.
    #[doc(alias("IKCP_CMD_WINS", "WINS"))]
    WindowUpdate = 84,
    /// CONTROL: FIN, RST, HELLO and their acknowledgements; `frg` is the [`ControlType`]. An
    /// extension of this crate; sent only to peers that advertise [`CONTROL_CAPABLE`].
    Control = 85,
    /// REPAIR: a repair symbol over `frg` segments from `sn` on; `ts` is the repair key (RFC 8681).
    /// An extension of this crate; sent only to peers that accept it in HELLO-ACK.
    Repair = 86,
}

impl Command {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            81 => Some(Self::Push),
            82 => Some(Self::Ack),
            83 => Some(Self::WindowProbe),
            84 => Some(Self::WindowUpdate),
            85 => Some(Self::Control),
            86 => Some(Self::Repair),
            _ => None,
        }
    }
}

/// `frg` of ACKs, window probes, window updates and pings whose sender supports
/// [`Command::Control`].
///
/// Plays the role of a QUIC transport parameter (RFC 9000 7.4). Other implementations send 0 in
/// this field and ignore its value.
pub const CONTROL_CAPABLE: u8 = 0xA5;

/// `frg` of the ACK of a segment that repair symbols recovered. `ts` is the repair key of the last
/// symbol needed, since the segment's own timestamp did not arrive.
pub const REPAIRED: u8 = 0xA6;

/// Type of a CONTROL segment ([`Command::Control`]), the wire field `frg`.
///
/// ```
/// use kcpx::proto::ControlType;
///
/// assert_eq!(ControlType::from_frg(1), Some(ControlType::Fin));
/// assert_eq!(ControlType::Fin as u8, 1);
/// assert_eq!(ControlType::from_frg(200), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ControlType {
    /// FIN: the end of data; `sn` is the number after the last PUSH (RFC 9293 3.6).
    Fin = 1,
    /// FIN-ACK: every segment before the FIN's `sn` has arrived. Copies `sn` and `ts` of the FIN.
    FinAck = 2,
    /// RST: the connection is aborted (RFC 9293 3.10.5). Copies `sn` and `ts` of a recent PUSH of
    /// its receiver, so an off-path attacker cannot forge it (RFC 5961 3.2).
    Reset = 3,
    /// RST-ACK: copies `sn` and `ts` of the RST.
    ResetAck = 4,
    /// HELLO: `sn` has the capabilities of its sender, one bit each; `ts` is random.
    Hello = 5,
    /// HELLO-ACK: copies `ts` of the HELLO; `sn` has the capabilities of its sender.
    HelloAck = 6,
    /// PATH: the two addresses of this datagram are a further path of the connection, with number
    /// `sn`. Counts only with the PATH_RESPONSE of that path.
    Path = 7,
}

impl ControlType {
    /// The type with this `frg`; `None` if it is unknown, then the segment is ignored.
    #[must_use]
    pub const fn from_frg(frg: u8) -> Option<Self> {
        match frg {
            1 => Some(Self::Fin),
            2 => Some(Self::FinAck),
            3 => Some(Self::Reset),
            4 => Some(Self::ResetAck),
            5 => Some(Self::Hello),
            6 => Some(Self::HelloAck),
            7 => Some(Self::Path),
            _ => None,
        }
    }
}

/// Why a datagram is malformed and was dropped.
///
/// ```
/// use kcpx::proto::{InputError, segment};
///
/// assert_eq!(segment::validate(&[0; 10], 7), Err(InputError::Truncated));
/// let of_conv_0 = [&[0, 0, 0, 0, 81][..], &[0; 19]].concat();
/// assert_eq!(segment::validate(&of_conv_0, 0), Ok(()));
/// assert_eq!(segment::validate(&of_conv_0, 7), Err(InputError::ConvMismatch));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The datagram is shorter than one header (24 bytes).
    #[error("the datagram is shorter than a segment header")]
    Truncated,
    /// A segment has another conversation id (`conv`).
    #[error("a segment has another conversation id")]
    ConvMismatch,
    /// A segment's `cmd` is none of [`Command`].
    #[error("unknown segment command {0}")]
    UnknownCommand(u8),
    /// A segment's `len` exceeds the rest of its datagram.
    #[error("a segment is longer than its datagram")]
    LengthOverrun,
}

/// A parsed segment header.
///
/// ```
/// use kcpx::proto::{Command, Header, Sn, Ts};
///
/// let (conv, command) = (7, Command::Push);
/// let header =
///     Header { conv, command, frg: 0, wnd: 128, ts: Ts(5), sn: Sn(0), una: Sn(0), len: 5 };
/// let mut datagram = Vec::new();
/// header.emit(&mut datagram);
/// datagram.extend_from_slice(b"hello");
/// assert_eq!(Header::parse(&datagram), Ok(header));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The conversation id, the same in both directions.
    pub conv: u32,
    /// Segment type, the wire field `cmd`.
    pub command: Command,
    /// PUSH: number of fragments of the same message after this fragment. CONTROL: the
    /// [`ControlType`]. REPAIR: number of segments covered. ACK of a recovered segment:
    /// [`REPAIRED`]. Otherwise [`CONTROL_CAPABLE`] or 0.
    pub frg: u8,
    /// Receive window of the sender, segments beyond `una` (RFC 9293 SEG.WND).
    pub wnd: u16,
    /// PUSH: time of this transmission, milliseconds. ACK: `ts` of the acknowledged PUSH.
    pub ts: Ts,
    /// PUSH: sequence number. ACK: sequence number of the acknowledged PUSH.
    pub sn: Sn,
    /// Cumulative acknowledgement: the next number that the sender expects.
    pub una: Sn,
    /// Payload length, bytes.
    pub len: u32,
}

impl Header {
    /// Parses the header at the start of `bytes`. Does not check `len` against `bytes`.
    ///
    /// # Errors
    ///
    /// [`InputError::Truncated`] or [`InputError::UnknownCommand`].
    pub fn parse(bytes: &[u8]) -> Result<Self, InputError> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(InputError::Truncated);
        };
        let &[c0, c1, c2, c3, cmd, frg, w0, w1, rest @ ..] = header;
        let [t0, t1, t2, t3, s0, s1, s2, s3, u0, u1, u2, u3, l0, l1, l2, l3] = rest;
        Ok(Self {
            conv: u32::from_le_bytes([c0, c1, c2, c3]),
            command: Command::from_byte(cmd).ok_or(InputError::UnknownCommand(cmd))?,
            frg,
            wnd: u16::from_le_bytes([w0, w1]),
            ts: Ts(u32::from_le_bytes([t0, t1, t2, t3])),
            sn: Sn(u32::from_le_bytes([s0, s1, s2, s3])),
            una: Sn(u32::from_le_bytes([u0, u1, u2, u3])),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
        })
    }

    /// Appends the 24 bytes of this header to `out`.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// The 24 bytes of this header.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0_u8; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.conv.to_le_bytes());
        bytes[4] = self.command as u8;
        bytes[5] = self.frg;
        bytes[6..8].copy_from_slice(&self.wnd.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.ts.0.to_le_bytes());
        bytes[SN].copy_from_slice(&self.sn.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.una.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }
}

/// The conversation id at the start of a datagram; `None` if it is shorter.
#[inline]
pub(crate) fn conv_of(datagram: &[u8]) -> Option<u32> {
    datagram.first_chunk().map(|conv| u32::from_le_bytes(*conv))
}

/// Checks that every segment of a datagram is complete, has a known [`Command`] and belongs to
/// `conv`.
///
/// Fewer trailing bytes than a header are ignored, as in kcp-go `Input` and C `ikcp_input`.
///
/// # Errors
///
/// The first fault found: drop the whole datagram.
pub fn validate(datagram: &[u8], conv: u32) -> Result<(), InputError> {
    let mut rest = datagram;
    if rest.len() < HEADER_LEN {
        return Err(InputError::Truncated);
    }
    while rest.len() >= HEADER_LEN {
        let header = Header::parse(rest)?;
        if header.conv != conv {
            return Err(InputError::ConvMismatch);
        }
        rest = payload_and_rest(&header, rest).ok_or(InputError::LengthOverrun)?.1;
    }
    Ok(())
}

/// Payload of the first segment, and the bytes after it; `None` if `len` exceeds the datagram.
fn payload_and_rest<'a>(header: &Header, segment: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let len = usize::try_from(header.len).ok()?;
    segment.get(HEADER_LEN..)?.split_at_checked(len)
}

/// Iterator over the segments of a datagram. Ends before the first segment that is incomplete or
/// has an unknown `cmd`; call [`validate`] first.
///
/// ```
/// use kcpx::proto::{InputError, Segments, segment};
///
/// /// Prints what a datagram of connection `conv` has.
/// fn print(datagram: &[u8], conv: u32) -> Result<(), InputError> {
///     segment::validate(datagram, conv)?;
///     for (header, payload) in Segments::new(datagram) {
///         println!("{:?} {}: {} bytes", header.command, header.sn.0, payload.len());
///     }
///     Ok(())
/// }
/// # assert!(print(&[], 7).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Segments<'a>(&'a [u8]);

impl<'a> Segments<'a> {
    /// Iterates over `datagram`.
    #[must_use]
    pub fn new(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = (Header, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = Header::parse(self.0).ok()?;
        let (payload, rest) = payload_and_rest(&header, self.0)?;
        self.0 = rest;
        Some((header, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO: &str = "44332211510020000403020100000000000000000500000068656c6c6f";

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    fn any_header() -> impl Strategy<Value = Header> {
        (
            any::<(u32, u8, u16, u32, u32, u32)>(),
            0_u32..64,
            prop::sample::select(vec![
                Command::Push,
                Command::Ack,
                Command::WindowProbe,
                Command::WindowUpdate,
            ]),
        )
            .prop_map(|((conv, frg, wnd, ts, sn, una), len, command)| Header {
                conv,
                command,
                frg,
                wnd,
                ts: Ts(ts),
                sn: Sn(sn),
                una: Sn(una),
                len,
            })
    }

    /// Rules: W-2, W-5.
    #[test]
    fn header_of_kcp_go_packet_parses_and_emits_identically() {
        let packet = unhex(HELLO);
        validate(&packet, 0x1122_3344).unwrap();
        let (header, payload) = Segments::new(&packet).next().unwrap();
        assert_eq!(payload, b"hello");
        assert_eq!(
            header,
            Header {
                conv: 0x1122_3344,
                command: Command::Push,
                frg: 0,
                wnd: 32,
                ts: Ts(0x0102_0304),
                sn: Sn(0),
                una: Sn(0),
                len: 5,
            }
        );
        let mut emitted = Vec::new();
        header.emit(&mut emitted);
        assert_eq!(emitted, packet[..HEADER_LEN]);
    }

    #[test]
    fn validate_truncated_datagram_is_an_error() {
        let packet = unhex(HELLO);
        for len in 0..packet.len() {
            let expected =
                if len < HEADER_LEN { InputError::Truncated } else { InputError::LengthOverrun };
            assert_eq!(validate(&packet[..len], 0x1122_3344), Err(expected), "length {len}");
        }
    }

    /// Rule: W-4.
    #[test]
    fn validate_one_bad_segment_rejects_the_datagram() {
        let good = unhex(HELLO);
        let conv = 0x1122_3344;
        let mut foreign = good.clone();
        foreign[0] ^= 1;
        let mut unknown = good.clone();
        unknown[4] = 80;
        let mut long = good.clone();
        long[23] = 0x80;
        for (bad, error) in [
            (foreign, InputError::ConvMismatch),
            (unknown, InputError::UnknownCommand(80)),
            (long, InputError::LengthOverrun),
        ] {
            assert_eq!(validate(&[good.clone(), bad].concat(), conv), Err(error));
        }
        let mut tail = good;
        tail.extend_from_slice(&[0xFF; HEADER_LEN - 1]);
        assert_eq!(validate(&tail, conv), Ok(()));
        assert_eq!(Segments::new(&tail).count(), 1);
    }

    /// Rules: W-6, W-7, W-8, W-9, W-10, W-11, W-13, W-51, W-52, W-53, W-54, W-55, W-56, W-57, W-136.
    #[test]
    fn commands_and_types_have_their_numbers() {
        use Command::{Ack, Control, Push, Repair, WindowProbe, WindowUpdate};
        use ControlType::{Fin, FinAck, Hello, HelloAck, Path, Reset, ResetAck};
        for (command, byte) in
            [Push, Ack, WindowProbe, WindowUpdate, Control, Repair].into_iter().zip(81..)
        {
            let mut header = Header::parse(&unhex(HELLO)).unwrap();
            (header.command, header.frg) = (command, 7);
            let bytes = header.to_bytes();
            assert_eq!((bytes[4], bytes[5]), (byte, 7), "{command:?}");
            assert_eq!(Header::parse(&bytes), Ok(header));
        }
        for (kind, byte) in
            [Fin, FinAck, Reset, ResetAck, Hello, HelloAck, Path].into_iter().zip(1..)
        {
            assert_eq!((kind as u8, ControlType::from_frg(byte)), (byte, Some(kind)));
        }
        assert_eq!((CONTROL_CAPABLE, REPAIRED), (0xA5, 0xA6));
    }

    proptest! {
        #[test]
        fn header_emit_then_parse_is_identity(headers in prop::collection::vec(any_header(), 1..8)) {
            let mut datagram = Vec::new();
            for header in &headers {
                Header { conv: 7, ..*header }.emit(&mut datagram);
                datagram.extend(std::iter::repeat_n(0xAB, header.len as usize));
            }
            prop_assert_eq!(validate(&datagram, 7), Ok(()));
            let parsed: Vec<_> = Segments::new(&datagram).collect();
            prop_assert_eq!(parsed.len(), headers.len());
            for ((parsed, payload), header) in parsed.iter().zip(&headers) {
                prop_assert_eq!(*parsed, Header { conv: 7, ..*header });
                prop_assert_eq!(payload.len(), header.len as usize);
            }
        }

        #[test]
        fn validate_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let conv = bytes.first_chunk().map_or(0, |c| u32::from_le_bytes(*c));
            let whole = validate(&bytes, conv).is_ok();
            let used: usize = Segments::new(&bytes).map(|(_, p)| HEADER_LEN + p.len()).sum();
            prop_assert!(used <= bytes.len());
            prop_assert!(!whole || bytes.len() - used < HEADER_LEN);
        }
    }
}
