//! Byte budget of redundancy. Each first transmission adds its bytes times a rate, and each symbol or copy
//! takes its bytes. So in any time redundancy exceeds that share of the data by at most one datagram.

const MILLION: i64 = 1_000_000;

/// Credit of one kind of redundancy, and its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedundancyCredit {
    /// Bytes per million bytes of data.
    rate: u32,
    /// Bytes that may leave, times a million. Negative after an overdraft.
    credit: i64,
    sent_count: u64,
    sent_bytes: u64,
}

impl RedundancyCredit {
    /// Largest rate, per million: the same number of bytes as the data.
    pub(crate) const MAX_RATE: u32 = 1_000_000;

    pub(crate) fn new(rate: u32) -> Self {
        Self { rate, credit: 0, sent_count: 0, sent_bytes: 0 }
    }

    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    pub(crate) fn set_rate(&mut self, rate: u32) {
        self.rate = rate;
    }

    /// `bytes` of data leave for the first time. At most `limit` bytes are saved.
    pub(crate) fn on_data(&mut self, bytes: usize, limit: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(0);
        let limit = i64::try_from(limit).unwrap_or(0);
        self.credit = (self.credit + bytes * i64::from(self.rate)).min(limit * MILLION);
    }

    /// Drops the saved credit.
    pub(crate) fn clear(&mut self) {
        self.credit = self.credit.min(0);
    }

    /// Whether `bytes` may leave.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.credit >= i64::try_from(bytes).unwrap_or(i64::MAX / MILLION) * MILLION
    }

    /// Whether the credit is not overdrawn.
    pub(crate) fn is_balanced(&self) -> bool {
        self.credit >= 0
    }

    /// One symbol or copy of `bytes` leaves.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.credit -= i64::try_from(bytes).unwrap_or(0) * MILLION;
        self.sent_count += 1;
        self.sent_bytes += bytes as u64;
    }

    /// Symbols or copies sent, and their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        (self.sent_count, self.sent_bytes)
    }
}
