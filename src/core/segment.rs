//! The 24-byte segment header and the datagrams made of segments.
//!
//! A datagram is any number of segments back to back, all of one conversation. [`validate`] walks it
//! completely before anything is applied, so a datagram with one bad segment has no effect at all.
//!
//! Layout, little-endian: conv 4, cmd 1, frg 1, wnd 2, ts 4, sn 4, una 4, len 4, payload.

use super::seq::{Sn, Ts};

/// Bytes of a segment header.
pub const HEADER_LEN: usize = crate::config::SEGMENT_HEADER;

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Command {
    /// Carries payload.
    Push = 81,
    /// Acknowledges one PUSH and echoes its time stamp.
    Ack = 82,
    /// Asks for the receive window.
    WindowProbe = 83,
    /// Tells the receive window.
    WindowUpdate = 84,
    /// Says something of the conversation's end; `frg` says what, see [`ControlType`]. Only peers that
    /// advertised to understand it are sent one.
    Control = 85,
}

impl Command {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            81 => Some(Self::Push),
            82 => Some(Self::Ack),
            83 => Some(Self::WindowProbe),
            84 => Some(Self::WindowUpdate),
            85 => Some(Self::Control),
            _ => None,
        }
    }
}

/// What `frg` of acknowledgements, window questions, window answers and echo probes advertises: the
/// sender understands [`Command::Control`]. Other implementations send 0 there and read nothing.
pub const CONTROL_CAPABLE: u8 = 0xA5;

/// What a [`Command::Control`] says, in its `frg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ControlType {
    /// No data follows: `sn` is the number after the last segment.
    Fin = 1,
    /// Answers a [`ControlType::Fin`] once everything before its `sn` has arrived; `sn` and `ts` are its.
    FinAck = 2,
    /// The conversation is given up. `sn` and `ts` are those of a PUSH of the receiver.
    Reset = 3,
    /// Answers a [`ControlType::Reset`] with its `sn` and `ts`.
    ResetAck = 4,
}

impl ControlType {
    /// The notice of a [`Command::Control`], if it is a known one.
    #[must_use]
    pub const fn from_frg(frg: u8) -> Option<Self> {
        match frg {
            1 => Some(Self::Fin),
            2 => Some(Self::FinAck),
            3 => Some(Self::Reset),
            4 => Some(Self::ResetAck),
            _ => None,
        }
    }
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Shorter than one header.
    #[error("the datagram is shorter than a segment header")]
    Truncated,
    /// A segment belongs to another conversation.
    #[error("a segment belongs to another conversation")]
    ConvMismatch,
    /// A segment's command is none of those known.
    #[error("unknown segment command {0}")]
    UnknownCommand(u8),
    /// A segment claims more payload than the datagram holds.
    #[error("a segment is longer than its datagram")]
    LengthOverrun,
}

/// A parsed segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Conversation.
    pub conv: u32,
    /// Command.
    pub command: Command,
    /// PUSH: fragments of the message that follow this one. Control: the [`ControlType`]. Otherwise
    /// [`CONTROL_CAPABLE`] or 0.
    pub frg: u8,
    /// Segments the sender of this header can still receive.
    pub wnd: u16,
    /// PUSH: when it was sent. ACK: the stamp of the PUSH it answers.
    pub ts: Ts,
    /// PUSH: its number. ACK: the number it answers.
    pub sn: Sn,
    /// The next number the sender of this header expects.
    pub una: Sn,
    /// Payload bytes that follow.
    pub len: u32,
}

impl Header {
    /// Parses the header at the start of `bytes`; the payload is not looked at.
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
        let mut bytes = [0_u8; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.conv.to_le_bytes());
        bytes[4] = self.command as u8;
        bytes[5] = self.frg;
        bytes[6..8].copy_from_slice(&self.wnd.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.ts.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sn.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.una.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// Walks a whole datagram: every segment complete, of a known command, and of `conv`.
///
/// A tail shorter than a header is ignored, as every known implementation does.
///
/// # Errors
///
/// The first fault found; nothing of the datagram may be used then.
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

fn payload_and_rest<'a>(header: &Header, segment: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let len = usize::try_from(header.len).ok()?;
    segment.get(HEADER_LEN..)?.split_at_checked(len)
}

/// The segments of a datagram. Stops at the first one that [`validate`] would refuse.
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

    #[test]
    fn parses_a_packet_of_kcp_go() {
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
        let mut again = Vec::new();
        header.emit(&mut again);
        assert_eq!(again, packet[..HEADER_LEN]);
    }

    #[test]
    fn every_truncation_is_refused_or_whole() {
        let packet = unhex(HELLO);
        for len in 0..packet.len() {
            let expected =
                if len < HEADER_LEN { InputError::Truncated } else { InputError::LengthOverrun };
            assert_eq!(validate(&packet[..len], 0x1122_3344), Err(expected), "length {len}");
        }
    }

    #[test]
    fn one_bad_segment_condemns_the_datagram() {
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

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(headers in prop::collection::vec(any_header(), 1..8)) {
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
        fn any_bytes_are_walked_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let conv = bytes.first_chunk().map_or(0, |c| u32::from_le_bytes(*c));
            let whole = validate(&bytes, conv).is_ok();
            let used: usize = Segments::new(&bytes).map(|(_, p)| HEADER_LEN + p.len()).sum();
            prop_assert!(used <= bytes.len());
            prop_assert!(!whole || bytes.len() - used < HEADER_LEN);
        }
    }
}
