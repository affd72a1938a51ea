//! Control messages of client and server beside the measured data.
//!
//! Every stream begins with 16 bytes: `kpf1`, its role in one byte, three zeros, and in big-endian
//! order the number of the run it belongs to. A run begins with a stream of the role `Control`, on
//! which lines of JSON go back and forth: first the client's [`Offer`], then its [`Ask`]s, and the
//! server's [`Answer`] to each. The measured streams come next, each in the role that says
//! what the server does with it; they end with the end of the stream.

use std::io::{Error, ErrorKind, Result};

use kcpx::KcpStream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

/// Bytes in front of every stream.
pub(crate) const HEADER: usize = 16;
/// Bytes of the longest line that is read.
const LINE: u64 = 4_096;
const MAGIC: &[u8; 4] = b"kpf1";

/// The server's part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Answers lines.
    Control,
    /// Counts what arrives; after its end it sends the count in 8 bytes, big-endian.
    Sink,
    /// Sends what the run's [`Offer`] says, and ends.
    Source,
    /// Sends back what arrives.
    Echo,
}

/// In front of every stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) role: Role,
    pub(crate) run: u64,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = match self.role {
            Role::Control => 0,
            Role::Sink => 1,
            Role::Source => 2,
            Role::Echo => 3,
        };
        bytes[8..].copy_from_slice(&self.run.to_be_bytes());
        bytes
    }

    /// Reads one from the beginning of a stream.
    pub(crate) async fn read(stream: &mut KcpStream) -> Result<Self> {
        let mut magic = [0; 4];
        stream.read_exact(&mut magic).await?;
        let role = stream.read_u32().await?.to_be_bytes();
        let run = stream.read_u64().await?;
        let role = match (&magic, role) {
            (MAGIC, [0, 0, 0, 0]) => Role::Control,
            (MAGIC, [1, 0, 0, 0]) => Role::Sink,
            (MAGIC, [2, 0, 0, 0]) => Role::Source,
            (MAGIC, [3, 0, 0, 0]) => Role::Echo,
            _ => return Err(Error::new(ErrorKind::InvalidData, "no stream of this program")),
        };
        Ok(Self { role, run })
    }
}

/// The wishes of a client for a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// For the server's log, and for nothing else.
    pub(crate) workload: String,
    /// The limits of a source: the first one reached ends it.
    pub(crate) bytes: Option<u64>,
    pub(crate) seconds: Option<f64>,
}

/// A question of the client during a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// How the server is now.
    Sample,
    /// The same, as soon as the run's streams have ended.
    Finish,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Sample(Sample),
    Refused(String),
}

/// The server's use and counters so far. The difference of two is the cost of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The process's; `None` where the system does not report it.
    pub(crate) cpu_s: Option<f64>,
    pub(crate) rss_kib: Option<u64>,
    /// Datagrams that the kernel dropped since the socket's receive buffer was full.
    pub(crate) drops: Option<u64>,
    /// Datagrams that the endpoint received and did not take.
    pub(crate) discarded: u64,
    pub(crate) wire_bytes_out: u64,
    /// In the streams of the run that have ended.
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) sent_segments: u64,
    pub(crate) retransmits: u64,
}

/// Writes a line.
pub(crate) async fn send(stream: &mut KcpStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

/// Reads a line; `None` at the end of the stream.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut KcpStream) -> Result<Option<T>> {
    let mut line = String::new();
    stream.split().0.take(LINE).read_line(&mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if !line.ends_with('\n') {
        let text = format!("a line is cut short, or longer than {LINE} bytes");
        return Err(Error::new(ErrorKind::InvalidData, text));
    }
    Ok(Some(serde_json::from_str(&line)?))
}
