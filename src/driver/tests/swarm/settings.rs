//! Settings of a stream that change while it runs.

use std::num::NonZeroU64;
use std::time::Duration;

use super::plan::TIMEOUT;
use crate::config::{AckPolicy, CongestionControl, KeepaliveInterval, Timing, WritePolicy};
use crate::fec::FecConfig;
use crate::stream::KcpStream;
use crate::testkit::rng::Rng;

const WINDOWS: [u16; 4] = [8, 32, 128, 1_024];

/// Changes one setting. Refused values are part of it. `copies`: datagrams may leave more than once.
pub(super) fn change(stream: &KcpStream, rng: &mut Rng, copies: bool) {
    let timeout = Some(Duration::from_micros(TIMEOUT));
    match rng.below(13) {
        0 => stream.set_windows(rng.pick(&WINDOWS), rng.pick(&WINDOWS)).unwrap(),
        1 => stream.set_timing(rng.pick(&[Timing::NORMAL, Timing::FAST3, Timing::KCP_DEFAULT])),
        2 => stream.set_congestion_control(rng.pick(&[
            CongestionControl::Bbr,
            CongestionControl::Reno,
            CongestionControl::Off,
        ])),
        3 => stream.set_ack_policy(rng.pick(&[
            AckPolicy::PerBatch,
            AckPolicy::Interval,
            AckPolicy::Immediate,
        ])),
        4 => stream.set_write_policy(rng.pick(&[WritePolicy::Immediate, WritePolicy::Delayed])),
        5 => drop(stream.set_mtu(rng.pick(&[300, 576, 1_200, 1_400]))),
        6 => {
            let limit = NonZeroU64::new(rng.spread(20_000, 1 << 30));
            stream.set_rate_limit(rng.pick(&[None, limit]));
        }
        7 => {
            let often = KeepaliveInterval::After(Duration::from_secs(rng.range(1, 20)));
            let interval = rng.pick(&[KeepaliveInterval::Auto, often]);
            stream.set_keepalive(interval, timeout).unwrap();
        }
        8 => stream.set_dead_peer_timeout(timeout).unwrap(),
        9 if copies => stream.set_duplicates(rng.below(3) as u8).unwrap(),
        10 => {
            let (data, parity) = rng.pick(&[(10, 3), (3, 1), (5, 5)]);
            drop(stream.set_fec(FecConfig::new(data, parity).unwrap()));
        }
        11 => stream.set_linger(timeout).unwrap(),
        _ => stream.network_changed(),
    }
}
