//! Endpoints that start, end and restart, and their sockets, which fail.

use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::settings::{Endings, RAW};
use super::world::{World, Written};
use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::fuzz::Choices;
use crate::fuzz::wire::{CLIENT_SIDE, FURTHER, SERVER_SIDE, Sent, Wire, addr, fault, unusable};
use crate::listener::{KcpListener, Shutdown};
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::util::sync::{Arc, Mutex, lock};

/// For timeouts of calls. They never expire, since no task of it runs.
static TIMER: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_time().build().expect("a runtime without threads")
});

const SECOND: Duration = Duration::from_secs(1);

impl World {
    /// Starts the endpoint of `side`.
    pub(super) fn start(&mut self, side: usize) {
        let (requests, queue) = (RequestQueue::new(), AcceptQueue::new());
        let host = &mut self.hosts[side];
        let mut seed = [host.number + 1; 32];
        seed[0] += host.starts;
        host.starts = host.starts.wrapping_add(1);
        let batch = self.setup.batches[side];
        let wire = Wire { local: Some(addr(host.number)), batch, ..Wire::default() };
        let accept = (side == SERVER_SIDE).then(|| queue.clone());
        let config = Arc::clone(&host.config);
        self.drivers[side] =
            Driver::new(wire, config, requests.clone(), accept, seed, self.now).ok();
        let endpoint = Endpoint::attach(requests);
        if side == SERVER_SIDE {
            self.listener = Some(Rc::new(KcpListener::new(AcceptHandle::new(queue), endpoint)));
        } else {
            self.endpoint = Some(endpoint);
        }
    }

    pub(super) fn stop_listening(&mut self) {
        (self.listener, self.shutdown) = (None, None);
    }

    pub(super) fn stop_connecting(&mut self) {
        self.endpoint = None;
        self.connects.clear();
    }

    /// The process of `side` ends and starts again. `crashes`: none of its last datagrams leaves.
    fn restart(&mut self, side: usize, crashes: bool) {
        let last = Arc::new(Mutex::new(Sent::new()));
        if let Some(mut driver) = self.drivers[side].take() {
            let socket = driver.socket_mut();
            socket.last = Some(Arc::clone(&last));
            socket.is_blocked |= crashes;
            driver.on_exit(self.now, None);
        }
        let sent = std::mem::take(&mut *lock(&last));
        self.send(side, sent);
        self.end_unaccepted(side);
        let mut convs: Vec<u32> = self.ends[side].keys().copied().collect();
        convs.sort_unstable();
        // The end of a process ends its streams in order if everything has left.
        convs.into_iter().for_each(|conv| self.leave(side, conv, 2));
        if side == SERVER_SIDE {
            self.stop_listening();
            // The next process knows nothing of them, and accepts a recorded initial segment again.
            self.readers.clear();
        } else {
            self.stop_connecting();
        }
        self.laws.on_restart(side);
        self.start(side);
    }

    /// The end of a process also ends connections in order that no application has accepted. The next process may
    /// accept them.
    fn end_unaccepted(&mut self, side: usize) {
        let convs: Vec<u32> = self.ends[1 - side].keys().copied().collect();
        for conv in convs {
            let ended = Written { serial: 0, bytes: 0, closed: true, since: self.now };
            self.written[side].entry(conv).or_default().push(ended);
        }
    }

    /// Ends or restarts an endpoint, if the input has such an end.
    pub(super) fn live(&mut self, choices: &mut Choices<'_>) {
        let (side, ending) = (usize::from(choices.byte() & 1), 1 << (choices.byte() % 6));
        let what = choices.byte();
        if !self.setup.endings.has(ending) {
            return;
        }
        match ending {
            Endings::RESTART => self.restart(side, false),
            Endings::CRASH => self.restart(side, true),
            Endings::FATAL => {
                let Some(driver) = &mut self.drivers[side] else { return };
                let socket = driver.socket_mut();
                let faults =
                    if what & 1 == 0 { &mut socket.send_faults } else { &mut socket.recv_faults };
                faults.push_back(unusable());
            }
            Endings::DRAIN => self.shut_down(Shutdown::Drain),
            Endings::CLOSE => self.shut_down(Shutdown::Close { timeout: SECOND }),
            Endings::HAND_OVER => self.shut_down(Shutdown::HandOver { timeout: SECOND }),
            _ => {}
        }
    }

    /// The listener shuts down the write sides of accepted streams, and aborts the others.
    fn close_streams(&mut self) {
        self.ends[SERVER_SIDE].values_mut().for_each(|end| end.closed = true);
        let convs: Vec<u32> = self.ends[SERVER_SIDE].keys().copied().collect();
        convs.into_iter().for_each(|conv| self.note(SERVER_SIDE, conv));
    }

    fn shut_down(&mut self, how: Shutdown) {
        let Some(listener) = self.listener.clone() else { return };
        if how != Shutdown::Drain {
            self.close_streams();
        }
        let _timer = TIMER.enter();
        self.shutdown = Some(Box::pin(async move { listener.shutdown(how).await }));
        self.poll_calls();
    }

    /// Something happens to the socket or the network of one host.
    pub(super) fn disturb(&mut self, choices: &mut Choices<'_>) {
        let (side, what, detail) =
            (usize::from(choices.byte() & 1), choices.byte(), choices.byte());
        let Some(driver) = &mut self.drivers[side] else { return };
        let socket = driver.socket_mut();
        match what % 8 {
            0 => socket.send_faults.push_back(fault(detail)),
            1 => socket.recv_faults.push_back(fault(detail)),
            2 => {
                socket.is_blocked = !socket.is_blocked;
                if !socket.is_blocked {
                    self.laws.on_unblocked(side);
                }
            }
            3 => socket.is_short = true,
            4 => {
                let sizes = [None, Some(200), Some(576), Some(1_280)];
                socket.route_mtu = sizes[usize::from(detail % 4)];
            }
            5 => {
                self.laws.on_network_changed(side);
                if side == CLIENT_SIDE {
                    self.endpoint.iter().for_each(Endpoint::network_changed);
                } else if let Some(listener) = &self.listener {
                    listener.endpoint().network_changed();
                }
            }
            6 if side == CLIENT_SIDE => {
                if let Some(endpoint) = &self.endpoint {
                    drop(endpoint.send_raw(addr(FURTHER[0]), &RAW));
                    drop(endpoint.take_error());
                }
            }
            _ => {
                if let Some(endpoint) = self.endpoint.clone() {
                    self.ask(CLIENT_SIDE, async move { endpoint.wait_idle().await });
                }
            }
        }
        self.turn(side);
    }

    /// The sockets of both hosts work again.
    pub(super) fn repair_sockets(&mut self) {
        for (side, driver) in self.drivers.iter_mut().enumerate() {
            let Some(driver) = driver else { continue };
            let socket = driver.socket_mut();
            if socket.is_blocked {
                self.laws.on_unblocked(side);
            }
            socket.send_faults.clear();
            socket.recv_faults.clear();
            (socket.is_blocked, socket.is_short, socket.route_mtu) = (false, false, None);
        }
    }
}
