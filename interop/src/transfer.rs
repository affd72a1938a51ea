//! One transfer from the first write to the last acknowledgement, and what must hold afterwards.

use std::ops::Range;

use anyhow::ensure;
use kcpx::{AckPolicy, Config, Mode, WritePolicy};

use crate::implementation::Implementation;
use crate::link::{Path, Rng};
use crate::ours::Ours;
use crate::pair::{CONV, Pair, Reader};
use crate::peer::Settings;
use crate::{SEED_VARIABLE, seeds, work};

/// Runs `case` for each seed, and prints how to replay a failing one.
///
/// # Panics
///
/// When a case fails.
pub fn each(test: &str, range: Range<u64>, case: impl Fn(u64) -> anyhow::Result<()>) {
    for seed in seeds(range) {
        // Printed first, so that it is also there when something inside panics.
        println!("{SEED_VARIABLE}={seed}");
        if let Err(error) = case(seed) {
            panic!(
                "{error:#}\nreplay: {SEED_VARIABLE}={seed} cargo test -p kcpx-interop \
                 --test all {test} -- --nocapture"
            );
        }
    }
}

/// Checks what one side received; messages have to keep their boundaries.
///
/// # Errors
///
/// When it is not what was written.
pub fn check(
    way: &str,
    messages: bool,
    writes: &[Vec<u8>],
    received: &[Vec<u8>],
) -> anyhow::Result<()> {
    if messages {
        let (sent, got) = (writes.len(), received.len());
        ensure!(sent == got, "{way}: {got} messages arrived of {sent}");
        let differs = writes.iter().zip(received).position(|(a, b)| a != b);
        ensure!(differs.is_none(), "{way}: message {differs:?} differs");
    }
    ensure!(writes.concat() == received.concat(), "{way}: the bytes differ");
    Ok(())
}

/// Bytes of all writes.
#[must_use]
pub fn bytes(writes: &[Vec<u8>]) -> usize {
    writes.iter().map(Vec::len).sum()
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    /// Our side.
    pub we: bool,
    /// The other side.
    pub they: bool,
}

impl Roles {
    /// We, they, both.
    pub const ALL: [Self; 3] = [
        Self { we: true, they: false },
        Self { we: false, they: true },
        Self { we: true, they: true },
    ];
}

/// Settings that only our side has.
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    /// When acknowledgements leave.
    pub acks: AckPolicy,
    /// When written data leaves.
    pub writes: WritePolicy,
}

impl Policies {
    /// The defaults.
    #[must_use]
    pub fn usual() -> Self {
        Self { acks: AckPolicy::PerBatch, writes: WritePolicy::Immediate }
    }

    /// Any of them.
    pub fn draw(rng: &mut Rng) -> Self {
        Self {
            acks: rng.pick(&[AckPolicy::PerBatch, AckPolicy::Interval, AckPolicy::Immediate]),
            writes: rng.pick(&[WritePolicy::Immediate, WritePolicy::Delayed]),
        }
    }

    fn apply(self, config: Config) -> Config {
        config.ack_policy(self.acks).write_policy(self.writes)
    }
}

/// One transfer.
#[derive(Debug)]
pub struct Transfer {
    /// The other side.
    pub implementation: Implementation,
    /// The way there and back.
    pub path: Path,
    /// Our settings.
    pub ours: Settings,
    /// Our further settings.
    pub policies: Policies,
    /// Their settings.
    pub theirs: Settings,
    /// Who sends.
    pub roles: Roles,
    /// How our application and theirs read.
    pub readers: (Reader, Reader),
    /// Bytes that each sender sends, at least.
    pub total: usize,
    /// Most fragments of a message.
    pub fragments: u16,
    /// Virtual milliseconds until everything is read and acknowledged.
    pub limit: u64,
}

impl Transfer {
    /// 200 kB each way at once with default settings in at most 10 s.
    #[must_use]
    pub fn new(implementation: Implementation, path: Path) -> Self {
        Self {
            implementation,
            path,
            ours: Settings::default(),
            policies: Policies::usual(),
            theirs: Settings::default(),
            roles: Roles::ALL[2],
            readers: (Reader::QUICK, Reader::QUICK),
            total: 200_000,
            fragments: 127,
            limit: 10_000,
        }
    }

    /// A message arrives only if all its fragments fit into the receive window, and leaves ours
    /// only if they fit into the send window. Ours has segments of 1,408 bytes until an MTU above 1,472 is
    /// proved.
    fn writes(&self, from: &Settings, to: &Settings, rng: &mut Rng) -> Vec<Vec<u8>> {
        match from.mode {
            Mode::Stream => work::stream(rng, self.total),
            _ => work::Messages {
                total: self.total,
                mss: from.mss().min(1_408),
                fragments: usize::from(from.send_window.min(to.recv_window).min(self.fragments)),
                empty: false,
            }
            .draw(rng),
        }
    }

    /// Runs it, checks what arrived, and gives the pair as it ended.
    ///
    /// # Errors
    ///
    /// When something differs, or it takes longer than its limit.
    pub fn run(&self, rng: &mut Rng) -> anyhow::Result<Pair> {
        let ours = Ours::new(CONV, &self.ours, rng, |config| self.policies.apply(config))?;
        let theirs = self.implementation.build(CONV, &self.theirs, rng)?;
        let mut pair = Pair::of(ours, theirs, self.path, rng);
        pair.set_readers(self.readers.0, self.readers.1);
        let our_writes =
            if self.roles.we { self.writes(&self.ours, &self.theirs, rng) } else { Vec::new() };
        let their_writes =
            if self.roles.they { self.writes(&self.theirs, &self.ours, rng) } else { Vec::new() };
        pair.we_write(&our_writes);
        pair.they_write(&their_writes);
        let all = (bytes(&their_writes), bytes(&our_writes));
        pair.run_until(self.limit, |pair| pair.is_settled() && pair.bytes_read() == all)?;
        let finished = pair.now;
        // Datagrams still under way must not add anything.
        pair.run_for(2_000)?;
        pair.now = finished;
        let messages = self.ours.mode == Mode::Message && self.theirs.mode == Mode::Message;
        check("to them", messages, &our_writes, pair.they_got())?;
        check("to us", messages, &their_writes, pair.we_got())?;
        let stats = pair.ours.kcp().stats();
        ensure!(stats.anomalies.invalid_una == 0, "impossible acknowledgement: {stats:#?}");
        ensure!(stats.received.payload_bytes == all.0 as u64, "bytes received: {stats:#?}");
        ensure!(stats.sent.payload_bytes == all.1 as u64, "bytes sent: {stats:#?}");
        ensure!(!self.roles.we || pair.ours.kcp().is_established(), "no proof of the peer");
        Ok(pair)
    }
}
