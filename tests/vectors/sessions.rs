//! Replays recorded sessions of kcp-go. The datagrams, after decryption and FEC recovery, give exactly the
//! written bytes, and in message mode the messages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kcpx::crypto::PacketCipher;
use kcpx::fec::{self, FecDecoder, FecFlag};
use kcpx::proto::segment::{Command, Segments};
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::{Algorithm, Cipher, Config, FecConfig, Mode};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::unhex;

/// Payload of a full segment without cipher and FEC: 1,400 bytes without the header.
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
    cipher: String,
    key: String,
    data_shards: usize,
    parity_shards: usize,
    stream_mode: bool,
    bytes: usize,
    sha256: String,
    writes: Vec<usize>,
    datagrams: Vec<Datagram>,
}

fn parse(text: &str) -> Session {
    let session: Session = serde_json::from_str(text).unwrap();
    assert!(session.datagrams.len() > 20, "the file holds a session");
    session
}

impl Session {
    fn mode(&self) -> Mode {
        if self.stream_mode { Mode::Stream } else { Mode::Message }
    }

    /// Returns the packets of one side: time, decrypted packet, lost or not. `None` if the cipher is not
    /// compiled in.
    fn packets(&self, from: &str) -> Option<Vec<(Duration, Vec<u8>, bool)>> {
        let name = if self.cipher.is_empty() { "null" } else { &self.cipher };
        let cipher = Cipher::new(Algorithm::from_name(name).ok()?, &unhex(&self.key)).unwrap();
        let overhead = cipher.overhead();
        let side = self.datagrams.iter().filter(|datagram| datagram.from == from);
        let open = |datagram: &Datagram| {
            let mut packet = unhex(&datagram.wire);
            cipher.open(&mut packet).unwrap();
            packet.truncate(packet.len() - overhead.trailer_len);
            packet.drain(..overhead.header_len);
            (Duration::from_millis(datagram.ms), packet, datagram.lost)
        };
        Some(side.map(open).collect())
    }

    fn shards(&self) -> usize {
        self.data_shards + self.parity_shards
    }

    fn fec(&self) -> Option<FecConfig> {
        FecConfig::new(self.data_shards, self.parity_shards).ok()
    }

    /// Returns the KCP datagrams of lost data shards that FEC can recover, since enough shards of their group
    /// arrived.
    fn recoverable(&self, packets: &[(Duration, Vec<u8>, bool)]) -> Vec<Vec<u8>> {
        let group = |packet: &[u8]| {
            let seqid = u32::from_le_bytes(packet[..4].try_into().unwrap());
            seqid as usize / self.shards()
        };
        let mut arrived = HashMap::<usize, usize>::new();
        for (_, packet, _) in packets.iter().filter(|(_, _, lost)| !lost) {
            *arrived.entry(group(packet)).or_default() += 1;
        }
        let lost = packets.iter().filter(|(_, packet, lost)| *lost && packet[4] == 0xf1);
        lost.filter(|(_, packet, _)| {
            arrived.get(&group(packet)).is_some_and(|count| *count >= self.data_shards)
        })
        .map(|(_, packet, _)| packet[fec::HEADER_LEN..].to_vec())
        .collect()
    }
}

/// Delivered chunks, or datagrams.
type Chunks = Vec<Vec<u8>>;

/// Feeds one side of the session to a new core. Returns the delivered chunks and the recovered datagrams.
fn replay(session: &Session, from: &str, mode: Mode) -> Option<(Chunks, Chunks)> {
    let start = Instant::now();
    let config = Config::new().mode(mode);
    let mut kcp = Kcp::new(session.conv, &config, start, Seed::default()).unwrap();
    let mut decoder = FecDecoder::new(session.fec());
    let (mut chunks, mut recovered) = (Vec::new(), Vec::new());
    for (at, packet, _) in session.packets(from)?.iter().filter(|(_, _, lost)| !lost) {
        let now = start + *at;
        let direct = match fec::fec_flag(packet) {
            FecFlag::Plain => Some(&packet[..]),
            FecFlag::Data => Some(&packet[fec::HEADER_LEN..]),
            _ => None,
        };
        if let Some(datagram) = direct {
            kcp.input(now, datagram, PacketType::Regular).unwrap();
        }
        if session.fec().is_some() {
            decoder.input(now, packet, |datagram| {
                kcp.input(now, datagram, PacketType::Fec).unwrap();
                recovered.push(datagram.to_vec());
                true
            });
        }
        chunks.extend(std::iter::from_fn(|| kcp.recv()).map(|chunk| chunk.to_vec()));
        check_answers(&mut kcp, now);
    }
    // The recorded peer gets no command that it does not know, whichever way the session ends.
    let end = start + Duration::from_secs(3_600);
    kcp.close(end);
    check_answers(&mut kcp, end);
    assert!(!kcp.peer_supports_close() && !kcp.peer_has_closed());
    assert_eq!(kcp.close_reason(), None);
    let stats = kcp.stats();
    assert_eq!(
        (stats.anomalies.out_of_window_segments, stats.received.payload_bytes),
        (0, total(&chunks))
    );
    Some((chunks, recovered))
}

/// Asserts that all sent segments have one of the four commands of every implementation.
fn check_answers(kcp: &mut Kcp, now: Instant) {
    let mut answer = Vec::new();
    while kcp.poll_transmit(now, &mut answer).is_some() {
        let known = Segments::new(&answer).all(|(header, _)| header.command != Command::Control);
        assert!(known, "a CONTROL segment to a peer without the capability");
        answer.clear();
    }
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

macro_rules! sessions {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("session-", $name, ".json")))),*]
    };
}

const SESSIONS: [(&str, &str); 13] = sessions![
    "plain-stream",
    "plain-message",
    "plain-fec-10-3",
    "plain-fec-10-3-loss-8",
    "aes-128",
    "aes-128-fec-10-3",
    "aes-128-gcm-fec-10-3-loss-8",
    "aes-256-fec-5-2-loss-10",
    "aes-256-gcm",
    "blowfish",
    "chacha20-poly1305-fec-3-1",
    "salsa20-fec-10-3",
    "xor-fec-2-1",
];

/// Rules: W-1, W-3.
#[test]
fn recorded_kcp_go_sessions_deliver_their_bytes() {
    let (mut checked, mut all_recovered) = (0, 0);
    for (name, text) in SESSIONS {
        let session = parse(text);
        let Some((chunks, there)) = replay(&session, "client", session.mode()) else {
            println!("sessions: left out {name}, since this build has not its cipher");
            continue;
        };
        check_bytes(&session, &chunks.concat());
        let (answer, back) = replay(&session, "server", session.mode()).unwrap();
        assert_eq!(answer.concat(), b"done");
        let mut lost = 0;
        for (side, mut recovered) in [("client", there), ("server", back)] {
            let packets = session.packets(side).unwrap();
            let mut expected = session.fec().map_or(vec![], |_| session.recoverable(&packets));
            expected.sort();
            recovered.sort();
            assert!(recovered == expected, "{name}: what was lost comes back as it was sent");
            lost += packets.iter().filter(|(_, _, lost)| *lost).count();
            all_recovered += recovered.len();
        }
        assert_eq!(lost > 0, name.contains("loss"));
        checked += 1;
    }
    assert!(all_recovered >= 6, "{all_recovered} datagrams came back");
    println!("sessions: {checked} ok");
}

#[test]
fn messages_keep_their_boundaries() {
    let session = parse(include_str!("session-plain-message.json"));
    let (messages, _) = replay(&session, "client", Mode::Message).unwrap();
    // A kcp-go session sends each write as messages of one segment.
    let cut = |&write: &usize| (0..write).step_by(MSS).map(move |at| MSS.min(write - at));
    let expected: Vec<usize> = session.writes.iter().flat_map(cut).collect();
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), expected);
    assert_eq!(replay(&session, "server", Mode::Message).unwrap().0, [b"done"]);
    // The same datagrams give the same bytes in stream mode.
    check_bytes(&session, &replay(&session, "client", Mode::Stream).unwrap().0.concat());
}
