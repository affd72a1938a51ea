//! Parsing of one datagram.

use crate::core::segment::{self, HEADER_LEN, Segments};

/// Parses arbitrary bytes: the parser agrees with a naive walk, and re-encodes each segment to the
/// same bytes.
///
/// # Panics
///
/// If the two differ.
pub fn segment(data: &[u8]) {
    let conv = data.first_chunk().map_or(0, |conv| u32::from_le_bytes(*conv));
    let walked = segment::validate(data, conv).is_ok();
    let naive = naive_walk(data, conv);
    assert_eq!(walked, naive.is_some());
    let segments: Vec<_> = Segments::new(data).collect();
    if let Some(naive) = naive {
        assert_eq!(segments.len(), naive.len());
        for ((header, payload), (at, len)) in segments.iter().zip(naive) {
            let mut written = Vec::new();
            header.emit(&mut written);
            assert_eq!(written, data[at..at + HEADER_LEN]);
            assert_eq!(*payload, &data[at + HEADER_LEN..at + HEADER_LEN + len]);
        }
    }
}

/// Offset and payload length of each segment, read byte by byte.
fn naive_walk(data: &[u8], conv: u32) -> Option<Vec<(usize, usize)>> {
    let word = |at: usize| -> u64 { (0..4).map(|i| u64::from(data[at + i]) << (8 * i)).sum() };
    let (mut at, mut found) = (0, Vec::new());
    while data.len() - at >= HEADER_LEN {
        let len = word(at + 20);
        let rest = (data.len() - at - HEADER_LEN) as u64;
        if word(at) != u64::from(conv) || !(81..=86).contains(&data[at + 4]) || len > rest {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        found.push((at, len));
        at += HEADER_LEN + len;
    }
    (!found.is_empty()).then_some(found)
}
