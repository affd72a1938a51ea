//! Two whole endpoints, their applications, a network between them, and a third party that records,
//! replays, reflects, forges and delays.

pub(crate) mod laws;
mod links;
mod paths;
mod reader;
mod third_party;
mod world;

use std::time::{Duration, Instant};

use self::third_party::Power;
use self::world::{STREAMS, World};
use super::Choices;
use super::wire::{CLIENT_SIDE, SERVER_SIDE};
use crate::config::{Config, Limits, Migration, Mode, PathMode, Redundancy};
use crate::crypto::{Algorithm, Cipher};
use crate::fec::FecConfig;

/// Steps per input.
const STEPS: usize = 400;

/// No behaviour of applications, network, clock and third party makes an endpoint panic, spin,
/// exceed its memory, outlive its users, take more than four paths, or break the limits of `laws`. Unless datagrams are
/// forged, every stream is a prefix of the bytes written, and complete if it ends; under a cipher
/// with a key also if datagrams are replayed and altered.
///
/// # Panics
///
/// If that does not hold.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn endpoint(data: &[u8]) {
    let mut choices = Choices(data);
    let first = choices.byte();
    let (honest, power) = match first & 15 {
        4 | 12 => (false, Power::None),
        0 | 8..=11 => (false, Power::Sealing),
        1..=3 => (true, Power::None),
        _ => (true, Power::OnPath),
    };
    // One input in four has connections with several paths.
    let paths = (first >> 5 & 3 == 2).then_some(match first >> 7 {
        0 => PathMode::Standby,
        _ => choices.pick(&[PathMode::Duplicate, PathMode::Aggregate]),
    });
    let algorithm = match paths {
        None => choices.pick(Algorithm::ALL),
        Some(_) => choices.pick(&AEADS),
    };
    // Without a key, every observer can write valid datagrams.
    let power = if power == Power::OnPath && !has_key(algorithm) { Power::None } else { power };
    let (mut server, mut client) = configs(&mut choices, algorithm, power);
    if let Some(mode) = paths {
        for config in [&mut server, &mut client] {
            take_paths(config, mode);
            if first & 16 != 0 {
                let long = Some(Duration::from_secs(60));
                (config.kcp.idle_timeout, config.kcp.dead_peer_timeout) = (long, long);
            }
        }
    }
    let mut world = World::new(Instant::now(), &server, &client, honest, power, algorithm);
    if paths.is_some() {
        world.begin_paths();
    }
    for _ in 0..STEPS {
        if choices.0.is_empty() {
            break;
        }
        let step = choices.byte();
        match (step % 8, step >> 3 & 3) {
            (0, _) => world.connect(),
            (1, _) => world.pass_time(choices.pick(&[0, 1, 20, 200, 1_000, 15_000, 61_000, DAY])),
            (2, 1 | 2) if power != Power::None => world.third_party(&mut choices),
            (2, 3) if power != Power::None => match step >> 5 {
                0 | 1 => world.run_for(100, Some(SERVER_SIDE)),
                2 | 3 => world.run_for(100, Some(CLIENT_SIDE)),
                _ => world.run_for(1_000, None),
            },
            (2, _) => world.network(&mut choices),
            (3, 1..) if paths.is_some() => world.paths(&mut choices),
            (3, _) => world.turn_all(),
            _ => world.application(&mut choices),
        }
    }
    world.finish();
}

/// Milliseconds of a day.
const DAY: u64 = 86_400_000;

/// Ciphers under which connections take further paths.
const AEADS: [Algorithm; 2] = [Algorithm::Aes128Gcm, Algorithm::ChaCha20Poly1305];

fn take_paths(config: &mut Config, mode: PathMode) {
    (config.migration, config.path_mode) = (Some(Migration::Authenticated), mode);
    (config.assign_conv, config.kcp.close_notify) = (false, true);
}

fn has_key(algorithm: Algorithm) -> bool {
    algorithm.key_len() > 0
}

fn configs(choices: &mut Choices<'_>, algorithm: Algorithm, power: Power) -> (Config, Config) {
    let key = [7; 32];
    let cipher = Cipher::new(algorithm, &key[..algorithm.key_len()]).expect("the right key");
    let mut config = || {
        let mut config = Config::new().cipher(cipher.clone());
        config.kcp = choices.config(Mode::Stream, true);
        config.kcp.mtu = choices.pick(&[160, 576, 1_400]);
        config.kcp.close_notify = choices.byte() & 7 != 0;
        // `connect` is polled once; without a write it opens a moment later.
        config.early_data = true;
        let shapes = [None, None, Some((3, 1))];
        let shape = choices.pick(&shapes);
        let fec = shape.and_then(|(data, parity)| FecConfig::new(data, parity).ok());
        config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
        config.migration = Some(match choices.byte() & 1 {
            0 if cipher.has_key() => Migration::AnyCipher,
            _ => Migration::Off,
        });
        config.assign_conv = choices.byte() & 3 == 0;
        config.linger = Duration::from_secs(choices.pick(&[0, 1, 10]));
        config.limits = Limits {
            backlog: choices.pick(&[1, 4]),
            max_connections: STREAMS,
            max_per_source: Some(STREAMS),
            max_unvalidated: choices.pick(&[1, 4, 100]),
            require_validation: choices.byte() & 1 == 0,
            ..Limits::default()
        };
        if power != Power::None {
            config.limits.memory = choices.pick(&[1 << 18, 64 << 20]);
            config.replay_window = choices.pick(&[0, 64]);
            config.send_buffer = 16 << 10;
            if choices.byte() & 1 == 0 {
                config.kcp.recv_window = 1_024;
            }
        }
        config
    };
    (config(), config())
}
