//! Sequence numbers and timestamps with serial number arithmetic modulo 2^32 (RFC 1982, RFC 9293
//! 3.4; kcp-go `_itimediff`).
//!
//! Neither type implements `Ord`: "smaller" is not defined on a circle. Compare with [`Sn::since`]
//! and [`Ts::since`], which are exact while the two values are less than 2^31 apart.

/// Sequence number of a segment (`sn`), or a cumulative acknowledgement (`una`). Counts segments,
/// not bytes.
///
/// ```
/// use kcpx::proto::Sn;
///
/// let last = Sn(u32::MAX);
/// let next = last.advance(1);
/// assert_eq!(next, Sn(0));
/// assert_eq!(next.since(last), 1);
/// assert_eq!(last.offset_from(next), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sn(pub u32);

impl Sn {
    /// This sequence number plus `count`, modulo 2^32.
    #[must_use]
    pub const fn advance(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// This sequence number minus `count`, modulo 2^32.
    #[must_use]
    pub const fn back(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// Signed distance from `origin`: positive if this number comes later (kcp-go `_itimediff`).
    #[must_use]
    pub const fn since(self, origin: Self) -> i32 {
        self.0.wrapping_sub(origin.0).cast_signed()
    }

    /// Segments from `origin` to this number; `None` if this number comes before `origin`.
    #[must_use]
    pub fn offset_from(self, origin: Self) -> Option<u32> {
        u32::try_from(self.since(origin)).ok()
    }
}

/// Timestamp of a segment (`ts`): milliseconds since a random epoch of its sender.
///
/// ```
/// use kcpx::proto::Ts;
///
/// let (sent, echoed_at) = (Ts(u32::MAX - 9), Ts(30));
/// assert_eq!(echoed_at.since(sent), 40); // A round trip of 40 ms.
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ts(pub u32);

impl Ts {
    /// Milliseconds from `origin` to this timestamp; negative if this timestamp is earlier.
    #[must_use]
    pub const fn since(self, origin: Self) -> i32 {
        self.0.wrapping_sub(origin.0).cast_signed()
    }

    /// Whether this is one of the times from `first` to `last`. `last` is compared first: after an outage of weeks the
    /// two are more than 2^31 ms apart. Test `ack_of_the_last_transmission_after_26_days_is_valid`.
    #[must_use]
    pub(crate) fn is_within(self, first: Self, last: Self) -> bool {
        self == last || (self.since(first) >= 0 && self.since(last) <= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sn_advance_and_since_are_inverse(start: u32, step in 0..i32::MAX) {
            let moved = Sn(start).advance(step.cast_unsigned());
            prop_assert_eq!(moved.since(Sn(start)), step);
            prop_assert_eq!(Sn(start).since(moved), -step);
            prop_assert_eq!(moved.back(step.cast_unsigned()), Sn(start));
            prop_assert_eq!(moved.offset_from(Sn(start)), Some(step.cast_unsigned()));
        }

        #[test]
        fn since_within_half_circle_is_antisymmetric(a: u32, b: u32) {
            prop_assume!(a.wrapping_sub(b) != 1 << 31);
            prop_assert_eq!(Sn(a).since(Sn(b)), -Sn(b).since(Sn(a)));
            prop_assert_eq!(Ts(a).since(Ts(b)), -Ts(b).since(Ts(a)));
        }
    }

    #[test]
    fn since_across_wrap_keeps_order() {
        for k in 1..=1_000_u32 {
            let before = Sn(0_u32.wrapping_sub(k));
            assert_eq!(Sn(k).since(before), i32::try_from(2 * k).unwrap());
            assert_eq!(before.offset_from(Sn(k)), None);
        }
        assert_eq!(Ts(3).since(Ts(u32::MAX)), 4);
    }
}
