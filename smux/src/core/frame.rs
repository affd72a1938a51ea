//! Frame headers: `u8 version, u8 cmd, u16 length, u32 stream id`, little-endian.

use crate::error::ProtocolError;

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
}
