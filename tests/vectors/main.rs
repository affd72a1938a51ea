//! Recorded output of kcp-go, byte by byte. See `README.md` beside this file.

mod crypt;
mod fec;
mod oob;
mod sessions;

/// Decodes hexadecimal digits.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// The text file has values that no packet shows: bare ciphers and FEC coefficients.
#[cfg(feature = "_testkit")]
#[test]
fn text_vectors_match() {
    let (ciphers, coefficients) = (crypt::crypt_rows(), fec::rs_rows());
    assert!(ciphers == 300 || (ciphers == 125 && !cfg!(feature = "legacy-ciphers")));
    assert_eq!(coefficients, 11);
    println!("kcpgo-vectors.txt: {} ok", ciphers + coefficients);
}
