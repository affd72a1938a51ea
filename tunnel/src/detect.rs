//! Detects a client's protocol from the first byte of its session.
//!
//! kcptun's sides negotiate nothing, but a client speaks first: its first byte is 0xff of a Snappy
//! stream identifier, or the version of the first smux frame.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout;

use crate::carrier::{Carrier, LinkedStream};
use crate::settings::SmuxVersion;

/// First byte of a Snappy stream.
const SNAPPY: u8 = 0xff;

/// Start of a Snappy stream: its identifier.
const SNAPPY_IDENTIFIER: &[u8] = b"\xff\x06\0\0sNaPpY";
/// The first frame of smux version 1 or 2 after the version: SYN without payload, little-endian, of
/// a client's first stream, 3.
const FIRST_SYN: &[u8] = &[0, 0, 0, 3, 0, 0, 0];

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Detected {
    pub(crate) compression: bool,
    pub(crate) version: SmuxVersion,
}

/// Why a session was rejected.
#[derive(Debug, Error)]
pub(crate) enum Rejected {
    #[error("the client compresses, this side does not: remove --nocomp here, or add it there")]
    Compressed,
    #[error("the client does not compress, this side does: add --nocomp here, or remove it there")]
    NotCompressed,
    #[error("the client has --smuxver {client}, this side --smuxver {server}")]
    Version { client: u8, server: u8 },
    #[error(
        "the first byte is {0:#04x}, and neither 0xff of Snappy nor 1 or 2 of smux (--mux none \
         on the other side?)"
    )]
    Unknown(u8),
    #[error("the session ended before its first byte")]
    Ended,
    #[error("no byte within {} s (--mux none on the other side?)", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Waits for the first byte, makes the carrier, and detects the client's protocol.
///
/// `compression` and `version` are required by the settings; `None` accepts either.
pub(crate) async fn detect(
    stream: LinkedStream,
    compression: Option<bool>,
    version: Option<SmuxVersion>,
    limit: Duration,
) -> Result<(Carrier, Detected), Rejected> {
    let detecting = async {
        let first = stream.peek_byte().await?.ok_or(Rejected::Ended)?;
        let compressed = first == SNAPPY;
        match compression {
            Some(false) if compressed => return Err(Rejected::Compressed),
            Some(true) if matches!(first, 1 | 2) => return Err(Rejected::NotCompressed),
            Some(true) if !compressed => return Err(Rejected::Unknown(first)),
            _ => {}
        }
        let mut carrier = Carrier::new(stream, compressed);
        let first = match &mut carrier {
            Carrier::Plain(_) => first,
            Carrier::Snappy(snappy) => snappy.peek_byte().await?.ok_or(Rejected::Ended)?,
        };
        let client = match first {
            1 => SmuxVersion::V1,
            2 => SmuxVersion::V2,
            other => return Err(Rejected::Unknown(other)),
        };
        if let Some(server) = version.filter(|server| *server != client) {
            return Err(Rejected::Version { client: client.number(), server: server.number() });
        }
        Ok((carrier, Detected { compression: compressed, version: client }))
    };
    timeout(limit, detecting).await.unwrap_or(Err(Rejected::Timeout(limit)))
}

/// Returns what the first bytes of a connection without smux look like, if a client with smux would
/// send them. They may still be application data.
pub(crate) fn smux_of_client(first: &[u8]) -> Option<&'static str> {
    match first {
        [1 | 2, rest @ ..] if rest.starts_with(FIRST_SYN) => Some("a frame of smux"),
        _ if first.starts_with(SNAPPY_IDENTIFIER) => Some("a Snappy identifier"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_without_a_byte_has_a_documented_hint() {
        let text = format!("rejected: {}\n", Rejected::Timeout(Duration::from_secs(30)));
        assert!(include_str!("../docs/troubleshooting.md").contains(&text), "{text}");
    }

    #[test]
    fn first_bytes_of_a_client_with_smux_are_recognized_and_others_are_not() {
        let frame = Some("a frame of smux");
        assert_eq!(smux_of_client(b"\x01\0\0\0\x03\0\0\0"), frame);
        assert_eq!(smux_of_client(b"\x02\0\0\0\x03\0\0\0\x02\x02"), frame);
        assert_eq!(smux_of_client(b"\xff\x06\0\0sNaPpY\0"), Some("a Snappy identifier"));
        for other in [
            &b""[..],
            b"\x01",
            b"\x01\0\0\0\x03\0\0",
            b"\x03\0\0\0\x03\0\0\0",
            b"\x01\x02\0\0\x03\0\0\0",
            b"\x01\0\x01\0\x03\0\0\0",
            b"\x01\0\0\0\x01\0\0\0",
            b"\xff\x06\0\0sNaPp",
            b"SSH-2.0-",
        ] {
            assert_eq!(smux_of_client(other), None, "{other:?}");
        }
    }
}
