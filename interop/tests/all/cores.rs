//! Our state machine against other implementations, in memory: every byte arrives, in order, and
//! within a stated virtual time.
//!
//! A failure prints the command that replays just that case.

use anyhow::{Context as _, ensure};
use kcpx::{Config, ConnectionError, KeepaliveInterval, Mode};
use kcpx_interop::implementation::Implementation;
use kcpx_interop::link::{Path, Rng};
use kcpx_interop::ours::Ours;
use kcpx_interop::pair::{CONV, Pair, Reader};
use kcpx_interop::peer::{Preset, Settings};
use kcpx_interop::transfer::{Policies, Roles, Transfer, bytes, check, each};
use kcpx_interop::work;

const MODES: [Mode; 2] = [Mode::Stream, Mode::Message];

/// Takes digits of mixed radix off a seed, so that consecutive seeds cover every combination.
struct Digits(u64);

impl Digits {
    fn pick<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        let index = usize::try_from(self.0 % N as u64).unwrap();
        self.0 /= N as u64;
        choices[index]
    }
}

/// Presets, senders, modes and how the other side is driven are digits of the seed; windows,
/// policies, clocks, data and the path's mischief are drawn.
fn matrix_case(implementation: Implementation, loss: u8, seed: u64) -> anyhow::Result<()> {
    let mut digits = Digits(seed);
    let mut rng = Rng::new(seed ^ (u64::from(loss) << 32));
    let path = if loss == 0 { Path::CLEAN } else { Path::lossy(loss) };
    let mut transfer = Transfer::new(implementation, path);
    let preset = digits.pick(Preset::ALL);
    transfer.roles = digits.pick(Roles::ALL);
    let (ours, theirs) = (digits.pick(MODES), digits.pick(MODES));
    let eager = digits.pick([false, true]);
    let mut settings = |mode| Settings {
        preset,
        mode,
        send_window: rng.pick(&[32, 64, 128, 256, 1_024]),
        recv_window: rng.pick(&[32, 64, 128, 256, 1_024]),
        mtu: 1_400,
        eager,
        epoch: rng.next() as u32,
    };
    (transfer.ours, transfer.theirs) = (settings(ours), settings(theirs));
    // Every other clock wraps or changes sign on the way.
    transfer.ours.epoch = rng.pick(&[transfer.ours.epoch, u32::MAX - 100]);
    transfer.theirs.epoch = rng.pick(&[transfer.theirs.epoch, u32::MAX - 100, (1 << 31) - 100]);
    transfer.policies = Policies::draw(&mut rng);
    transfer.limit = limit(loss, transfer.roles.they && implementation != Implementation::Ours);
    let pair = transfer.run(&mut rng).with_context(|| format!("{transfer:?}"))?;
    let stats = pair.ours.kcp().stats();
    ensure!(loss > 0 || stats.retransmits() == 0, "retransmitted without loss: {stats:#?}");
    println!("  {implementation:?} {loss} % {preset:?}: {} ms", pair.now);
    Ok(())
}

/// The stated virtual time in milliseconds for 200 kB each way over a round trip of 20 ms to 50 ms.
/// The RTO of the other implementations backs off exponentially without bound, most of all where their
/// first flight of 128 segments meets a receive window of 32.
fn limit(loss: u8, they_send: bool) -> u64 {
    match (loss, they_send) {
        (0, _) => 10_000,
        (1..=5, false) => 20_000,
        (1..=5, true) => 60_000,
        (_, false) => 120_000,
        (_, true) => 2_400_000,
    }
}

macro_rules! matrix {
    ($($name:ident: $peer:ident, $loss:literal;)*) => {$(
        #[test]
        fn $name() {
            each(stringify!($name), 0..360, |seed| {
                matrix_case(Implementation::$peer, $loss, seed)
            });
        }
    )*};
}

matrix! {
    c_library_without_loss: C, 0;
    c_library_with_5_percent_loss: C, 5;
    c_library_with_20_percent_loss: C, 20;
    rust_port_without_loss: Rust, 0;
    rust_port_with_5_percent_loss: Rust, 5;
    rust_port_with_20_percent_loss: Rust, 20;
    ours_without_loss: Ours, 0;
    ours_with_5_percent_loss: Ours, 5;
    ours_with_20_percent_loss: Ours, 20;
}

#[test]
fn same_seed_gives_the_same_run() {
    let run = || {
        let pair = Transfer::new(Implementation::C, Path::lossy(5)).run(&mut Rng::new(1)).unwrap();
        (pair.now, pair.ours.kcp().stats())
    };
    assert_eq!(run(), run());
}

#[test]
fn different_mtus_deliver_everything() {
    each("different_mtus_deliver_everything", 0..168, |seed| {
        let mut digits = Digits(seed);
        let mut transfer = Transfer::new(digits.pick(Implementation::ALL), Path::lossy(5));
        (transfer.ours.mode, transfer.theirs.mode) = (digits.pick(MODES), digits.pick(MODES));
        (transfer.ours.mtu, transfer.theirs.mtu) = digits.pick([
            (1_400, 576),
            (576, 1_400),
            (1_400, 1_500),
            (50, 1_400),
            (1_400, 50),
            (1_200, 4_000),
            (9_000, 9_000),
        ]);
        // A message has to fit into the memory for 128 segments of ordinary size.
        let largest = transfer.ours.mtu.max(transfer.theirs.mtu);
        transfer.fragments =
            u16::try_from(128 * 1_540 / (u32::from(largest) + 40)).unwrap().min(127);
        transfer.limit = 120_000;
        let pair = transfer.run(&mut Rng::new(seed)).with_context(|| format!("{transfer:?}"))?;
        println!("  {:?}: {} ms", (transfer.ours.mtu, transfer.theirs.mtu), pair.now);
        Ok(())
    });
}

#[test]
fn message_beyond_receive_memory_is_a_protocol_violation() {
    each("message_beyond_receive_memory_is_a_protocol_violation", 0..6, |seed| {
        let mut digits = Digits(seed);
        // Our own sender would not even start, the window is advertised.
        let implementation = digits.pick([Implementation::C, Implementation::Rust]);
        let path = digits.pick([Path::CLEAN, Path::lossy(5)]);
        let mut rng = Rng::new(seed);
        let ours = Settings { mode: Mode::Message, ..Settings::default() };
        let theirs = Settings { mtu: 4_000, send_window: 512, ..ours };
        let mut pair = Pair::new(implementation, (&ours, &theirs), path, &mut rng)?;
        pair.they_write(&[vec![1; 3_976], vec![2; 127 * 3_976]]);
        let result = pair.run_until(60_000, |_| false);
        let ended = pair.ours.kcp().close_reason();
        ensure!(ended == Some(ConnectionError::ProtocolViolation), "{ended:?}: {result:?}");
        ensure!(pair.bytes_read().0 == 3_976, "the message before it was lost");
        Ok(())
    });
}

#[test]
fn sender_stays_within_the_default_receive_window_of_the_peer() {
    each("sender_stays_within_the_default_receive_window_of_the_peer", 0..12, |seed| {
        let mut digits = Digits(seed);
        let mut transfer = Transfer::new(digits.pick(Implementation::ALL), Path::CLEAN);
        transfer.roles = Roles { we: true, they: false };
        (transfer.ours.send_window, transfer.ours.recv_window) = (1_024, 1_024);
        (transfer.theirs.send_window, transfer.theirs.recv_window) = (32, 128);
        transfer.theirs.eager = digits.pick([false, true]);
        // A reader that lets the window close.
        transfer.readers.1 = digits.pick([Reader::QUICK, Reader { burst: 4, pause: 50 }]);
        transfer.limit = 30_000;
        let pair = transfer.run(&mut Rng::new(seed)).with_context(|| format!("{transfer:?}"))?;
        let stats = pair.ours.kcp().stats();
        // Nothing is lost on the way, so every retransmission is spurious.
        ensure!(stats.retransmits() == 0, "it was refused: {stats:#?}");
        println!("  {} ms, {} window probes", pair.now, stats.probes.zero_window);
        Ok(())
    });
}

#[test]
fn zero_window_reopens_with_every_implementation() {
    each("zero_window_reopens_with_every_implementation", 0..72, |seed| {
        let mut digits = Digits(seed);
        let loss = digits.pick([0, 5, 20]);
        let mut transfer = Transfer::new(digits.pick(Implementation::ALL), Path::lossy(loss));
        transfer.theirs.eager = digits.pick([false, true]);
        let window = digits.pick([32, 128]);
        (transfer.ours.recv_window, transfer.ours.send_window) = (window, 512);
        (transfer.theirs.recv_window, transfer.theirs.send_window) = (128, 512);
        let mut rng = Rng::new(seed);
        // Sleeps for longer than the first window lasts.
        let mut reader = || Reader { burst: rng.size(1, 200), pause: rng.range(100, 3_000) };
        transfer.readers = (reader(), reader());
        transfer.limit = 900_000;
        let pair = transfer.run(&mut rng).with_context(|| format!("{transfer:?}"))?;
        println!("  {} ms, {} window probes", pair.now, pair.ours.kcp().stats().probes.zero_window);
        Ok(())
    });
}

#[test]
fn messages_of_127_fragments_and_empty_messages_are_received() {
    each("messages_of_127_fragments_and_empty_messages_are_received", 0..36, |seed| {
        let mut digits = Digits(seed);
        let implementation = digits.pick(Implementation::ALL);
        let mode = digits.pick(MODES);
        let path = digits.pick([Path::CLEAN, Path::lossy(5)]);
        let mut rng = Rng::new(seed);
        let ours = Settings { mode, ..Settings::default() };
        let theirs = Settings { mode: Mode::Message, recv_window: 128, ..Settings::default() };
        let mut pair = Pair::new(implementation, (&ours, &theirs), path, &mut rng)?;
        // Our own side of the other end learns the window of ours from an answer to the first
        // message; the others send what they are given.
        let mut writes = work::Messages { total: 300_000, mss: 1_376, fragments: 127, empty: true }
            .draw(&mut rng);
        writes.push(Vec::new());
        writes.push(vec![7; 3_000]);
        let empty = writes.iter().filter(|write| write.is_empty()).count();
        ensure!(empty > 1, "nothing to see");
        pair.they_write(&writes);
        let all = bytes(&writes);
        pair.run_until(60_000, |pair| pair.is_settled() && pair.bytes_read().0 == all)?;
        // Ours skips them.
        writes.retain(|write| !write.is_empty());
        check("to us", mode == Mode::Message, &writes, pair.we_got())?;
        println!("  {implementation:?} {mode:?}: {} ms, {empty} empty", pair.now);
        Ok(())
    });
}

#[test]
fn messages_of_255_fragments_and_empty_messages_are_sent() {
    each("messages_of_255_fragments_and_empty_messages_are_sent", 0..12, |seed| {
        let mut digits = Digits(seed);
        let implementation = digits.pick(Implementation::ALL);
        let path = digits.pick([Path::CLEAN, Path::lossy(5)]);
        let (window, fragments) = digits.pick([(128, 128), (512, 255)]);
        let mut rng = Rng::new(seed);
        let ours = Settings { mode: Mode::Message, send_window: 512, ..Settings::default() };
        let theirs = Settings { mode: Mode::Message, recv_window: window, ..Settings::default() };
        let mut pair = Pair::new(implementation, (&ours, &theirs), path, &mut rng)?;
        let mut writes =
            work::Messages { total: 600_000, mss: 1_376, fragments, empty: true }.draw(&mut rng);
        writes.extend([Vec::new(), vec![7; 3_000]]);
        pair.we_write(&writes);
        let all = bytes(&writes);
        pair.run_until(60_000, |pair| pair.is_settled() && pair.bytes_read().1 == all)?;
        if implementation == Implementation::Ours {
            writes.retain(|write| !write.is_empty());
        }
        check("to them", true, &writes, pair.they_got())?;
        ensure!(pair.ours.kcp().max_message_size() == fragments * 1_376, "a different limit");
        println!("  {implementation:?} {window}: {} ms", pair.now);
        Ok(())
    });
}

#[test]
fn message_mode_writes_are_cut_as_kcp_go_cuts_them() {
    each("message_mode_writes_are_cut_as_kcp_go_cuts_them", 0..6, |seed| {
        let mut digits = Digits(seed);
        let implementation = digits.pick(Implementation::ALL);
        let path = digits.pick([Path::CLEAN, Path::lossy(5)]);
        let mut rng = Rng::new(seed);
        let settings = Settings { mode: Mode::Message, ..Settings::default() };
        let ours = Ours::new(CONV, &settings, &mut rng, |config| config)?.in_pieces();
        let theirs = implementation.build(CONV, &settings, &mut rng)?;
        let mut pair = Pair::of(ours, theirs, path, &mut rng);
        let writes = work::stream(&mut rng, 200_000);
        pair.we_write(&writes);
        pair.run_until(60_000, |pair| pair.is_settled() && pair.bytes_read().1 == 200_000)?;
        let pieces: Vec<Vec<u8>> =
            writes.iter().flat_map(|write| write.chunks(1_376)).map(Vec::from).collect();
        check("to them", true, &pieces, pair.they_got())
    });
}

/// Rule: W-22.
#[test]
fn ping_is_acked_and_leaves_the_streams_unchanged() {
    each("ping_is_acked_and_leaves_the_streams_unchanged", 0..60, |seed| {
        let mut digits = Digits(seed);
        let implementation = digits.pick(Implementation::ALL);
        let path = digits.pick([Path::CLEAN, Path::lossy(20)]);
        let mut rng = Rng::new(seed);
        let settings = Settings { eager: digits.pick([false, true]), ..Settings::default() };
        let mut pair = Pair::new(implementation, (&settings, &settings), path, &mut rng)?;
        // As long as it or its answer may be lost it takes another one each second.
        while !pair.ours.kcp().is_established() {
            ensure!(pair.now <= 30_000, "no answer");
            pair.ours.ping(pair.now);
            pair.run_for(1_001)?;
        }
        let stats = pair.ours.kcp().stats();
        ensure!(path.loss > 0 || stats.probes.pings == 1, "one is enough: {stats:#?}");
        ensure!(
            stats.anomalies.invalid_acks == 0 || path.duplicates > 0,
            "not understood: {stats:#?}"
        );
        ensure!(pair.they_got().is_empty() && pair.we_got().is_empty(), "data from nowhere");
        // The streams still start where they start.
        let writes = work::stream(&mut rng, 50_000);
        pair.we_write(&writes);
        pair.they_write(&writes);
        let all = (50_000, 50_000);
        pair.run_until(90_000, |pair| pair.is_settled() && pair.bytes_read() == all)?;
        check("to them", false, &writes, pair.they_got())?;
        check("to us", false, &writes, pair.we_got())
    });
}

#[test]
fn keepalive_pings_keep_the_connection_and_the_streams() {
    each("keepalive_pings_keep_the_connection_and_the_streams", 0..12, |seed| {
        let mut digits = Digits(seed);
        let implementation = digits.pick(Implementation::ALL);
        let path = digits.pick([Path::CLEAN, Path::lossy(20)]);
        let mut rng = Rng::new(seed);
        let settings = Settings { eager: digits.pick([false, true]), ..Settings::default() };
        let second = std::time::Duration::from_secs(1);
        let often = |config: Config| {
            config.keepalive(KeepaliveInterval::After(second)).idle_timeout(Some(15 * second))
        };
        let ours = Ours::new(CONV, &settings, &mut rng, often)?;
        let theirs = implementation.build(CONV, &settings, &mut rng)?;
        let mut pair = Pair::of(ours, theirs, path, &mut rng);
        let mut all = Vec::new();
        for round in 1..=5 {
            let writes = work::stream(&mut rng, 20_000);
            pair.we_write(&writes);
            pair.they_write(&writes);
            all.extend(writes);
            let bytes = (round * 20_000, round * 20_000);
            let limit = pair.now + 30_000;
            pair.run_until(limit, |pair| pair.is_settled() && pair.bytes_read() == bytes)?;
            // Longer than the idle timeout: the answers to pings keep the connection.
            pair.run_for(30_000)?;
        }
        check("to them", false, &all, pair.they_got())?;
        check("to us", false, &all, pair.we_got())?;
        let probes = pair.ours.kcp().stats().probes.pings;
        ensure!((100..=200).contains(&probes), "{probes} probes in 150 s of rest");
        Ok(())
    });
}

#[test]
fn peer_restart_ends_with_peer_state_lost() {
    each("peer_restart_ends_with_peer_state_lost", 0..12, |seed| {
        let mut digits = Digits(seed);
        let implementation = digits.pick(Implementation::ALL);
        let path = digits.pick([Path::CLEAN, Path::lossy(5)]);
        let before = digits.pick([20_000, 400_000]);
        let mut rng = Rng::new(seed);
        let settings = Settings::default();
        let mut pair = Pair::new(implementation, (&settings, &settings), path, &mut rng)?;
        let writes = work::stream(&mut rng, before);
        pair.we_write(&writes);
        pair.run_until(30_000, |pair| pair.is_settled() && pair.bytes_read().1 == before)?;
        // Retransmissions in flight would be new data to the new state machine.
        pair.run_for(1_000)?;
        pair.theirs = implementation.build(CONV, &settings, &mut rng)?;
        pair.we_write(&work::stream(&mut rng, 20_000));
        let limit = pair.now + 60_000;
        let result = pair.run_until(limit, |pair| pair.bytes_read().1 > before);
        ensure!(result.is_err(), "a new state machine took the middle of an old stream");
        let ended = pair.ours.kcp().close_reason();
        ensure!(ended == Some(ConnectionError::PeerStateLost), "{ended:?}: {result:?}");
        println!("  {implementation:?} after {before} bytes: {} ms", pair.now);
        ensure!(pair.theirs.recv().is_none(), "it delivered something");
        Ok(())
    });
}
