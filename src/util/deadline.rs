//! The earliest of several deadlines.

/// The earliest deadline that is set. A loop instead of an iterator over the array: it compiles to one
/// comparison each, and every turn asks for a dozen deadlines.
#[inline]
pub(crate) fn earliest<T: Copy + Ord, const N: usize>(deadlines: [Option<T>; N]) -> Option<T> {
    let mut earliest: Option<T> = None;
    for deadline in &deadlines {
        if let Some(at) = *deadline
            && earliest.is_none_or(|other| at < other)
        {
            earliest = Some(at);
        }
    }
    earliest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_is_the_least_of_those_that_are_set() {
        assert_eq!(earliest([Some(3), None, Some(1), Some(2)]), Some(1));
        assert_eq!(earliest([None, Some(2)]), Some(2));
        assert_eq!(earliest::<u32, 3>([None; 3]), None);
        assert_eq!(earliest::<u32, 0>([]), None);
    }
}
