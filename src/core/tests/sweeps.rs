//! Randomized simulations of impaired networks and hosts: all data arrives exactly once, in order, and is
//! acknowledged within [`Plan::bound`].

use super::report::{each_seed, explained};
use super::sim::Sim;
use super::sim_plan::{DAY, HOUR, MILLIS, Plan, Reading, SECOND, Set, draw_config};
use crate::config::Mode;
use crate::testkit::link::{CERTAIN, GilbertElliott, LinkConfig};
use crate::testkit::rng::Rng;

/// First seed of every set.
const BASE: u64 = 1_000;

/// Limits of the time that the runs of a set take, in percent of [`Plan::bound`].
#[derive(Clone, Copy)]
struct Within {
    /// Of each run: about twice the slowest one, measured with more seeds.
    each: u64,
    /// Of all runs on average: less than twice the measured one. Recovery that takes twice the time fails.
    mean: f64,
}

fn sweep(test: &str, set: &Set, seeds: u64, within: Within) {
    let (mut runs, mut virtual_time, mut worst, mut events) = (0_u64, 0.0, (0.0, 0), 0);
    let (mut sent, mut retransmits, mut sum) = (0, 0, 0.0);
    each_seed(&format!("sweeps::{test}"), BASE..BASE + seeds, |seed, verbose| {
        let plan = Plan { within: within.each, ..Plan::draw(set, seed).with_extras() };
        let mut sim = Sim::new(&plan);
        sim.verbose = verbose;
        let outcome = explained(&plan, || sim.run());
        runs += 1;
        virtual_time += outcome.finished as f64 / SECOND as f64;
        events += outcome.events;
        let share = outcome.share * within.each as f64;
        sum += share;
        if share > worst.0 {
            worst = (share, seed);
        }
        for stats in outcome.stats {
            sent += stats.sent.segments;
            retransmits += stats.retransmits();
        }
        format!("{plan}\n{outcome:?}")
    });
    let mean = sum / runs as f64;
    println!(
        "{}: {runs} seeds, {events} events, {:.1} virtual hours, {sent} segments and {retransmits} \
         retransmissions, {mean:.3} % of the bound and at most {:.0} % (seed {}), allowed {:.3} % and {} %",
        set.name,
        virtual_time / 3_600.0,
        worst.0,
        worst.1,
        within.mean,
        within.each
    );
    assert!(runs < seeds || mean <= within.mean, "{mean:.3} % of the bound on average");
}

/// One test per set of plans: its name, the name that is part of the seeds, the number of seeds, and [`Within`].
macro_rules! sweeps {
    ($($test:ident, $set:literal: $seeds:expr, $each:expr, $mean:expr, $shape:expr;)*) => {$(
        #[test]
        fn $test() {
            let (set, within) =
                (Set { name: $set, shape: $shape }, Within { each: $each, mean: $mean });
            sweep(stringify!($test), &set, $seeds, within);
        }
    )*};
}

fn each_link(plan: &mut Plan, rng: &mut Rng, mut change: impl FnMut(&mut LinkConfig, &mut Rng)) {
    for side in &mut plan.sides {
        change(&mut side.link, rng);
    }
}

fn loss(link: &mut LinkConfig, rng: &mut Rng) {
    link.loss = rng.pick(&[0, 1_000, 10_000, 50_000, 100_000, 300_000, 500_000]);
}

fn burst(link: &mut LinkConfig, rng: &mut Rng) {
    let leave = CERTAIN / rng.spread(1, 200) as u32;
    link.burst = Some(GilbertElliott { to_bad: leave / rng.range(2, 30) as u32, to_good: leave });
}

fn reorder(link: &mut LinkConfig, rng: &mut Rng) {
    link.jitter = rng.spread(0, 500 * MILLIS);
    link.keep_order = rng.chance(250_000);
    link.reorder = rng.below(500_000) as u32;
    link.reorder_by = rng.spread(MILLIS, 60 * SECOND);
}

fn duplicate(link: &mut LinkConfig, rng: &mut Rng) {
    link.duplicate = rng.below(500_000) as u32;
    link.copies = rng.range(1, 5) as u8;
    link.copy_delay = rng.spread(MILLIS, 600 * SECOND);
}

fn bandwidth(link: &mut LinkConfig, rng: &mut Rng) {
    link.rate = Some(rng.spread(2_000, 100_000_000));
    link.queue = rng.spread(3_000, 2_000_000);
}

fn slow_reader(plan: &mut Plan, rng: &mut Rng) {
    for side in &mut plan.sides {
        let from = rng.spread(1, 20 * SECOND);
        side.reading = Reading {
            chunks: rng.spread(1, 64) as u32,
            every: rng.spread(MILLIS, 2 * SECOND),
            pause: (from, from + rng.spread(MILLIS, 600 * SECOND)),
        };
    }
}

fn partitions(plan: &mut Plan, rng: &mut Rng, longest: u64) {
    for _ in 0..rng.range(1, 3) {
        let from = rng.spread(MILLIS, 30 * SECOND);
        let cut = (from, from + rng.spread(SECOND, longest));
        let direction = rng.below(3) as usize;
        for (i, side) in plan.sides.iter_mut().enumerate() {
            if direction != 1 - i {
                side.link.partitions.push(cut);
            }
        }
        plan.chaos = plan.chaos.max(cut.1);
    }
}

fn jumbo(plan: &mut Plan, rng: &mut Rng) {
    for side in &mut plan.sides {
        side.config.mtu = rng.spread(1_500, 65_507) as u16;
        side.config.send_window = side.config.send_window.min(64);
        side.traffic.bytes = rng.spread(1, 2_000_000);
        // A message that exceeds the receive memory closes the connection.
        side.traffic.whole = false;
        loss(&mut side.link, rng);
        side.link.loss = side.link.loss.min(100_000);
    }
}

fn suspend(plan: &mut Plan, rng: &mut Rng) {
    let which = rng.below(3) as usize;
    for (i, side) in plan.sides.iter_mut().enumerate() {
        if which != 1 - i {
            let from = rng.spread(1, 10 * SECOND);
            let longest = rng.pick(&[60 * SECOND, HOUR, HOUR, HOUR, 30 * DAY]);
            side.freeze = (from, from + rng.spread(SECOND, longest));
            plan.chaos = plan.chaos.max(side.freeze.1);
        }
        side.link.loss = rng.pick(&[0, 0, 10_000, 100_000]);
    }
}

/// A plan gives the same simulation each time, datagram for datagram.
#[test]
fn simulation_of_one_seed_is_deterministic() {
    let set = Set { name: "everything", shape: all_impairments };
    let mut hashes = std::collections::HashSet::new();
    for seed in 0..40 {
        let run = || Sim::new(&Plan::draw(&set, seed).with_extras()).run();
        let (first, second) = (run(), run());
        assert_eq!(first, second, "seed {seed}");
        hashes.insert(first.hash);
    }
    assert_eq!(hashes.len(), 40, "each seed is a different run");
}

fn all_impairments(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(300_000) {
        slow_reader(plan, rng);
    }
    each_link(plan, rng, |link, rng| {
        for change in [loss, burst, reorder, duplicate, bandwidth] {
            if rng.chance(400_000) {
                change(link, rng);
            }
        }
        link.corrupt = rng.pick(&[0, 0, 0, 50_000]);
    });
    if rng.chance(200_000) {
        partitions(plan, rng, 120 * SECOND);
    }
}

sweeps! {
    delivery_under_loss_completes, "lossy": 600, 100, 0.97,
        |plan, rng| each_link(plan, rng, |link, rng| {
            loss(link, rng);
            link.corrupt = rng.pick(&[0, 0, 1_000, 100_000]);
        });
    delivery_under_burst_loss_completes, "bursts": 400, 42, 0.9,
        |plan, rng| each_link(plan, rng, burst);
    delivery_under_reordering_and_duplication_completes, "reordered_and_duplicated": 600, 100, 1.2,
        |plan, rng| each_link(plan, rng, |link, rng| {
            reorder(link, rng);
            duplicate(link, rng);
        });
    delivery_under_limited_bandwidth_completes, "limited_bandwidth": 400, 84, 0.33,
        |plan, rng| each_link(plan, rng, |link, rng| {
            bandwidth(link, rng);
            link.jitter = rng.spread(0, 50 * MILLIS);
        });
    delivery_with_random_mtu_completes, "sizes": 300, 56, 1.2,
        |plan, rng| for side in &mut plan.sides {
            side.config.mtu = rng.spread(25, 1_500) as u16;
            side.link.mtu = usize::from(side.config.mtu);
            loss(&mut side.link, rng);
        };
    delivery_with_jumbo_datagrams_completes, "large_segments": 150, 90, 1.4,
        jumbo;
    delivery_of_messages_completes, "messages": 400, 60, 1.7,
        |plan, rng| for side in &mut plan.sides {
            side.config.mode = Mode::Message;
            side.traffic.whole = rng.chance(700_000);
            loss(&mut side.link, rng);
            reorder(&mut side.link, rng);
        };
    delivery_to_slow_readers_completes, "slow_readers": 400, 100, 10.6,
        |plan, rng| {
            slow_reader(plan, rng);
            each_link(plan, rng, loss);
        };
    delivery_after_partitions_completes, "cut_off": 300, 66, 2.0,
        |plan, rng| {
            each_link(plan, rng, loss);
            partitions(plan, rng, 2 * HOUR);
        };
    delivery_with_suspended_hosts_completes, "stopped_hosts": 100, 50, 1.8,
        suspend;
    delivery_with_changing_settings_completes, "changed_settings": 300, 30, 0.26,
        |plan, rng| for side in &mut plan.sides {
            let mode = side.config.mode;
            side.change_every = rng.spread(10 * MILLIS, 2 * SECOND);
            side.alternatives = (0..rng.range(1, 4)).map(|_| draw_config(rng, mode)).collect();
            // A message in flight may exceed a window that was lowered.
            side.traffic.whole = false;
            side.memory = None;
            loss(&mut side.link, rng);
            if rng.chance(500_000) {
                reorder(&mut side.link, rng);
            }
        };
    delivery_under_all_impairments_completes, "everything": 800, 100, 3.6,
        all_impairments;
}
