//! Paths of the client's connections that come and go.

use super::world::World;
use crate::core::path::set::{MAX_PATHS, PathId};
use crate::fuzz::Choices;
use crate::fuzz::wire::{CLIENT, CLIENT_SIDE, ELSEWHERE, FURTHER, OUTSIDE, SERVER, addr};
use crate::stream::KcpStream;
use crate::util::path::LocalIp;

impl World {
    /// Adds, removes, cuts and mends paths of the client.
    pub(super) fn paths(&mut self, choices: &mut Choices<'_>) {
        let (what, host) = (choices.byte() % 16, choices.pick(&FURTHER));
        let (server, local) = (addr(SERVER), LocalIp::of_destination(addr(host).ip()));
        let first = [addr(CLIENT), addr(ELSEWHERE)];
        let outside = [addr(host), addr(host + OUTSIDE)];
        match what {
            0..=3 => self.with_stream(choices, |world, stream, _| {
                world.ask(CLIENT_SIDE, stream.add_path_from(local));
            }),
            4 => self.with_stream(choices, |world, stream, choices| {
                let path = PathId(choices.byte() % (MAX_PATHS + 1));
                world.ask(CLIENT_SIDE, stream.remove_path(path));
            }),
            5 => self.with_stream(choices, |_, stream, _| stream.network_changed()),
            6 => first.into_iter().for_each(|from| self.links.toggle(from, server)),
            7 => first.into_iter().for_each(|to| self.links.toggle(server, to)),
            8 => outside.into_iter().for_each(|from| self.links.toggle(from, server)),
            9 => outside.into_iter().for_each(|to| self.links.toggle(server, to)),
            10 if choices.byte() & 1 == 0 => {
                if !self.links.outside.remove(&host) {
                    self.links.outside.insert(host);
                }
            }
            10 => {
                let Some(driver) = &mut self.drivers[CLIENT_SIDE] else { return };
                let gone = &mut driver.socket_mut().gone;
                match gone.iter().position(|known| *known == local) {
                    Some(at) => drop(gone.swap_remove(at)),
                    None => gone.push(local),
                }
            }
            11 => self.third_party.replay_path(choices, &mut self.wire),
            _ => self.run_for(choices.pick(&[20, 200, 1_000, 6_000]), None),
        }
    }

    /// Opens a connection and adds a path, so that most inputs have several.
    pub(super) fn begin_paths(&mut self) {
        self.connect(false);
        let mut no_choices = Choices(&[]);
        self.with_stream(&mut no_choices, |world, stream, _| {
            let local = LocalIp::of_destination(addr(FURTHER[0]).ip());
            world.ask(CLIENT_SIDE, stream.add_path_from(local));
        });
        self.run_for(300, None);
    }

    /// Calls `use_it` with a stream of the client, and checks its paths.
    fn with_stream(
        &mut self,
        choices: &mut Choices<'_>,
        use_it: impl FnOnce(&mut Self, &KcpStream, &mut Choices<'_>),
    ) {
        let mut convs: Vec<u32> = self.ends[CLIENT_SIDE].keys().copied().collect();
        convs.sort_unstable();
        if convs.is_empty() {
            return;
        }
        let conv = choices.pick(&convs);
        let Some(end) = self.ends[CLIENT_SIDE].remove(&conv) else { return };
        self.laws.on_paths_asked(CLIENT_SIDE, addr(SERVER), conv);
        use_it(self, &end.stream, choices);
        if let Some(Ok(paths)) = self.ask(CLIENT_SIDE, end.stream.paths()) {
            assert!((1..=usize::from(MAX_PATHS)).contains(&paths.len()), "{paths:?}");
            let active = paths.iter().filter(|path| path.is_active).count();
            assert!(active == 1, "{paths:?}");
        }
        self.ends[CLIENT_SIDE].insert(conv, end);
    }
}
