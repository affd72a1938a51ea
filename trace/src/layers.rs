//! From a UDP payload to KCP datagrams: batches that a capture has as one packet, the cipher, and FEC.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kcpx::crypto::{Key, PacketCipher as _};
use kcpx::fec::{FecDecoder, FecFlag, HEADER_LEN, fec_flag};
use kcpx::proto::segment;
use kcpx::{Algorithm, Cipher};

use crate::capture::Packet;

/// The largest datagram of a batch that is looked for. The system sends batches through the loopback device in
/// one piece, and has received ones in one piece too.
const MAX_DATAGRAM: usize = 1_500;
/// Datagrams of a batch.
const MAX_BATCH: usize = 128;
/// Payloads in a row of one path that are no batch, after which batches are not looked for on it.
const MAX_MISSES: u32 = 32;
/// The same for all paths. A search opens the payload in some 1,400 sizes, and with a wrong key it never ends in a
/// batch.
const MAX_ALL_MISSES: u32 = 1_024;
/// Directions whose FEC groups are collected. What others lost is not recovered.
const MAX_DECODERS: usize = 256;
/// Packets of a direction that wait until the layout of its FEC is known, and their bytes in all directions.
const MAX_EARLY: usize = 512;
const MAX_EARLY_BYTES: usize = 16 << 20;
/// Directions whose batches are remembered.
const MAX_PATHS: usize = 4_096;

/// How a capture's datagrams were sealed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Keys {
    /// Cipher, by its name in kcptun
    #[arg(long, value_name = "NAME", default_value = "null", value_parser = algorithm)]
    pub(crate) crypt: Algorithm,
    /// Passphrase, from which the key is derived as kcptun does
    #[arg(long, value_name = "PASSPHRASE", conflicts_with = "key_hex")]
    pub(crate) key: Option<String>,
    /// The key itself, in hexadecimal digits
    #[arg(long, value_name = "HEX")]
    pub(crate) key_hex: Option<String>,
    /// Salt of the passphrase: another one than kcptun's
    #[arg(long, value_name = "TEXT", requires = "key")]
    pub(crate) salt: Option<String>,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let names = || Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>();
    Algorithm::from_name(name)
        .map_err(|_| format!("there is no such cipher; use one of {}", names().join(", ")))
}

impl Keys {
    fn cipher(&self) -> Result<Cipher> {
        let needs_key = ![Algorithm::Null, Algorithm::None].contains(&self.crypt);
        let given = self.key.is_some() || self.key_hex.is_some();
        ensure!(given || !needs_key, "cipher {} needs --key or --key-hex", self.crypt.name());
        ensure!(
            !given || needs_key,
            "a key is given, but no cipher that uses one: name it with --crypt, such as --crypt aes"
        );
        if let Some(digits) = &self.key_hex {
            return Ok(Cipher::new(self.crypt, &bytes_of(digits)?)?);
        }
        let salt = self.salt.as_deref().map_or_else(|| Key::KCPTUN_SALT.as_ref(), str::as_bytes);
        let key = Key::derive(self.key.as_deref().unwrap_or_default(), salt);
        Ok(Cipher::from_name(self.crypt.name(), &key)?)
    }
}

fn bytes_of(digits: &str) -> Result<Vec<u8>> {
    let wrong = || anyhow::anyhow!("--key-hex takes pairs of hexadecimal digits, such as 00ff");
    ensure!(digits.len().is_multiple_of(2) && digits.is_ascii(), wrong());
    let pairs = (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2).unwrap_or_default());
    pairs.map(|pair| u8::from_str_radix(pair, 16).map_err(|_| wrong())).collect()
}

/// What a datagram was, without its cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// KCP segments, behind the FEC header with this number if there is one.
    Kcp(Option<u32>),
    /// KCP segments that FEC recovered: no packet of the capture has them.
    Recovered,
    Parity(u32),
    OutOfBand,
}

/// A datagram without cipher.
#[derive(Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) at: u64,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) kind: Kind,
    /// Without the FEC header of KCP segments, with the header of the others.
    pub(crate) bytes: &'a [u8],
    /// With FEC header, as a peer without cipher would send it.
    pub(crate) opened: &'a [u8],
    /// Bytes of the UDP payload; 0 if it was recovered.
    pub(crate) wire_len: usize,
}

/// Counters of a whole capture.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Opened {
    pub(crate) datagrams: u64,
    /// Neither the cipher nor KCP takes them.
    pub(crate) undecoded: u64,
    /// The capture has a part of them only.
    pub(crate) cut: u64,
    /// That arrived in batches which the capture has as one packet each.
    pub(crate) batched: u64,
    /// What FEC recovered.
    pub(crate) recovered: u64,
}

/// What a direction's batches were.
#[derive(Clone, Copy, Debug, Default)]
struct Batches {
    /// Of the datagrams of the latest one.
    size: usize,
    misses: u32,
}

/// The FEC decoder of a direction.
struct Decoder {
    fec: FecDecoder,
    /// The packets so far, until the layout is known: a decoder that knows it reads them again.
    early: Option<Vec<(Instant, Vec<u8>)>>,
}

/// Opens the datagrams of a capture.
pub(crate) struct Layers {
    cipher: Cipher,
    origin: Instant,
    first: Option<u64>,
    decoders: HashMap<(SocketAddr, SocketAddr), Decoder>,
    /// Bytes of the packets that wait for a layout.
    early_bytes: usize,
    batches: HashMap<(SocketAddr, SocketAddr), Batches>,
    /// Searches for a batch since the last one that was found.
    misses: u32,
    pub(crate) counters: Opened,
}

impl Layers {
    pub(crate) fn new(keys: &Keys) -> Result<Self> {
        Ok(Self {
            cipher: keys.cipher()?,
            origin: Instant::now(),
            first: None,
            decoders: HashMap::new(),
            early_bytes: 0,
            batches: HashMap::new(),
            misses: 0,
            counters: Opened::default(),
        })
    }

    /// Calls `each` with the datagrams of a UDP packet, and with those that FEC recovers.
    pub(crate) fn open(
        &mut self,
        packet: &Packet<'_>,
        mut each: impl FnMut(&Datagram<'_>) -> Result<()>,
    ) -> Result<()> {
        if packet.is_cut {
            (self.counters.datagrams, self.counters.cut) =
                (self.counters.datagrams + 1, self.counters.cut + 1);
            return Ok(());
        }
        let whole = packet.payload;
        if let Some((kind, opened)) = self.opened(whole) {
            return self.decoded(packet, whole.len(), kind, &opened, &mut each);
        }
        let Some(size) = self.batched_size(packet) else {
            self.counters.datagrams += 1;
            self.counters.undecoded += 1;
            return Ok(());
        };
        for datagram in whole.chunks(size) {
            self.counters.batched += 1;
            if let Some((kind, opened)) = self.opened(datagram) {
                self.decoded(packet, datagram.len(), kind, &opened, &mut each)?;
            } else {
                self.counters.datagrams += 1;
                self.counters.undecoded += 1;
            }
        }
        Ok(())
    }

    /// Size of the datagrams of a batch: all of a batch have one, and the last one may be shorter.
    fn batched_size(&mut self, packet: &Packet<'_>) -> Option<usize> {
        let (whole, path) = (packet.payload, (packet.from, packet.to));
        let fits = |size: &usize| {
            let mut datagrams = whole.chunks(*size);
            let first = datagrams.next().and_then(|first| self.opened(first));
            first.is_some() && datagrams.next().is_some_and(|second| self.opened(second).is_some())
        };
        let known = self.batches.get(&path).copied().unwrap_or_default();
        let overhead = self.cipher.overhead();
        let least = overhead.header_len + overhead.trailer_len + segment::HEADER_LEN;
        let least = least.max(whole.len() / MAX_BATCH);
        if (least..whole.len()).contains(&known.size) && fits(&known.size) {
            return Some(known.size);
        }
        if known.misses >= MAX_MISSES || self.misses >= MAX_ALL_MISSES {
            return None;
        }
        let found = (least..whole.len().min(MAX_DATAGRAM + 1)).rev().find(fits);
        self.misses = if found.is_some() { 0 } else { self.misses + 1 };
        if self.batches.len() < MAX_PATHS || self.batches.contains_key(&path) {
            let batches = self.batches.entry(path).or_default();
            match found {
                Some(size) => *batches = Batches { size, misses: 0 },
                None => batches.misses += 1,
            }
        }
        found
    }

    /// A datagram without cipher, and what it is; `None` if the cipher or KCP does not take it.
    fn opened(&self, payload: &[u8]) -> Option<(Kind, Vec<u8>)> {
        let mut payload = payload.to_vec();
        self.cipher.open(&mut payload).ok()?;
        let overhead = self.cipher.overhead();
        payload.truncate(payload.len().checked_sub(overhead.trailer_len)?);
        payload.drain(..overhead.header_len.min(payload.len()));
        kind(&payload).map(|kind| (kind, payload))
    }

    fn decoded(
        &mut self,
        packet: &Packet<'_>,
        wire_len: usize,
        kind: Kind,
        opened: &[u8],
        each: &mut impl FnMut(&Datagram<'_>) -> Result<()>,
    ) -> Result<()> {
        self.counters.datagrams += 1;
        let has_fec = matches!(kind, Kind::Kcp(Some(_)) | Kind::Parity(_));
        let bytes = match kind {
            Kind::Kcp(Some(_)) => opened.get(HEADER_LEN..).unwrap_or_default(),
            _ => opened,
        };
        let datagram = Datagram {
            at: packet.at,
            from: packet.from,
            to: packet.to,
            kind,
            bytes,
            opened,
            wire_len,
        };
        each(&datagram)?;
        if has_fec { self.recover(&datagram, each) } else { Ok(()) }
    }

    fn recover(
        &mut self,
        datagram: &Datagram<'_>,
        each: &mut impl FnMut(&Datagram<'_>) -> Result<()>,
    ) -> Result<()> {
        let path = (datagram.from, datagram.to);
        if self.decoders.len() >= MAX_DECODERS && !self.decoders.contains_key(&path) {
            return Ok(());
        }
        let first = *self.first.get_or_insert(datagram.at);
        let now = self.origin + Duration::from_nanos(datagram.at.saturating_sub(first));
        let decoder = self
            .decoders
            .entry(path)
            .or_insert_with(|| Decoder { fec: FecDecoder::new(None), early: Some(Vec::new()) });
        let mut recovered = Vec::new();
        decoder.fec.input(now, datagram.opened, |bytes| takes(bytes, &mut recovered));
        if let Some(mut early) = decoder.early.take() {
            early.push((now, datagram.opened.to_vec()));
            self.early_bytes += datagram.opened.len();
            let layout = decoder.fec.layout();
            if layout.is_none() && early.len() < MAX_EARLY && self.early_bytes < MAX_EARLY_BYTES {
                decoder.early = Some(early);
            } else {
                self.early_bytes -= early.iter().map(|(_, packet)| packet.len()).sum::<usize>();
                if layout.is_some() {
                    decoder.fec = FecDecoder::new(layout);
                    recovered.clear();
                    for (at, packet) in &early {
                        decoder.fec.input(*at, packet, |bytes| takes(bytes, &mut recovered));
                    }
                }
            }
        }
        for bytes in recovered {
            self.counters.recovered += 1;
            let (at, from, to) = (datagram.at, datagram.from, datagram.to);
            let (kind, wire_len) = (Kind::Recovered, 0);
            each(&Datagram { at, from, to, kind, bytes: &bytes, opened: &bytes, wire_len })?;
        }
        Ok(())
    }
}

/// Takes what FEC recovered, if it is KCP.
fn takes(bytes: &[u8], recovered: &mut Vec<Vec<u8>>) -> bool {
    let is_kcp = kind(bytes) == Some(Kind::Kcp(None));
    if is_kcp {
        recovered.push(bytes.to_vec());
    }
    is_kcp
}

/// What an opened datagram is; `None` if it is no KCP.
fn kind(opened: &[u8]) -> Option<Kind> {
    let number = || opened.first_chunk().map(|number| u32::from_le_bytes(*number));
    let is_kcp = |datagram: &[u8]| {
        let conv = datagram.first_chunk().map(|conv| u32::from_le_bytes(*conv));
        conv.is_some_and(|conv| segment::validate(datagram, conv).is_ok())
    };
    match fec_flag(opened) {
        // Without a cipher the size alone says that more datagrams follow.
        FecFlag::Data if has_size(opened) => {
            is_kcp(opened.get(HEADER_LEN..)?).then_some(Kind::Kcp(Some(number()?)))
        }
        FecFlag::Data => None,
        FecFlag::Parity => Some(Kind::Parity(number()?)),
        FecFlag::OutOfBand => Some(Kind::OutOfBand),
        _ => is_kcp(opened).then_some(Kind::Kcp(None)),
    }
}

/// Whether the size of a FEC packet with data fits. It counts itself.
fn has_size(opened: &[u8]) -> bool {
    let size = opened.get(6..HEADER_LEN).and_then(|size| size.first_chunk());
    size.is_some_and(|size| usize::from(u16::from_le_bytes(*size)) + 6 == opened.len())
}
