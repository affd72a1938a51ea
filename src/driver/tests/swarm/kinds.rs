//! The kinds of fault and behaviour, and the subset of a run (Groce et al., "Swarm Testing", 2012).

use crate::testkit::rng::Rng;

/// A kind of fault or behaviour: on or off in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Loss,
    Bursts,
    OneWayLoss,
    Corruption,
    Duplication,
    Reordering,
    Jitter,
    Bottleneck,
    Partition,
    OneWayPartition,
    Suspension,
    Drift,
    ServerCrash,
    ClientCrash,
    Exit,
    Move,
    SendErrors,
    RecvErrors,
    BlockedSends,
    SmallMtu,
    MemoryLimit,
    ConnectionLimits,
    SlowReaders,
    Cancellation,
    Drops,
    Settings,
    Cipher,
    Fec,
    Redundancy,
    Protocol,
    Drain,
    HandOver,
    Shards,
    TwoPaths,
    Datagrams,
    Forgery,
}

impl Kind {
    pub(super) const ALL: &[Self] = &[
        Self::Loss,
        Self::Bursts,
        Self::OneWayLoss,
        Self::Corruption,
        Self::Duplication,
        Self::Reordering,
        Self::Jitter,
        Self::Bottleneck,
        Self::Partition,
        Self::OneWayPartition,
        Self::Suspension,
        Self::Drift,
        Self::ServerCrash,
        Self::ClientCrash,
        Self::Exit,
        Self::Move,
        Self::SendErrors,
        Self::RecvErrors,
        Self::BlockedSends,
        Self::SmallMtu,
        Self::MemoryLimit,
        Self::ConnectionLimits,
        Self::SlowReaders,
        Self::Cancellation,
        Self::Drops,
        Self::Settings,
        Self::Cipher,
        Self::Fec,
        Self::Redundancy,
        Self::Protocol,
        Self::Drain,
        Self::HandOver,
        Self::Shards,
        Self::TwoPaths,
        Self::Datagrams,
        Self::Forgery,
    ];
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u64);

impl Kinds {
    /// Each kind with the same chance, which differs from run to run.
    pub(super) fn draw(seed: u64) -> Self {
        let mut rng = Rng::keyed(seed, 0);
        let chance = rng.pick(&[100_000, 250_000, 500_000]);
        Kind::ALL.iter().filter(|_| rng.chance(chance)).fold(Self(0), |set, kind| set.with(*kind))
    }

    fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind as u64)
    }

    pub(super) fn without(self, kind: Kind) -> Self {
        Self(self.0 & !(1 << kind as u64))
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.0 >> kind as u64 & 1 == 1
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(move |kind| self.has(*kind))
    }

    /// The kinds in a list of names such as `Loss,ClientCrash`.
    pub(super) fn parse(names: &str) -> Result<Self, String> {
        names.split(',').filter(|name| !name.is_empty()).try_fold(Self(0), |set, name| {
            let kind = Kind::ALL.iter().find(|kind| format!("{kind:?}") == name);
            let error = || format!("unknown kind {name:?}: use some of {:?}", Kind::ALL);
            kind.map(|kind| set.with(*kind)).ok_or_else(error)
        })
    }

    /// The list of names that [`Self::parse`] reads.
    pub(super) fn names(self) -> String {
        self.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(",")
    }
}

#[test]
fn names_of_kinds_are_read_back() {
    for seed in 0..100 {
        let kinds = Kinds::draw(seed);
        assert_eq!(Kinds::parse(&kinds.names()), Ok(kinds));
    }
    let error = Kinds::parse("Loss,Los").unwrap_err();
    assert!(error.starts_with("unknown kind \"Los\": use some of [Loss, Bursts"), "{error}");
}
