//! Captures of the C library under a virtual clock: the program says what the datagrams say.

use kcpx::Mode;
use kcpx_interop::link::{Link, Path};
use kcpx_interop::others::CCore;
use kcpx_interop::peer::{Peer, Preset, Settings};
use kcpx_interop::tshark::Tshark;
use serde_json::Value;

use crate::dissector::shows_all;
use crate::record::{Capture, Datagram, number};

const CONV: u32 = 0x00c0_ffee;
const NANOS_IN_MILLI: u64 = 1_000_000;
/// Bytes of each side.
const TOTALS: [usize; 2] = [600_000, 70_000];
/// Bytes of a message: three segments.
const MESSAGE: usize = 3_000;
/// Milliseconds in which the server does not read.
const PAUSE: std::ops::Range<u64> = 100..20_000;
const KEYS: [&str; 2] = ["--crypt", "null"];

/// A transfer both ways, captured where the datagrams leave.
fn transfer(settings: &Settings, path: Path, seed: u64) -> Vec<Datagram> {
    let mut ends = [(); 2].map(|()| CCore::new(CONV, settings).unwrap());
    let mut links = [Link::new(path, seed), Link::new(path, !seed)];
    let (mut unsent, mut missing) = (TOTALS, TOTALS);
    let (mut sent, mut now) = (Vec::new(), 0);
    while missing != [0, 0] || !ends.iter().all(Peer::is_drained) {
        assert!(now < 600_000, "{missing:?} bytes are missing: {ends:?}");
        for side in 0..2 {
            while let Some(datagram) = links[1 - side].arrive(now) {
                ends[side].input(now, &datagram);
            }
            while unsent[side] > 0 {
                let message = vec![side as u8; unsent[side].min(MESSAGE)];
                let Some(taken) = ends[side].send(now, &message) else { break };
                unsent[side] -= taken;
            }
            while (side == 0 || !PAUSE.contains(&now))
                && let Some(bytes) = ends[side].recv()
            {
                missing[1 - side] -= bytes.len();
            }
            let mut out = Vec::new();
            ends[side].update(now, &mut out);
            for datagram in out {
                links[side].send(now, &datagram);
                sent.push((now * NANOS_IN_MILLI, side, datagram));
            }
        }
        let arrivals = links.iter().filter_map(Link::next);
        let updates = ends.iter().filter_map(|end| end.next(now));
        now = arrivals.chain(updates).min().unwrap().max(now + 1);
    }
    sent
}

/// What one side sent, read from its datagrams by the format of ikcp.c alone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Side {
    datagrams: u64,
    bytes: u64,
    segments: u64,
    payload: u64,
    again: u64,
    acks: u64,
    window_probes: u64,
    window: u64,
}

impl Side {
    fn of_datagrams(datagrams: &[Datagram], side: usize) -> Self {
        let (mut seen, mut said) = (std::collections::HashSet::new(), Self::default());
        for (_, _, datagram) in datagrams.iter().filter(|(_, from, _)| *from == side) {
            said.datagrams += 1;
            said.bytes += datagram.len() as u64;
            let mut rest = &datagram[..];
            while let Some((header, behind)) = rest.split_first_chunk::<24>() {
                let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
                assert_eq!(word(0), CONV);
                let (len, is_new) = (word(20) as usize, header[4] == 81 && seen.insert(word(12)));
                said.window = said.window.max(u16::from_le_bytes([header[6], header[7]]).into());
                match header[4] {
                    81 if is_new => {
                        (said.segments, said.payload) =
                            (said.segments + 1, said.payload + len as u64)
                    }
                    81 => said.again += 1,
                    82 => said.acks += 1,
                    83 => said.window_probes += 1,
                    84 => {}
                    other => panic!("command {other}"),
                }
                rest = &behind[len..];
            }
            assert!(rest.is_empty());
        }
        said
    }

    fn of_summary(side: &Value) -> Self {
        Self {
            datagrams: number(side, "datagrams"),
            bytes: number(side, "bytes"),
            segments: number(side, "segments"),
            payload: number(side, "payload"),
            again: number(side, "retransmissions") + number(side, "copies"),
            acks: number(side, "acks"),
            window_probes: number(side, "window_probes"),
            window: number(side, "window"),
        }
    }
}

#[test]
fn summary_of_the_c_library_says_what_its_datagrams_say() {
    let tshark = Tshark::find().unwrap();
    for (preset, mode, path) in [
        (Preset::Protocol, Mode::Stream, Path::CLEAN),
        (Preset::Normal, Mode::Message, Path::lossy(5)),
        (Preset::Fast3, Mode::Stream, Path::lossy(20)),
    ] {
        let settings = Settings { preset, mode, ..Settings::default() };
        let sent = transfer(&settings, path, 7);
        let capture = Capture::of(&sent);
        let connection = capture.connection(&KEYS);
        let theirs = [0, 1].map(|side| Side::of_datagrams(&sent, side));
        let found = [0, 1].map(|side| Side::of_summary(&connection["sides"][side]));
        println!("{preset:?}, {mode:?}, {path:?}: {found:?}");
        assert_eq!(found, theirs, "{connection}");
        assert_eq!(found.each_ref().map(|side| side.payload), TOTALS.map(|total| total as u64));
        // The server does not read for a while.
        assert!(number(&connection["sides"][1], "zero_windows") > 0, "{connection}");
        assert!(found[0].window_probes > 0, "{connection}");
        for side in connection["sides"].as_array().unwrap() {
            let (rtt, least) = (&side["rtt"], path.delay * 1_000);
            assert!(number(rtt, "samples") > 10 && number(rtt, "min_us") >= least, "{connection}");
        }
        if let Some(tshark) = &tshark {
            shows_all(tshark, &capture, &KEYS);
        }
    }
}
