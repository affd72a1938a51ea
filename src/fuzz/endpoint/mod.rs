//! Two whole endpoints, their applications, a network between them, and a third party that records,
//! replays, reflects, forges and delays.

mod applications;
pub(crate) mod laws;
mod lifecycle;
mod links;
mod paths;
pub(crate) mod reader;
mod settings;
mod third_party;
mod world;

use std::time::Instant;

use self::settings::{SETTINGS, Setup};
use self::third_party::Power;
use self::world::World;
use super::Choices;
use super::wire::{CLIENT_SIDE, SERVER_SIDE};

/// Bytes of the settings and of an operation, for mutations.
pub const ENDPOINT: (usize, usize) = (SETTINGS, OPERATION);
/// Bytes of an operation, and operations per input.
const OPERATION: usize = 12;
const STEPS: usize = 400;
/// Milliseconds of a day.
const DAY: u64 = 86_400_000;

/// No behaviour of applications, network, sockets, clock and third party makes an endpoint panic,
/// spin, exceed its memory, outlive its users, take more than four paths, or break the limits of
/// `laws`. Unless datagrams are forged, every stream is a prefix of the bytes written, and complete if
/// it ends; under a cipher with a key also if datagrams are replayed and altered. Returns the number
/// of operations.
///
/// # Panics
///
/// If that does not hold.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn endpoint(data: &[u8]) -> usize {
    let (mut choices, operations) = Choices::split(data, SETTINGS, OPERATION);
    let setup = Setup::draw(&mut choices);
    let (server, client) = (setup.config(&mut choices), setup.config(&mut choices));
    let mut world = World::new(Instant::now(), setup, &server, &client);
    if setup.paths.is_some() {
        world.begin_paths();
    }
    let mut count = 0;
    for mut operation in operations.take(STEPS) {
        count += 1;
        apply(&mut world, &mut operation);
    }
    world.finish();
    count
}

fn apply(world: &mut World, choices: &mut Choices<'_>) {
    let (step, has_paths) = (choices.byte(), world.setup.paths.is_some());
    let has_third_party = world.setup.power != Power::None;
    match (step % 8, step >> 3 & 3) {
        (0, 2) => world.set(choices),
        (0, 3) if step >> 5 == 7 => world.live(choices),
        (0, 3) => world.disturb(choices),
        (0, what) => world.connect(what == 1),
        (1, _) => world.pass_time(choices.pick(&[0, 1, 20, 200, 1_000, 15_000, 61_000, DAY])),
        (2, 1 | 2) if has_third_party => world.third_party(choices),
        (2, 3) if has_third_party => match step >> 5 {
            0 | 1 => world.run_for(100, Some(SERVER_SIDE)),
            2 | 3 => world.run_for(100, Some(CLIENT_SIDE)),
            _ => world.run_for(1_000, None),
        },
        (2, _) => world.network(choices),
        (3, 1..) if has_paths => world.paths(choices),
        (3, _) => world.turn_all(),
        _ => world.application(choices),
    }
}
