//! Packets that kcp-go sealed: the public ciphers seal and open the same bytes. With `_testkit` also the bare
//! ciphers.

use std::collections::BTreeMap;

use kcpx::crypto::{Overhead, PacketCipher};
use kcpx::{Algorithm, Cipher, ConfigError};
use serde::Deserialize;

use crate::unhex;

#[derive(Debug, Deserialize)]
struct Packet {
    cipher: String,
    key: String,
    nonce: String,
    payload: String,
    wire: String,
}

#[derive(Debug, Deserialize)]
struct Packets {
    vectors: Vec<Packet>,
}

/// Returns the algorithm, or `None` if it is not compiled in.
fn algorithm(name: &str) -> Option<Algorithm> {
    match Algorithm::from_name(name) {
        Ok(algorithm) => Some(algorithm),
        Err(ConfigError::CipherNotCompiled { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn check_packet(row: &Packet, cipher: &dyn PacketCipher) {
    let (nonce, payload, wire) = (unhex(&row.nonce), unhex(&row.payload), unhex(&row.wire));
    let Overhead { nonce: nonce_len, header_len: head, trailer_len: tail } = cipher.overhead();
    assert_eq!((nonce.len(), head + payload.len() + tail), (nonce_len, wire.len()));

    // `seal` overwrites the bytes that belong to neither nonce nor body.
    let mut sealed = vec![0xee; wire.len()];
    sealed[..nonce_len].copy_from_slice(&nonce);
    sealed[head..head + payload.len()].copy_from_slice(&payload);
    cipher.seal(&mut [&mut sealed]);
    assert!(sealed == wire, "{} seals {} bytes otherwise", row.cipher, payload.len());

    let mut opened = wire;
    cipher.open(&mut opened).unwrap();
    assert_eq!(opened[..nonce_len], nonce);
    assert_eq!(opened[head..head + payload.len()], payload);
}

/// Rules: W-1, W-3.
#[test]
fn kcp_go_packets_open_and_seal_identically() {
    let packets: Packets = serde_json::from_str(include_str!("crypt.json")).unwrap();
    let (mut checked, mut left_out) = (BTreeMap::new(), BTreeMap::new());
    for row in &packets.vectors {
        let Some(algorithm) = algorithm(&row.cipher) else {
            *left_out.entry(&row.cipher).or_insert(0) += 1;
            continue;
        };
        let key = unhex(&row.key);
        // The file has a key for the cipher "none", which ignores it.
        assert!(key.len() == algorithm.key_len() || algorithm == Algorithm::None);
        let cipher = Cipher::new(algorithm, &key).unwrap();
        check_packet(row, &cipher);
        *checked.entry(&row.cipher).or_insert(0) += 1;
    }
    for (name, count) in &checked {
        println!("crypt.json: {name}: {count}");
    }
    for (name, count) in &left_out {
        println!("crypt.json: {name}: {count} left out, for want of the feature legacy-ciphers");
    }
    let total: usize = checked.values().sum();
    assert!(total > 0 && total + left_out.values().sum::<usize>() == packets.vectors.len());
    println!("crypt.json: {total} vectors ok");
}

/// Checks the `crypt` rows of kcpgo-vectors.txt: whole packets under the bare cipher, without a checksum.
/// Returns the number of rows.
#[cfg(feature = "_testkit")]
pub(crate) fn crypt_rows() -> usize {
    let mut checked = 0;
    for line in include_str!("kcpgo-vectors.txt").lines() {
        let row: Vec<_> = line.split_ascii_whitespace().collect();
        let ["crypt", name, key, len, out] = row[..] else { continue };
        if algorithm(name).is_none() {
            continue;
        }
        let len: usize = len.parse().unwrap();
        let plain: Vec<u8> = (0..len).map(|i| (len + 31 * i) as u8).collect();
        let (key, out) = (unhex(key), unhex(out));
        let mut packet = plain.clone();
        let bare = kcpx::fuzz::Bare::new(name, &key).unwrap();
        bare.encrypt(&mut [&mut packet]);
        assert!(packet == out, "{name} encrypts {len} bytes otherwise");
        bare.decrypt(&mut packet);
        assert!(packet == plain, "{name} decrypts {len} bytes otherwise");
        checked += 1;
    }
    checked
}
