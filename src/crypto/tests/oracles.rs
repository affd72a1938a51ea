//! CFB compared with the crate cfb-mode.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cfb_equals_cfb_mode(
        key: [u8; 32],
        lens in vec(0_usize..=1_500, 1..=40),
        salt: u8,
    ) {
        let key_lens = [1, 5, 16, 24, 32];
        let pairs = Algorithm::ALL.iter().flat_map(|algorithm| key_lens.map(|len| (algorithm, len)));
        for (algorithm, key_len) in pairs {
            if Cipher::new(*algorithm, &key[..key_len]).is_err() {
                continue;
            }
            let Some(oracle) = oracle(*algorithm, &key[..key_len]) else { continue };
            let transform = transform(*algorithm, &key[..key_len]).unwrap();
            let plain: Vec<Vec<u8>> = lens
                .iter()
                .map(|len| pattern(*len).iter().map(|byte| byte ^ salt).collect())
                .collect();
            let mut ours = plain.clone();
            let mut slices: Vec<&mut [u8]> = ours.iter_mut().map(Vec::as_mut_slice).collect();
            transform.encrypt(&mut slices);
            for (ours, plain) in ours.iter_mut().zip(plain) {
                let mut theirs = plain.clone();
                oracle(&mut theirs);
                prop_assert!(*ours == theirs, "{}: {} bytes", algorithm, plain.len());
                transform.decrypt(ours);
                prop_assert!(*ours == plain, "{}: {} bytes", algorithm, plain.len());
            }
        }
    }
}

type Oracle = Box<dyn Fn(&mut [u8])>;

/// Encryption by cfb-mode, over the same block cipher.
fn oracle(algorithm: Algorithm, key: &[u8]) -> Option<Oracle> {
    match algorithm {
        Algorithm::Aes128 => Some(by_cfb_mode::<aes::Aes128>(key)),
        Algorithm::Aes192 => Some(by_cfb_mode::<aes::Aes192>(key)),
        Algorithm::Aes256 => Some(by_cfb_mode::<aes::Aes256>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::TripleDes => Some(by_cfb_mode::<des::TdesEde3>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Blowfish if key.len() < 4 => {
            // The crate needs four bytes or more; repeating the key yields the same schedule.
            Some(by_cfb_mode::<blowfish::Blowfish>(&key.repeat(7)))
        }
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Blowfish => Some(by_cfb_mode::<blowfish::Blowfish>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Cast5 => Some(by_cfb_mode::<cast5::Cast5>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Sm4 => Some(by_cfb_mode::<sm4::Sm4>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Twofish => Some(by_cfb_mode::<twofish::Twofish>(key)),
        _ => None,
    }
}

fn by_cfb_mode<C>(key: &[u8]) -> Oracle
where
    C: ::cipher::BlockCipherEncrypt + ::cipher::KeyInit + 'static,
{
    use ::cipher::InnerIvInit;
    let iv = 0xa773_4f9c_12ac_1b01_a415_f2c1_fc78_e66b_u128.to_be_bytes();
    let cipher = C::new_from_slice(key).unwrap();
    Box::new(move |bytes| {
        let iv = iv[..C::block_size()].try_into().unwrap();
        cfb_mode::Encryptor::<&C>::inner_iv_init(&cipher, iv).encrypt(bytes);
    })
}
