//! Packets of kcp-go, byte by byte.

use std::fmt::Write as _;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Two segments, the parity of both, and an out-of-band packet, as sent under FEC 2+1.
const BODIES: [&str; 4] = [
    "00000000f1001f0044332211510020000403020100000000000000000500000068656c6c6f",
    "01000000f1002100443322115100200004030201010000000000000007000000776f726c642121",
    "02000000f20063004433221151002000040302010200000000000000010000005671506c794242",
    "fffffffff3000900443322116f6f62",
];

/// The same two segments without FEC.
const PLAIN: [&str; 2] = [
    "44332211510020000403020100000000000000000500000068656c6c6f",
    "443322115100200004030201010000000000000007000000776f726c642121",
];

#[test]
fn packets_of_a_kcp_go_session_are_equal() {
    let check = |name: &str, bodies: &[&str], wire: &[&str]| {
        let algorithm = match Algorithm::from_name(name) {
            Ok(algorithm) => algorithm,
            Err(error) => return assert!(matches!(error, ConfigError::CipherNotCompiled { .. })),
        };
        let cipher = cipher(algorithm);
        let mut nonce = 0;
        assert_eq!(bodies.len(), wire.len());
        for (body, wire) in bodies.iter().zip(wire) {
            let mut packet = sealed(&cipher, nonce, &unhex(body));
            assert_eq!(hex(&packet), *wire, "{name}");
            cipher.open(&mut packet).unwrap();
            let Overhead { header_len: head, trailer_len: tail, nonce: nonce_len } =
                cipher.overhead();
            assert_eq!(hex(&packet[head..packet.len() - tail]), *body, "{name}");
            nonce += nonce_len as u8;
        }
    };
    for (name, bodies, wire) in SESSIONS {
        check(name, bodies, wire);
    }
}

/// Cipher, bodies, and packets whose nonce counts on from packet to packet.
const SESSIONS: &[(&str, &[&str], &[&str])] = &[
    (
        "none",
        &BODIES,
        &[
            "000102030405060708090a0b0c0d0e0f12c5c24100000000f1001f0044332211510020000403\
             020100000000000000000500000068656c6c6f",
            "101112131415161718191a1b1c1d1e1f7bcabc5b01000000f100210044332211510020000403\
             0201010000000000000007000000776f726c642121",
            "202122232425262728292a2b2c2d2e2fdd92be9102000000f200630044332211510020000403\
             02010200000000000000010000005671506c794242",
            "303132333435363738393a3b3c3d3e3f3fdb2120fffffffff3000900443322116f6f62",
        ],
    ),
    (
        "aes-128",
        &PLAIN,
        &[
            "bb11f8ddf9540585a9cc41ceb499a76545a9998f93c3ec0f0d91f53814f21bd1c9ec458e4c46\
             9e627360bafbf9dc4aaf34",
            "ab01e8cde9441595b9dc51dea489b775699f745fc54b6caf3fc8a80fd4cd1d396046e9570b69\
             ba30c35391297b862dc668eaad",
        ],
    ),
    (
        "aes-128",
        &BODIES,
        &[
            "bb11f8ddf9540585a9cc41ceb499a76553d0173fd7f0ce1ead91ca3854c23bc159afd2f386d7\
             a0e1f9841146cbd492ced4d193ed12dbc1b663",
            "ab01e8cde9441595b9dc51dea489b77565b95a4f80784ebe9fc8a90f94fd3d29ca28c0db69bc\
             15d05c4f452224eb6fa77a84171d305ee62e85487c",
            "9b31d8fdd97425a589ec61ee94b98745f9d152b0f8d13fceec54b220781c631c3e2edc85a683\
             b9736a1ce69dd4ec7d98a4bfdc809d21c4c4f5b959",
            "8b21c8edc96435b599fc71fe84a99755eee424dfe7fba995509f474f6ed2823c93b139",
        ],
    ),
    (
        "3des",
        &BODIES,
        &[
            "ebdbf59054972a2ea8b034eecce6d28daadf1664d570977a82eea7c69cda4c62a5c4e417f6e3\
             b8c37abf55da5055e362e6c65a784044b53479",
            "fbcbe58044873a3e3743ef4e4b97151324956e5deea00b6142a71d1b5eb365905c28a60540c6\
             d94d31cb2c750ba43ca1f6743059ac9e1e79761a81",
            "cbfbd5b074b70a0ebe5e555c8eda15e5b10f07c8c163d840033d188b6a1eb36b39afce1a62cc\
             faabde2d67e35867ef1a96b79e481b72c53a091c04",
            "dbebc5a064a71a1e7f369892e125ad433eb96e4cdd3ee4b04f1e838f6d025a29f1861b",
        ],
    ),
    (
        "salsa20",
        &BODIES,
        &[
            "000102030405060726a40554145a27c1c4b771e828e454f7dedb5ba83faffac348e4cc14aafa\
             c4bd77bf057f5659d7753d48f8d39613f0c992",
            "101112131415161740b489dc03b4d42a517a9c7b34aad18ad4ad40ca423a06ef0da8bfc303b7\
             54c454ccb561f15ab02984c8af261eb8e62d456a61",
            "2021222324252627b7ae75a2fb3867337ef344119a2a9e0a190e43a23ea4e7f643d83f51cbd4\
             d957115032e0036bba24b7eedd313f94d318c2bea8",
            "3031323334353637472253c76bd784ef70c428148596153ccd23a341c48fd30d2ef3cc",
        ],
    ),
    (
        "xor",
        &BODIES,
        &[
            "b216b2f17a8f89fdbf995a506cc1b8d67835c3807edbdf6faccf7671a1bd1b1c886b6cd22ce2\
             548305ad35da9cbaf100bb0e08b87b2edbf519",
            "a206a2e16a9f99edaf894a407cd1a8c6113abd9a7fdbdf6faccf4871a1bd1b1c886b6cd22ce2\
             548304ad35da9cbaf100b90e08b86424c5f512d04b",
            "923692d15aafa9dd9fb97a704ce198f6b762bf507cdbdf6fafcf0a71a1bd1b1c886b6cd22ce2\
             548307ad35da9cbaf100bf0e08b8453ae7f50fb328",
            "822682c14abfb9cd8fa96a605cf188e6552b20e181242090aecf6071a1bd1b1cb6042e",
        ],
    ),
    (
        "aes-128-gcm",
        &PLAIN,
        &[
            "000102030405060708090a0bd75f85df371bd7544fd1638b36a37008b3261ae656edfdf68e44\
             9d417b7a14fef32114eafe4a917e8dfd9d6c45",
            "0c0d0e0f1011121314151617d001febf1cd801b688ec8d582343f1ebd0d6d8bc29e582617acb\
             7712e4024d3184a0279ca3e6b1f2e732a2e5c1eb9b",
        ],
    ),
    (
        "aes-128-gcm",
        &BODIES,
        &[
            "000102030405060708090a0b936ca7ce971be8540fe1439b67a35008b72518e753edfdf6e621\
             f12d1144a26cedc1b79b9bf4587a9f0c6b3c6f701b3f53090de1a8",
            "0c0d0e0f10111213141516179532dcaebcd800b6c8dcad487343d1ebd4d5dabd2fe582610da4\
             057e87236c6b4d5f1862881f4565293aaf2fdfbb160a39d8d885f11327",
            "18191a1b1c1d1e1f2021222337b8c3f8b9b20d98b116636778d5921da39c5a1ea2256238a784\
             076c07d09c0d46adb023b5046f69a1a8a5a256cc7a6572d5e8924e8da3",
            "2425262728292a2b2c2d2e2f636f4b92051b5f506d9641f0cc3b73886f5f836364973288f081\
             107bf07db4",
        ],
    ),
];

/// The bytes 0 to 44 under the bare cipher: no header and no checksum.
const BARE: [(&str, &str); 12] = [
    (
        "aes-128",
        "bb11f8ddf9540585a9cc41ceb499a7655104c76dc3e5d8094488cf230cec\
         07cf054e63cf52381982c2835e43c1",
    ),
    (
        "aes-192",
        "713824a00e3fd2973dd18329358c868153ba06f3ad1accd9b25d6b0f5f55\
         2632429610e7d5239d05fb90970366",
    ),
    (
        "aes-256",
        "15cb3d10047d330ab6b768ccaa72202024d2e19cd29760adc5e6bf5ff6a3\
         74314941b7782ced7cd13da49a6e3d",
    ),
    (
        "sm4",
        "ff27e1bd6332be351ba083754dfbb5ac0082191619c653d92e33a8a7d74c\
         5f4e7bcc1899b98d93f9f1cca0afa2",
    ),
    (
        "twofish",
        "011e2e06161c588591b17270a01911bf5d52d87d1d5ad75462e312d65014\
         f117ded2d8d02887b519d25de3b6a1",
    ),
    (
        "3des",
        "ebdbf59054972a2ea8b034eecce6d28da80bc636c165816defed0cff475c\
         af6e4c04ba6495873e897054f81f9c",
    ),
    (
        "cast5",
        "750beeb8e28a76dbc517815b05db244faa5bc9b5b835002878a81286cb70\
         9e6157bd0a4af4cfc7a57e4eea53ae",
    ),
    (
        "blowfish",
        "ce41f908856d2384166584b763acca9d634473345e5545714f3d7b7f2bec\
         6c334f88837419dab642f51c1dab6a",
    ),
    (
        "tea",
        "01348d3d967f5900f45f05c2bb6fe6ec2edabbb5911d1448c6dc7a4c5db8\
         4bba4ccce7af526afa580394c521ff",
    ),
    (
        "xtea",
        "5fb209dd253f33d35fc492d36994101605b6fb2658bef0cb1d1a7f6b79ea\
         3e329f6ae08ca28b2abf4ba5ff581e",
    ),
    (
        "salsa20",
        "000102030405060726a40554145a27c1c663a1ba3cf142e037c25eb36781\
         c6cd39c5ce378adce09b5f962f547a",
    ),
    (
        "xor",
        "b216b2f17a8f89fdbf995a506cc1b8d67ae113d26acec97845d6736af993\
         2712f94a6ef10cc470a52d841ff1b0",
    ),
];

#[test]
fn transforms_equal_kcp_gos_golden_vectors() {
    let plain: Vec<u8> = (0..45).collect();
    for (name, wire) in BARE {
        let algorithm = match Algorithm::from_name(name) {
            Ok(algorithm) => algorithm,
            Err(ConfigError::CipherNotCompiled { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let transform = transform(algorithm, &KEY[..algorithm.key_len()]).unwrap();
        let mut bytes = plain.clone();
        transform.encrypt(&mut [&mut bytes]);
        assert_eq!(hex(&bytes), wire, "{name}");
        transform.decrypt(&mut bytes);
        assert_eq!(bytes, plain, "{name}");
    }
}

#[test]
fn xor_key_stream_equals_kcp_gos() {
    let mut zeros = vec![0; 3_100];
    transform(Algorithm::Xor, &KEY).unwrap().encrypt(&mut [&mut zeros]);
    let start = "b217b0f27e8a8ffab790505b60ccb6d96af001c17edbdf6f5dcf6971e58e390d";
    assert_eq!(hex(&zeros[..32]), start);
    assert_eq!(hex(&zeros[1_492..1_500]), "8d4a085e21a9c0f7");
    assert_eq!(zeros[..1_500], zeros[1_500..3_000]);
    assert_eq!(zeros[..100], zeros[3_000..]);
}
