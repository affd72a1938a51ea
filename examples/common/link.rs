//! The options of a KCP link on a command line, under kcptun's names, and what becomes of them.

use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use kcpx::{
    AckPolicy, Cipher, Config, CongestionControl, FecConfig, KeepaliveInterval, Key, Redundancy,
    Timing, WritePolicy,
};

/// The default of `Config::idle_timeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Both sides need the same cipher and key; each chooses the rest for the data it sends and for its
/// own windows.
#[derive(Args)]
#[command(next_help_heading = "Link (both sides need the same --key and --crypt)")]
pub(crate) struct Link {
    /// Passphrase that both sides share
    #[arg(long)]
    key: Option<String>,
    /// Cipher, by kcptun's names: aes-128-gcm, chacha20-poly1305, aes, salsa20, none, null, ...
    #[arg(long, default_value = "aes-128-gcm")]
    pub(crate) crypt: String,
    /// Timing preset; each of --nodelay, --interval, --resend and --nc changes one of its values
    #[arg(long, value_enum, default_value_t = Mode::Fast)]
    mode: Mode,
    /// 1: retransmit after 30 ms at the earliest, not 100, and back off gently
    #[arg(long, value_name = "0|1", value_parser = value_parser!(u8).range(..=1))]
    nodelay: Option<u8>,
    /// KCP's interval in milliseconds, 10 to 5,000
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(10..=5_000))]
    interval: Option<u64>,
    /// Later transmissions whose acknowledgement makes a segment count as lost; 0 waits instead
    #[arg(long, value_name = "N")]
    resend: Option<u8>,
    /// 1: not KCP's congestion window, but a rate model
    #[arg(long, value_name = "0|1", value_parser = value_parser!(u8).range(..=1))]
    nc: Option<u8>,
    /// Congestion control, whatever --nc says
    #[arg(long, value_name = "bbr|reno|off")]
    congestion: Option<CongestionControl>,
    /// Largest datagram in bytes
    #[arg(long, default_value_t = 1350)]
    mtu: u16,
    /// Send window in datagrams
    #[arg(long, default_value_t = 1024)]
    sndwnd: u16,
    /// Receive window in datagrams
    #[arg(long, default_value_t = 1024)]
    rcvwnd: u16,
    /// Forward error correction: data packets of a group; with --parityshard 0 there is none
    #[arg(long, default_value_t = 10)]
    datashard: u8,
    /// Forward error correction: redundant packets of a group
    #[arg(long, default_value_t = 3)]
    parityshard: u8,
    /// Acknowledge every datagram by itself, instead of all that arrived together
    #[arg(long)]
    acknodelay: bool,
    /// Collect small writes for an interval
    #[arg(long)]
    writedelay: bool,
    /// Further copies of each datagram
    #[arg(long, value_name = "N", default_value_t = 0)]
    duplicates: u8,
    /// Bytes per second that leave on each connection, headers included; 0 is no limit
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    ratelimit: u64,
    /// Seconds without a datagram before a keepalive ping; 0 never sends one, and waits
    /// for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 15,
        value_parser = value_parser!(u64).range(..=21_600))]
    keepalive: u64,
    /// Buffers of a stream, between application and protocol, in bytes each way
    #[arg(long, value_name = "BYTES", default_value_t = 262_144)]
    streambuf: usize,
    /// Buffers of the UDP socket in bytes; 0 leaves the system's
    #[arg(long, value_name = "BYTES", default_value_t = 4_194_304)]
    sockbuf: usize,
    /// Class of service of what is sent, 0 to 63 (46: expedited forwarding)
    #[arg(long, default_value_t = 0)]
    dscp: u8,
}

/// nodelay, interval, resend, nc
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// 0, 40, 2, 1
    Normal,
    /// 0, 30, 2, 1
    Fast,
    /// 1, 20, 2, 1
    Fast2,
    /// 1, 10, 2, 1
    Fast3,
    /// 0, 50, 0, 0
    Manual,
}

impl Link {
    pub(crate) fn config(&self) -> Result<Config> {
        let (timing, congestion) = self.timing()?;
        let sockbuf = Some(self.sockbuf).filter(|size| *size > 0);
        let mut config = Config::new()
            .timing(timing)
            .congestion_control(congestion)
            .mtu(self.mtu)
            .windows(self.sndwnd, self.rcvwnd)
            .cipher(self.cipher()?)
            .socket_buffers(sockbuf, sockbuf)
            .dscp(Some(self.dscp).filter(|dscp| *dscp > 0))
            .rate_limit(NonZeroU64::new(self.ratelimit))
            .duplicates(self.duplicates)
            .send_buffer(self.streambuf)
            .recv_buffer(self.streambuf);
        if self.parityshard > 0 {
            let fec = FecConfig::new(self.datashard.into(), self.parityshard.into());
            config =
                config.redundancy(Redundancy::Fec(fec.context("--datashard and --parityshard")?));
        }
        if self.acknodelay {
            config = config.ack_policy(AckPolicy::Immediate);
        }
        if self.writedelay {
            config = config.write_policy(WritePolicy::Delayed);
        }
        if self.keepalive == 0 {
            config = config.keepalive(KeepaliveInterval::Never).idle_timeout(None);
        } else {
            // The idle timeout must be longer than a ping and its answer take.
            let after = Duration::from_secs(self.keepalive);
            let idle = after.saturating_mul(4).max(IDLE_TIMEOUT);
            config = config.keepalive(KeepaliveInterval::After(after)).idle_timeout(Some(idle));
        }
        config.validate()?;
        Ok(config)
    }

    fn timing(&self) -> Result<(Timing, CongestionControl)> {
        let (nodelay, interval, resend, nc) = match self.mode {
            Mode::Normal => (0, 40, 2, 1),
            Mode::Fast => (0, 30, 2, 1),
            Mode::Fast2 => (1, 20, 2, 1),
            Mode::Fast3 => (1, 10, 2, 1),
            Mode::Manual => (0, 50, 0, 0),
        };
        let of_nc = match self.nc.unwrap_or(nc) {
            0 => CongestionControl::Reno,
            _ => CongestionControl::Bbr,
        };
        let timing = Timing::new(
            self.nodelay.unwrap_or(nodelay) != 0,
            Duration::from_millis(self.interval.unwrap_or(interval)),
            NonZeroU8::new(self.resend.unwrap_or(resend)),
        )?;
        Ok((timing, self.congestion.unwrap_or(of_nc)))
    }

    fn cipher(&self) -> Result<Cipher> {
        let key = match &self.key {
            Some(passphrase) => Key::derive(passphrase, Key::KCPTUN_SALT),
            None => Key::new([]),
        };
        Cipher::from_name(&self.crypt, &key).with_context(|| match self.key {
            Some(_) => "--crypt".to_owned(),
            None => format!("--crypt {} needs a --key", self.crypt),
        })
    }
}
