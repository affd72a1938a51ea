//! Replays recorded conversations of kcp-go: its datagrams give exactly the bytes that were
//! written, and in message mode the messages.

use std::time::{Duration, Instant};

use kcpx::core::{Kcp, Origin, Seed};
use kcpx::{KcpConfig, Mode};
use sha2::{Digest, Sha256};

/// Payload of a full segment in these conversations: 1,400 bytes less a header.
const MSS: usize = 1_376;

#[derive(Debug, Default)]
struct Datagram {
    at: Duration,
    from_client: bool,
    lost: bool,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Session {
    conv: u32,
    bytes: usize,
    sha256: String,
    writes: Vec<usize>,
    datagrams: Vec<Datagram>,
}

/// Reads just what these files hold: one field or array element per line.
fn parse(text: &str) -> Session {
    let mut session = Session::default();
    let mut datagram = None;
    let mut writes = false;
    for line in text.lines() {
        let line = line.trim().trim_end_matches(',');
        let (name, value) = line.split_once(": ").unwrap_or(("", line));
        let (name, value) = (name.trim_matches('"'), value.trim_matches('"'));
        match (name, datagram.as_mut()) {
            ("conv", _) => session.conv = value.parse().unwrap(),
            ("bytes", _) => session.bytes = value.parse().unwrap(),
            ("sha256", _) => value.clone_into(&mut session.sha256),
            ("writes", _) => writes = true,
            ("ms", None) => {
                let at = Duration::from_millis(value.parse().unwrap());
                datagram = Some(Datagram { at, ..Datagram::default() });
            }
            ("from", Some(datagram)) => datagram.from_client = value == "client",
            ("lost", Some(datagram)) => datagram.lost = value == "true",
            ("wire", Some(datagram)) => datagram.bytes = unhex(value),
            ("", _) if line == "]" => writes = false,
            ("", _) if line == "}" => session.datagrams.extend(datagram.take()),
            ("", None) if writes => session.writes.push(value.parse().unwrap()),
            _ => {}
        }
    }
    assert!(session.datagrams.len() > 50, "the file was understood");
    session
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Everything that a fresh core delivers when it is fed one side of the conversation.
fn replay(session: &Session, from_client: bool, mode: Mode) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut config = KcpConfig::new();
    config.mode = mode;
    let mut kcp = Kcp::new(session.conv, &config, start, Seed::default()).unwrap();
    let mut chunks = Vec::new();
    for datagram in session.datagrams.iter().filter(|d| d.from_client == from_client && !d.lost) {
        let now = start + datagram.at;
        kcp.input(now, &datagram.bytes, Origin::Wire).unwrap();
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
    let session = parse(include_str!("vectors/session-plain-stream.json"));
    check_bytes(&session, &replay(&session, true, Mode::Stream).concat());
    assert_eq!(replay(&session, false, Mode::Stream).concat(), b"done");
}

#[test]
fn messages_of_kcp_go_keep_their_boundaries() {
    let session = parse(include_str!("vectors/session-plain-message.json"));
    let messages = replay(&session, true, Mode::Message);
    check_bytes(&session, &messages.concat());
    // A kcp-go session sends each write as messages of one segment.
    let cut = |&write: &usize| (0..write).step_by(MSS).map(move |at| MSS.min(write - at));
    let expected: Vec<usize> = session.writes.iter().flat_map(cut).collect();
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), expected);
    assert_eq!(replay(&session, false, Mode::Message), [b"done"]);
    // Read as a byte stream the same datagrams are the same bytes.
    check_bytes(&session, &replay(&session, true, Mode::Stream).concat());
}
