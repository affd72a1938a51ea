//! The command line.

use crate::peers::Peer;
use crate::{CARRIERS, GO};

/// 1 TiB.
const MAX_MIB: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Arguments {
    /// Bytes of a transfer, all streams together.
    pub(crate) total: usize,
    /// At least 1.
    pub(crate) rounds: usize,
    /// Some of [`CARRIERS`]; none for all.
    carriers: Vec<String>,
    /// Parts of peers' names; none for all.
    peers: Vec<String>,
}

impl Arguments {
    /// Numbers, which are MIB and ROUNDS, and names, in any order.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut numbers = Vec::new();
        let (mut carriers, mut peers) = (Vec::new(), Vec::new());
        for argument in arguments {
            if let Ok(number) = argument.parse() {
                numbers.push(number);
            } else if CARRIERS.contains(&argument.as_str()) {
                carriers.push(argument.clone());
            } else if peer_names().any(|name| name.contains(argument.as_str())) {
                peers.push(argument.clone());
            } else {
                let names: Vec<_> = CARRIERS.into_iter().chain(peer_names()).collect();
                let names = names.join(", ");
                return Err(format!(
                    "NAME {argument:?}: must be a carrier or in a name of {names}"
                ));
            }
        }
        let (mib, rounds) = match numbers[..] {
            [] => (256, 5),
            [mib] => (mib, 5),
            [mib, rounds] => (mib, rounds),
            _ => return Err(format!("{numbers:?}: must be two numbers at most, MIB and ROUNDS")),
        };
        if !(1..=MAX_MIB).contains(&mib) {
            return Err(format!("MIB {mib}: must be from 1 to {MAX_MIB}"));
        }
        if rounds == 0 {
            return Err("ROUNDS 0: must be at least 1".to_owned());
        }
        Ok(Self { total: mib << 20, rounds, carriers, peers })
    }

    pub(crate) fn wants_carrier(&self, carrier: &str) -> bool {
        self.carriers.is_empty() || self.carriers.iter().any(|name| name == carrier)
    }

    pub(crate) fn wants_peer(&self, peer: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|part| peer.contains(part.as_str()))
    }
}

fn peer_names() -> impl Iterator<Item = &'static str> {
    Peer::ALL.into_iter().map(Peer::name).chain(GO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_choose_sizes_carriers_and_peers() {
        let all = parse("").unwrap();
        assert_eq!((all.total, all.rounds), (256 << 20, 5));
        assert!(all.wants_carrier("kcp") && all.wants_peer("raw"));
        let some = parse("tcp 64 yamux 3 Go").unwrap();
        assert_eq!((some.total, some.rounds), (64 << 20, 3));
        assert!(some.wants_carrier("tcp") && !some.wants_carrier("kcp"));
        assert!(some.wants_peer("yamux 0.14") && some.wants_peer(GO[0]));
        assert!(!some.wants_peer("raw"));
    }

    #[test]
    fn arguments_out_of_range_are_refused_with_what_is_allowed() {
        for (line, allowed) in [
            ("256 0", "ROUNDS 0: must be at least 1"),
            ("0 1", "MIB 0: must be from 1 to 1048576"),
            ("1048577", "MIB 1048577: must be from 1 to 1048576"),
            ("1 2 3", "[1, 2, 3]: must be two numbers at most, MIB and ROUNDS"),
            ("yamx", "NAME \"yamx\": must be a carrier or in a name of tcp, duplex, kcp, raw, "),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.starts_with(allowed), "{error}");
        }
    }
}
