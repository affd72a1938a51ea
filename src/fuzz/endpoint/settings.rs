//! Settings of the world and of both endpoints, and their changes.

use std::time::Duration;

use super::third_party::Power;
use crate::config::{
    AcceptFilter, Config, Limits, Migration, Mode, PacketFilter, PathMode, Redundancy,
};
use crate::crypto::{Algorithm, Cipher};
use crate::fec::FecConfig;
use crate::fuzz::Choices;
use crate::fuzz::choices::CONFIG;

/// Most connections of an endpoint.
pub(super) const STREAMS: usize = 8;
/// The content of raw datagrams.
pub(super) const RAW: [u8; 4] = [0xff; 4];
/// Bytes of the settings: of the world, and of each endpoint.
pub(super) const SETTINGS: usize = 8 + 2 * (CONFIG + 22);
/// One cipher of each kind; `open_packet` has all. No key; a header without a key; a key and a
/// checksum; a key and a checksum that leaves bits uncovered; a tag.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::None,
    Algorithm::Null,
    Algorithm::Aes128,
    Algorithm::Salsa20,
    Algorithm::ChaCha20Poly1305,
    Algorithm::Aes128Gcm,
];
/// Ciphers under which connections take further paths.
const AEADS: [Algorithm; 2] = [Algorithm::Aes128Gcm, Algorithm::ChaCha20Poly1305];

/// Settings of the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) honest: bool,
    pub(super) power: Power,
    pub(super) algorithm: Algorithm,
    pub(super) paths: Option<PathMode>,
    /// Whether the timeouts are long. Only with several paths.
    is_patient: bool,
    /// Datagrams per GSO batch of each side.
    pub(super) batches: [usize; 2],
    /// Turns between two checks of a driver's invariants.
    pub(super) check_every: usize,
    pub(super) endings: Endings,
}

/// Ends of endpoints. An input has a random part of them: most would not live long under all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endings(u8);

impl Endings {
    pub(super) const DRAIN: u8 = 1;
    pub(super) const CLOSE: u8 = 2;
    pub(super) const HAND_OVER: u8 = 4;
    pub(super) const RESTART: u8 = 8;
    pub(super) const CRASH: u8 = 16;
    pub(super) const FATAL: u8 = 32;

    pub(super) fn has(self, ending: u8) -> bool {
        self.0 & ending != 0
    }
}

impl Setup {
    /// Takes 8 bytes.
    pub(super) fn draw(choices: &mut Choices<'_>) -> Self {
        let first = choices.byte();
        let (honest, power) = match first & 15 {
            4 | 12 => (false, Power::None),
            0 | 8..=11 => (false, Power::Sealing),
            1..=3 => (true, Power::None),
            _ => (true, Power::OnPath),
        };
        let uses_all = choices.pick(&[PathMode::Duplicate, PathMode::Aggregate]);
        // One input in four has connections with several paths.
        let paths = (first >> 5 & 3 == 2).then_some(match first >> 7 {
            0 => PathMode::Standby,
            _ => uses_all,
        });
        let algorithm = match paths {
            None => choices.pick(&ALGORITHMS),
            Some(_) => choices.pick(&AEADS),
        };
        // Without a key, every observer can write valid datagrams.
        let has_key = algorithm.key_len() > 0;
        let power = if power == Power::OnPath && !has_key { Power::None } else { power };
        let endings = Endings(choices.byte() & choices.byte());
        let mut batch = || choices.pick(&[0, 44, 3]);
        let batches = [batch(), batch()];
        let check_every = choices.pick(&[64, 64, 8, 1]);
        let is_patient = first & 16 != 0;
        Self { honest, power, algorithm, paths, is_patient, batches, check_every, endings }
    }

    /// The settings of one endpoint.
    pub(super) fn config(self, choices: &mut Choices<'_>) -> Config {
        let key = [7; 32];
        let cipher = Cipher::new(self.algorithm, &key[..self.algorithm.key_len()]);
        let cipher = cipher.expect("the right key");
        let mut config = Config::new().cipher(cipher.clone());
        config.kcp = choices.config(Mode::Stream, true);
        config.kcp.mtu = choices.pick(&[160, 576, 1_400]);
        config.kcp.close_notify &= choices.byte() & 7 != 7;
        let shapes = [None, None, Some((3, 1))];
        if let Some((data, parity)) = choices.pick(&shapes)
            && let Ok(fec) = FecConfig::new(data, parity)
        {
            config.kcp.redundancy = Redundancy::Fec(fec);
        }
        if !config.kcp.close_notify && config.kcp.redundancy.auto().is_some() {
            config.kcp.redundancy = Redundancy::Off;
        }
        config.migration = Some(match choices.byte() & 1 {
            0 if cipher.has_key() => Migration::AnyCipher,
            _ => Migration::Off,
        });
        config.assign_conv = choices.byte() & 3 == 3;
        config.linger = Duration::from_secs(choices.pick(&[0, 1, 10]));
        config.limits = limits(choices);
        let memory = choices.pick(&[1 << 18, 64 << 20]);
        let replay_window = choices.pick(&[0, 64]);
        let is_wide = choices.byte() & 1 == 0;
        if self.power != Power::None {
            config.limits.memory = memory;
            config.replay_window = replay_window;
            config.send_buffer = 16 << 10;
            if is_wide {
                config.kcp.recv_window = 1_024;
            }
        }
        draw_endpoint(&mut config, choices);
        if let Some(mode) = self.paths {
            (config.migration, config.path_mode) = (Some(Migration::Authenticated), mode);
            (config.assign_conv, config.kcp.close_notify) = (false, true);
            if self.is_patient {
                let long = Some(Duration::from_secs(60));
                (config.kcp.idle_timeout, config.kcp.dead_peer_timeout) = (long, long);
            }
        }
        config
    }
}

fn limits(choices: &mut Choices<'_>) -> Limits {
    Limits {
        backlog: choices.pick(&[1, 4]),
        max_unvalidated: choices.pick(&[1, 4, 100]),
        require_validation: choices.byte() & 1 == 0,
        max_connections: choices.pick(&[STREAMS, STREAMS, 2]),
        max_per_source: choices.pick(&[Some(STREAMS), None, Some(1)]),
        validation_timeout: Duration::from_secs(choices.pick(&[30, 30, 1])),
        ..Limits::default()
    }
}

/// Settings of the endpoint itself.
fn draw_endpoint(config: &mut Config, choices: &mut Choices<'_>) {
    // Without it, `connect` waits for the peer.
    config.early_data = choices.byte() & 3 != 3;
    config.conv = choices.pick(&[None, None, None, Some(7)]);
    config.connect_timeout = Duration::from_secs(choices.pick(&[10, 10, 1]));
    config.send_buffer = config.send_buffer.min(choices.pick(&[usize::MAX, 1, 5_000]));
    config.recv_buffer = config.recv_buffer.min(choices.pick(&[usize::MAX, 1, 5_000]));
    config.duplicates = choices.pick(&[0, 0, 0, 1, 8]);
    let filters = choices.byte();
    if filters & 7 == 7 {
        config.accept_filter = Some(AcceptFilter::new(|_, conv| conv % 2 == 0));
    }
    if filters & 56 == 56 {
        config.packet_filter = Some(PacketFilter::new(|_, datagram| datagram == RAW));
    }
}
