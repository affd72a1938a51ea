//! `use kcpx::*` must not shadow Rust's `core`.

#![expect(unused_qualifications, reason = "the path through `core` is what is tested")]

use kcpx::*;

#[test]
fn glob_import_does_not_shadow_core() {
    assert_eq!(core::mem::size_of::<u8>(), 1);
    assert_eq!(Config::new(), Config::default());
}
