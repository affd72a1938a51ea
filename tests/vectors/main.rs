//! Recorded output of kcp-go, byte by byte. See `README.md` beside this file.

mod sessions;

/// Reads hexadecimal digits.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}
