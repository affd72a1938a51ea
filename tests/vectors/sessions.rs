//! Replays recorded conversations of kcp-go: its datagrams give exactly the bytes that were
//! written, and in message mode the messages.

use std::time::{Duration, Instant};

use kcpx::core::{Kcp, Origin, Seed};
use kcpx::{KcpConfig, Mode};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::unhex;

/// Payload of a full segment in these conversations: 1,400 bytes less a header.
const MSS: usize = 1_376;

#[derive(Debug, Deserialize)]
struct Datagram {
    ms: u64,
    from: String,
    #[serde(default)]
    lost: bool,
    wire: String,
}

#[derive(Debug, Deserialize)]
struct Session {
    conv: u32,
    bytes: usize,
    sha256: String,
    writes: Vec<usize>,
    datagrams: Vec<Datagram>,
}

fn parse(text: &str) -> Session {
    let session: Session = serde_json::from_str(text).unwrap();
    assert!(session.datagrams.len() > 50, "the file holds a conversation");
    session
}

/// Everything that a fresh core delivers when it is fed one side of the conversation.
fn replay(session: &Session, from: &str, mode: Mode) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut config = KcpConfig::new();
    config.mode = mode;
    let mut kcp = Kcp::new(session.conv, &config, start, Seed::default()).unwrap();
    let mut chunks = Vec::new();
    for datagram in session.datagrams.iter().filter(|d| d.from == from && !d.lost) {
        let now = start + Duration::from_millis(datagram.ms);
        kcp.input(now, &unhex(&datagram.wire), Origin::Wire).unwrap();
        chunks.extend(std::iter::from_fn(|| kcp.recv()).map(|chunk| chunk.to_vec()));
        let mut answer = Vec::new();
        while kcp.poll_transmit(now, &mut answer).is_some() {
            answer.clear();
        }
    }
    assert_eq!(kcp.ended(), None);
    let stats = kcp.stats();
    assert_eq!((stats.beyond_window_segments, stats.received_bytes), (0, total(&chunks)));
    chunks
}

fn total(chunks: &[Vec<u8>]) -> u64 {
    chunks.iter().map(|chunk| chunk.len() as u64).sum()
}

fn check_bytes(session: &Session, bytes: &[u8]) {
    let pattern = |i: usize| (i * 31 + (i >> 8) * 7 + (i >> 16) * 3) as u8;
    let expected: Vec<u8> = (0..session.bytes).map(pattern).collect();
    assert!(bytes == expected);
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, session.sha256);
}

#[test]
fn a_stream_of_kcp_go_gives_its_bytes() {
    let session = parse(include_str!("session-plain-stream.json"));
    check_bytes(&session, &replay(&session, "client", Mode::Stream).concat());
    assert_eq!(replay(&session, "server", Mode::Stream).concat(), b"done");
}

#[test]
fn messages_of_kcp_go_keep_their_boundaries() {
    let session = parse(include_str!("session-plain-message.json"));
    let messages = replay(&session, "client", Mode::Message);
    check_bytes(&session, &messages.concat());
    // A kcp-go session sends each write as messages of one segment.
    let cut = |&write: &usize| (0..write).step_by(MSS).map(move |at| MSS.min(write - at));
    let expected: Vec<usize> = session.writes.iter().flat_map(cut).collect();
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), expected);
    assert_eq!(replay(&session, "server", Mode::Message), [b"done"]);
    // Read as a byte stream the same datagrams are the same bytes.
    check_bytes(&session, &replay(&session, "client", Mode::Stream).concat());
}
