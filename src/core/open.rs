//! How a conversation opens when no data does it, and what an opening of a live one is worth.

use crate::core::clock::Micros;
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};

/// Most time between two repetitions of an opening, microseconds.
pub(crate) const LONGEST_GAP: u64 = 5_000_000;

/// An opening without data that nobody has answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRequest {
    /// Names this opening: a later one under the same conversation id has another.
    pub(crate) ts: Ts,
    /// When it leaves next, and the gap after that in microseconds.
    pub(crate) next: Micros,
    pub(crate) gap: u64,
    pub(crate) sent: bool,
}

impl OpenRequest {
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.sent.then_some(self.next)
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent
    }
}

/// What is known of a peer that may have started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartCheck {
    /// It was asked.
    Asked,
    /// It has answered like one that has received nothing.
    Answered,
}

/// What a datagram opens a conversation with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InitialSegment<'a> {
    /// The payload of the first data segment.
    Data(&'a [u8]),
    /// A question for the window, and the stamp that names it, which is not 0.
    Asks(Ts),
}

/// What `datagram` would open a conversation with: its first segment is a PUSH with number 0 and
/// nothing acknowledged, or a marked window question of someone who has received nothing.
pub(crate) fn first(datagram: &[u8]) -> Option<InitialSegment<'_>> {
    let header = Header::parse(datagram).ok().filter(|header| header.una == Sn(0))?;
    match header.command {
        Command::Push if header.sn == Sn(0) => {
            let len = usize::try_from(header.len).ok()?;
            datagram.get(HEADER_LEN..)?.get(..len).map(InitialSegment::Data)
        }
        Command::WindowProbe
            if header.sn != Sn(0) && header.frg == CONTROL_CAPABLE && header.len == 0 =>
        {
            // Within a conversation such a question has no stamp.
            Some(InitialSegment::Asks(header.ts)).filter(|_| header.ts != Ts(0))
        }
        _ => None,
    }
}

/// The first data of a conversation, wherever it is in `datagram`.
pub(crate) fn first_data(datagram: &[u8]) -> Option<InitialSegment<'_>> {
    let mut segments = Segments::new(datagram);
    let (_, payload) =
        segments.find(|(header, _)| header.command == Command::Push && header.sn == Sn(0))?;
    Some(InitialSegment::Data(payload))
}
