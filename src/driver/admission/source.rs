//! The source of an address, and the sources with the most entries of a table.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// An IPv4 address, or the /64 prefix of an IPv6 address, since one host has all addresses of its
/// prefix (RFC 7421).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Source(IpAddr);

impl Source {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => {
                let prefix = ip.to_bits() >> 64 << 64;
                Self(Ipv6Addr::from_bits(prefix).into())
            }
            ip => Self(ip),
        }
    }
}

/// Connections that the peers of each source have opened.
#[derive(Debug, Default)]
pub(crate) struct ConnectionsBySource(HashMap<Source, usize>);

impl ConnectionsBySource {
    /// A peer at `ip` has opened a connection, or moves one there.
    pub(crate) fn enter(&mut self, ip: IpAddr) {
        *self.0.entry(Source::of(ip)).or_default() += 1;
    }

    /// A connection with a peer at `ip` has ended, or moves away.
    pub(crate) fn leave(&mut self, ip: IpAddr) {
        if let Entry::Occupied(mut count) = self.0.entry(Source::of(ip)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(crate) fn count(&self, ip: IpAddr) -> usize {
        self.0.get(&Source::of(ip)).copied().unwrap_or(0)
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn total(&self) -> usize {
        self.0.values().sum()
    }
}

/// Keys of a table by source and time. A full table drops the oldest key of the source with the most keys,
/// as Longest Queue Drop does (Suter et al., "Design Considerations for Supporting TCP with Per-flow
/// Queueing", 1998). So no source loses a key to a source with more of them.
#[derive(Debug)]
pub(crate) struct KeysBySource<K> {
    keys: HashMap<Source, BTreeSet<(Instant, K)>>,
    /// The sources by their count; the last of equals has the oldest key.
    by_count: BTreeSet<(usize, Reverse<Option<Instant>>, Source)>,
}

impl<K> Default for KeysBySource<K> {
    fn default() -> Self {
        Self { keys: HashMap::new(), by_count: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> KeysBySource<K> {
    pub(crate) fn insert(&mut self, source: Source, at: Instant, key: K) {
        self.change(source, |keys| keys.insert((at, key)));
    }

    pub(crate) fn remove(&mut self, source: Source, at: Instant, key: K) {
        self.change(source, |keys| keys.remove(&(at, key)));
    }

    /// The oldest key of the source with the most keys.
    pub(crate) fn oldest_of_fullest(&self) -> Option<K> {
        let (_, _, source) = self.by_count.last()?;
        self.keys.get(source)?.first().map(|(_, key)| *key)
    }

    fn change(&mut self, source: Source, change: impl FnOnce(&mut BTreeSet<(Instant, K)>) -> bool) {
        let keys = self.keys.entry(source).or_default();
        self.by_count.remove(&place(source, keys));
        change(keys);
        if keys.is_empty() {
            self.keys.remove(&source);
        } else {
            self.by_count.insert(place(source, keys));
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.keys.len(), self.by_count.len());
        self.keys.values().map(BTreeSet::len).sum()
    }
}

/// The place of a source in `KeysBySource::by_count`.
fn place<K>(
    source: Source,
    keys: &BTreeSet<(Instant, K)>,
) -> (usize, Reverse<Option<Instant>>, Source)
where
    K: Ord,
{
    (keys.len(), Reverse(keys.first().map(|(at, _)| *at)), source)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_prefix() {
        let of = |ip: &str| Source::of(ip.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
    }

    #[test]
    fn fullest_source_loses_its_oldest_key_and_among_equals_the_oldest() {
        let source = |host: u8| Source::of([192, 0, 2, host].into());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keys = KeysBySource::default();
        for (host, second, key) in [(9, 1, 'a'), (1, 2, 'b'), (5, 3, 'c'), (1, 4, 'd')] {
            keys.insert(source(host), at(second), key);
        }
        assert_eq!((keys.oldest_of_fullest(), keys.len()), (Some('b'), 4));
        keys.remove(source(1), at(2), 'b');
        assert_eq!(keys.oldest_of_fullest(), Some('a'));
        keys.remove(source(9), at(1), 'a');
        assert_eq!(keys.oldest_of_fullest(), Some('c'));
        keys.remove(source(5), at(3), 'c');
        keys.remove(source(1), at(4), 'd');
        assert_eq!((keys.oldest_of_fullest(), keys.len(), keys.keys.len()), (None, 0, 0));
    }
}
