//! Following a peer to another address.

use std::net::SocketAddr;
use std::time::Instant;

use rand_core::Rng;

use crate::config::Migration;
use crate::core::connection::PacketType;
use crate::core::open::InitialHash;
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::connection::PathValidation;
use crate::driver::packet_codec::SendExtras;
use crate::shared::notifier::ConnId;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// A whole datagram of an unknown conversation, which may be one whose peer has moved. Returns
    /// whether it was taken for that.
    pub(super) fn on_possible_migration(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> bool {
        if self.config.migration == Migration::Off {
            return false;
        }
        let Ok(header) = Header::parse(datagram) else { return false };
        let Some(id) = self.demux.migratable(header.conv) else { return false };
        let cookie = self.rng.next_u32();
        let Some(conn) = self.get_mut(id) else { return false };
        match conn.on_other_address(now, from, datagram, cookie) {
            PathValidation::No => {}
            PathValidation::Ask(sn, cookie) => {
                if !self.may_answer() {
                    return true;
                }
                // As little as it takes: nobody has proved to be there.
                let extra = SendExtras { fec: None, copies: 0, may_repeat: false };
                let Some(conn) = self.conns.get_mut(id.slot as usize) else { return true };
                let write = |tail: &mut Vec<u8>| {
                    conn.write_path_challenge(sn, cookie, tail);
                    true
                };
                self.codec.encode(now, &mut self.tx, from, extra, write);
                self.budget = self.budget.saturating_sub(1);
            }
            PathValidation::Yes => {
                self.follow(now, id, from);
                self.deliver(now, id, datagram, PacketType::Regular);
            }
        }
        true
    }

    /// Whether what would open a conversation opened one that may move.
    pub(super) fn is_initial_of_migrated(&mut self, datagram: &[u8], opening: InitialHash) -> bool {
        let Ok(header) = Header::parse(datagram) else { return false };
        let known = self.demux.migratable(header.conv).and_then(|id| self.get_mut(id));
        known.is_some_and(|conn| conn.was_opened_by(opening))
    }

    fn follow(&mut self, now: Instant, id: ConnId, to: SocketAddr) {
        let Some(conn) = self.get_mut(id) else { return };
        let (old, conv) = conn.key();
        conn.migrate(now, to);
        if !self.demux.rekey((old, conv), (to, conv), id) {
            // Meanwhile someone else has that name.
            if let Some(conn) = self.get_mut(id) {
                conn.migrate(now, old);
            }
            return;
        }
        self.peers.leave(old, id.slot);
        self.peers.join(to, id.slot);
        self.peers.validate(to);
        self.stats.migrations += 1;
        self.schedule(id);
    }
}
