//! Frames: headers `u8 version, u8 cmd, u16 length, u32 stream id`, little-endian, and the parser of
//! the incoming bytes. Bytes may arrive in pieces of any size; payload is passed on as it arrives,
//! without waiting for the rest of a frame.

use bytes::{Buf, BytesMut};

use crate::error::ProtocolError;
use crate::stats::Frames;

/// Bytes of a frame header.
pub(crate) const HEADER_LEN: usize = 8;

/// Bytes of the payload of UPD: `u32 consumed, u32 window`.
pub(crate) const UPD_LEN: u16 = 8;

/// Bytes that a sender of version 2 may send on a stream before the first UPD, whatever the
/// settings of either side (smux `initialPeerWindow`).
pub(crate) const INITIAL_WINDOW: u32 = 262_144;

/// Largest payload of a frame, bytes.
pub(crate) const MAX_PAYLOAD: u32 = 65_535;

/// The `cmd` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Syn = 0,
    Fin = 1,
    Psh = 2,
    /// Keepalive, with id 0. With a stream's id it resets the stream at peers of this crate;
    /// xtaci/smux never sends one and ignores the id.
    Nop = 3,
    Upd = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u8,
    pub(crate) command: Command,
    pub(crate) len: u16,
    pub(crate) stream_id: u32,
}

impl Header {
    /// `expected` is the session's version, `None` while undecided.
    pub(crate) fn parse(
        bytes: [u8; HEADER_LEN],
        expected: Option<u8>,
    ) -> Result<Self, ProtocolError> {
        let [version, cmd, len0, len1, id0, id1, id2, id3] = bytes;
        let is_allowed = match expected {
            Some(expected) => version == expected,
            None => (1..=2).contains(&version),
        };
        if !is_allowed {
            return Err(ProtocolError::Version { found: version, expected });
        }
        let len = u16::from_le_bytes([len0, len1]);
        let (command, allowed) = match cmd {
            0 => (Command::Syn, 0),
            1 => (Command::Fin, 0),
            2 => (Command::Psh, len),
            3 => (Command::Nop, 0),
            4 if version == 2 => (Command::Upd, UPD_LEN),
            other => return Err(ProtocolError::Command(other)),
        };
        if len != allowed {
            return Err(ProtocolError::Length { command: cmd, len });
        }
        let stream_id = u32::from_le_bytes([id0, id1, id2, id3]);
        Ok(Self { version, command, len, stream_id })
    }

    pub(crate) fn encode(self) -> [u8; HEADER_LEN] {
        let [len0, len1] = self.len.to_le_bytes();
        let [id0, id1, id2, id3] = self.stream_id.to_le_bytes();
        [self.version, self.command as u8, len0, len1, id0, id1, id2, id3]
    }
}

/// One step of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Syn(u32),
    Fin(u32),
    /// NOP with the id of a stream: see [`Command::Nop`].
    Reset(u32),
    /// The next `len` bytes of the input, at least 1, are payload of the stream. The caller takes
    /// them before it calls [`Parser::next`] again.
    Payload {
        id: u32,
        len: usize,
    },
    Upd {
        id: u32,
        consumed: u32,
        window: u32,
    },
}

#[derive(Debug)]
enum State {
    /// Between two frames, or inside a header.
    Header,
    /// Inside the payload of an UPD.
    Upd { id: u32 },
    /// Inside the payload of a PSH, with `left` bytes to come, at least 1.
    Payload { id: u32, left: usize },
}

/// Cuts the incoming bytes into frames.
#[derive(Debug)]
pub(crate) struct Parser {
    version: Option<u8>,
    state: State,
    /// The received part of an incomplete header or UPD payload.
    partial: [u8; HEADER_LEN],
    partial_len: usize,
    /// Headers so far, by command.
    pub(crate) frames: Frames,
    /// Headers so far.
    pub(crate) headers: u64,
}

impl Parser {
    pub(crate) fn new(version: Option<u8>) -> Self {
        Self {
            version,
            state: State::Header,
            partial: [0; HEADER_LEN],
            partial_len: 0,
            frames: Frames::default(),
            headers: 0,
        }
    }

    /// The session's version: configured, or taken from the first frame.
    pub(crate) fn version(&self) -> Option<u8> {
        self.version
    }

    /// Whether the input so far ends with a whole frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Header) && self.partial_len == 0
    }

    /// Takes one step of `input`. `None` once it is empty.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Event>, ProtocolError> {
        loop {
            match self.state {
                State::Payload { id, left } => {
                    let len = left.min(input.len());
                    if len == 0 {
                        return Ok(None);
                    }
                    self.state = match left - len {
                        0 => State::Header,
                        left => State::Payload { id, left },
                    };
                    return Ok(Some(Event::Payload { id, len }));
                }
                State::Upd { id } => {
                    let Some(bytes) = self.take_eight(input) else { return Ok(None) };
                    self.state = State::Header;
                    let [c0, c1, c2, c3, w0, w1, w2, w3] = bytes;
                    let consumed = u32::from_le_bytes([c0, c1, c2, c3]);
                    let window = u32::from_le_bytes([w0, w1, w2, w3]);
                    return Ok(Some(Event::Upd { id, consumed, window }));
                }
                State::Header => {
                    let Some(bytes) = self.take_eight(input) else { return Ok(None) };
                    let header = Header::parse(bytes, self.version)?;
                    if let Some(event) = self.on_header(header) {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    fn on_header(&mut self, header: Header) -> Option<Event> {
        self.version = Some(header.version);
        self.headers += 1;
        let id = header.stream_id;
        match header.command {
            Command::Syn => {
                self.frames.syn += 1;
                Some(Event::Syn(id))
            }
            Command::Fin => {
                self.frames.fin += 1;
                Some(Event::Fin(id))
            }
            Command::Psh => {
                self.frames.psh += 1;
                if header.len > 0 {
                    self.state = State::Payload { id, left: usize::from(header.len) };
                }
                None
            }
            Command::Nop => {
                self.frames.nop += 1;
                (id != 0).then_some(Event::Reset(id))
            }
            Command::Upd => {
                self.frames.upd += 1;
                self.state = State::Upd { id };
                None
            }
        }
    }

    /// Returns the eight bytes of a header or UPD payload. `None` while some are missing; received
    /// bytes are kept.
    fn take_eight(&mut self, input: &mut BytesMut) -> Option<[u8; HEADER_LEN]> {
        const { assert!(HEADER_LEN == UPD_LEN as usize) };
        let len = (HEADER_LEN - self.partial_len).min(input.len());
        self.partial[self.partial_len..self.partial_len + len].copy_from_slice(&input[..len]);
        input.advance(len);
        self.partial_len += len;
        if self.partial_len < HEADER_LEN {
            return None;
        }
        self.partial_len = 0;
        Some(self.partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_every_command_survives_encoding() {
        for (command, len) in [
            (Command::Syn, 0),
            (Command::Fin, 0),
            (Command::Psh, 0),
            (Command::Psh, 65_535),
            (Command::Nop, 0),
            (Command::Upd, 8),
        ] {
            let header = Header { version: 2, command, len, stream_id: 0x0403_0201 };
            let bytes = header.encode();
            assert_eq!(bytes[4..], [1, 2, 3, 4]);
            assert_eq!(Header::parse(bytes, None), Ok(header));
            assert_eq!(Header::parse(bytes, Some(2)), Ok(header));
            let error = ProtocolError::Version { found: 2, expected: Some(1) };
            assert_eq!(Header::parse(bytes, Some(1)), Err(error));
        }
    }

    #[test]
    fn header_of_every_pair_of_version_and_command_parses_or_is_an_error_by_name() {
        for version in 0..=255 {
            for cmd in 0..=255 {
                let parsed = Header::parse([version, cmd, 1, 0, 3, 0, 0, 0], None);
                let expected = match (version, cmd) {
                    (0 | 3.., _) => Err(ProtocolError::Version { found: version, expected: None }),
                    (1 | 2, 2) => Ok(Command::Psh),
                    (1, 0 | 1 | 3) | (2, 0 | 1 | 3 | 4) => {
                        Err(ProtocolError::Length { command: cmd, len: 1 })
                    }
                    _ => Err(ProtocolError::Command(cmd)),
                };
                assert_eq!(parsed.map(|header| header.command), expected);
            }
        }
    }

    /// SYN, UPD, PSH of 5 and of 0 bytes, NOP, FIN.
    const INPUT: &[u8] = b"\x02\0\0\0\x03\0\0\0\x02\x04\x08\0\x03\0\0\0\x01\x02\0\0\0\0\x01\0\
        \x02\x02\x05\0\x03\0\0\0hello\x02\x02\0\0\x03\0\0\0\x02\x03\0\0\0\0\0\0\x02\x01\0\0\x03\0\0\0";

    fn parse(pieces: usize) -> (Vec<Event>, Vec<u8>) {
        let mut parser = Parser::new(None);
        let (mut events, mut payload) = (Vec::new(), Vec::new());
        for piece in INPUT.chunks(pieces) {
            let mut input = BytesMut::from(piece);
            while let Some(event) = parser.next(&mut input).unwrap() {
                if let Event::Payload { len, .. } = event {
                    payload.extend_from_slice(&input.split_to(len));
                } else {
                    events.push(event);
                }
            }
        }
        assert_eq!(parser.version(), Some(2));
        assert!(parser.is_between_frames());
        let frames = Frames { syn: 1, fin: 1, psh: 2, nop: 1, upd: 1 };
        assert_eq!((parser.frames, parser.headers), (frames, 6));
        (events, payload)
    }

    #[test]
    fn parser_input_in_pieces_of_any_size_gives_the_same_frames() {
        for pieces in 1..=INPUT.len() {
            let (events, payload) = parse(pieces);
            let upd = Event::Upd { id: 3, consumed: 513, window: 65_536 };
            assert_eq!(events, [Event::Syn(3), upd, Event::Fin(3)]);
            assert_eq!(payload, b"hello");
        }
    }

    #[test]
    fn parser_input_that_ends_inside_a_frame_is_not_between_frames() {
        // The ends of the frames of INPUT.
        let ends = [0, 8, 24, 37, 45, 53, 61];
        for end in 0..=INPUT.len() {
            let mut parser = Parser::new(Some(2));
            let mut input = BytesMut::from(&INPUT[..end]);
            while let Some(event) = parser.next(&mut input).unwrap() {
                if let Event::Payload { len, .. } = event {
                    input.advance(len);
                }
            }
            assert_eq!(parser.is_between_frames(), ends.contains(&end), "{end}");
        }
    }
}
