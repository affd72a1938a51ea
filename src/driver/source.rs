//! What the limits per source count: whom a source address stands for, and how often.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or the /64 prefix of an IPv6 address, since one host has all addresses of its
/// prefix (RFC 7421).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl Source {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => {
                let prefix = ip.to_bits() >> 64 << 64;
                Self(Ipv6Addr::from_bits(prefix).into())
            }
            ip => Self(ip),
        }
    }
}

/// Counts per source.
#[derive(Debug, Default)]
pub(super) struct SourceCounts(HashMap<Source, usize>);

impl SourceCounts {
    /// The count of the source of `ip`.
    pub(super) fn get(&self, ip: IpAddr) -> usize {
        self.0.get(&Source::of(ip)).copied().unwrap_or(0)
    }

    /// Counts one of the source of `ip`.
    pub(super) fn add(&mut self, ip: IpAddr) {
        *self.0.entry(Source::of(ip)).or_default() += 1;
    }

    /// Takes one of the source of `ip` back. Returns false if there was none.
    pub(super) fn remove(&mut self, ip: IpAddr) -> bool {
        let source = Source::of(ip);
        let Some(count) = self.0.get_mut(&source) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&source);
        }
        true
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn total(&self) -> usize {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_prefix() {
        let of = |ip: &str| Source::of(ip.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
    }
}
