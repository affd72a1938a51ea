//! Counters as CSV, with the columns of kcp-go's `Snmp` (March 2026), as kcptun's `snmplog` has them.

use std::ops::Add;

macro_rules! snapshot {
    ($($(#[$doc:meta])* $field:ident: $column:literal),* $(,)?) => {
        /// Counters by the names of kcp-go's `Snmp`. A column for which this crate has no counter
        /// stays 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Snapshot {
            /// Column names in kcp-go's order (`Snmp.Header`).
            pub const COLUMNS: [&str; 30] = [$($column),*];

            /// Returns the values in the order of the columns.
            #[must_use]
            pub fn values(&self) -> [u64; 30] {
                [$(self.$field),*]
            }
        }

        /// Sum over several tunnels.
        impl Add for Snapshot {
            type Output = Self;

            fn add(self, more: Self) -> Self {
                Self { $($field: self.$field.saturating_add(more.$field)),* }
            }
        }
    };
}

snapshot! {
    /// Bytes that streams took from this side.
    bytes_sent: "BytesSent",
    /// Bytes that streams gave to this side.
    bytes_received: "BytesReceived",
    /// Most KCP connections at once.
    max_conn: "MaxConn",
    /// Connections opened from here.
    active_opens: "ActiveOpens",
    /// Connections opened by peers.
    passive_opens: "PassiveOpens",
    /// Connections now.
    curr_estab: "CurrEstab",
    /// Receive errors, and truncated datagrams.
    in_errs: "InErrs",
    /// Datagrams with a wrong checksum or tag.
    in_csum_errors: "InCsumErrors",
    /// Malformed datagrams.
    kcp_in_errors: "KCPInErrors",
    /// Datagrams received.
    in_pkts: "InPkts",
    /// Datagrams sent.
    out_pkts: "OutPkts",
    /// Data segments received.
    in_segs: "InSegs",
    /// Data segments sent, retransmissions included.
    out_segs: "OutSegs",
    /// Bytes of the datagrams received.
    in_bytes: "InBytes",
    /// Bytes of the datagrams sent.
    out_bytes: "OutBytes",
    /// Retransmissions.
    retrans_segs: "RetransSegs",
    /// Fast retransmits.
    fast_retrans_segs: "FastRetransSegs",
    /// Early retransmits.
    early_retrans_segs: "EarlyRetransSegs",
    /// Retransmissions after an RTO.
    lost_segs: "LostSegs",
    /// Duplicate data segments received.
    duplicate_segs: "RepeatSegs",
    /// FEC groups whose data arrived whole.
    fec_full_shards: "FECFullShards",
    /// FEC parity packets received.
    fec_parity_shards: "FECParityShards",
    /// FEC groups that did not decode.
    fec_errs: "FECErrs",
    /// Packets recovered by FEC.
    fec_recovered: "FECRecovered",
    /// FEC groups held by the decoder.
    fec_shard_set: "FECShardSet",
    /// Number of the newest FEC group.
    fec_shard_min: "FECShardMin",
    /// Capacity of the send queue in segments.
    ring_buffer_snd_queue: "RingBufferSndQueue",
    /// Capacity of the receive queue in segments.
    ring_buffer_rcv_queue: "RingBufferRcvQueue",
    /// Capacity of the buffer of segments in flight.
    ring_buffer_snd_buffer: "RingBufferSndBuffer",
    /// Out-of-band datagrams received.
    oob_packets: "OOBPackets",
}
