//! Detection of what a client speaks, by the first byte of its session.
//!
//! Nothing is negotiated between kcptun's sides. But a client speaks first: its first byte is 0xff of a
//! Snappy stream identifier, or the version of the first smux frame.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout;

use crate::carrier::{Carrier, LinkedStream};
use crate::settings::SmuxVersion;

/// First byte of a Snappy stream.
const SNAPPY: u8 = 0xff;

/// What a client speaks.
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
    #[error("no byte within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Waits for the first byte, makes the carrier, and finds out what the client speaks.
///
/// `compression` and `version` are what the settings enforce; `None` takes either.
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
            Some(true) if !compressed => return Err(Rejected::NotCompressed),
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
