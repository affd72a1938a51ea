//! The conditions of a path on the command line: options for both directions or for one, and steps.
//!
//! Options and steps share one list of names. Values are layered: what a step sets goes before what
//! options set, and what is set for one direction before what is set for both.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kcpx_relay::{Bottleneck, Burst, Conditions, Directions, Schedule, Step};

use crate::traces::{Beside, TraceArgs};

/// A condition that can be set.
struct Name {
    /// For both directions, client to server, server to client.
    longs: [&'static str; 3],
    /// Without its unit, for steps and as another name of the options.
    shorts: Option<[&'static str; 3]>,
    value: &'static str,
    help: &'static str,
}

macro_rules! name {
    ($long:literal $(or $short:literal)?, $value:literal, $help:literal) => {
        Name {
            longs: [$long, concat!("up-", $long), concat!("down-", $long)],
            shorts: [$([$short, concat!("up-", $short), concat!("down-", $short)])?]
                .first()
                .copied(),
            value: $value,
            help: $help,
        }
    };
}

const NAMES: [Name; 10] = [
    name!("delay-ms" or "delay", "MS", "What each packet needs, in milliseconds [default: 25]"),
    name!(
        "jitter-ms" or "jitter",
        "MS",
        "Largest extra delay in milliseconds, drawn for each packet; packets overtake each other \
         [default: 0]"
    ),
    name!(
        "ordered",
        "true|false",
        "Keeps packets in order despite jitter; if they are close together, the mean delay nears delay \
         and jitter together"
    ),
    name!("loss", "PERCENT", "Percent of the packets that never arrive [default: 0]"),
    name!(
        "burst",
        "PACKETS",
        "Losses come in bursts of this many packets on average, 1 or more; --loss stays the share of \
         packets lost (Gilbert-Elliott by packet, all packets lost in the bad state)"
    ),
    name!(
        "burst-ms",
        "MS",
        "Losses come in bad periods of this many milliseconds on average, exponentially distributed, \
         1 to 10000; --loss is their share of the time. Not with --burst"
    ),
    name!(
        "reorder",
        "PERCENT",
        "Percent of the packets held back by a further quarter of the delay, and at least 1 ms \
         [default: 0]"
    ),
    name!("duplicate", "PERCENT", "Percent of the packets that arrive twice [default: 0]"),
    name!(
        "rate-mbit" or "rate",
        "MBIT",
        "Rate of a bottleneck in 10^6 bits per second of IP packets; needs --queue. Without it \
         and without a trace there is no bottleneck"
    ),
    name!(
        "queue",
        "PACKETS",
        "Packets that the bottleneck's queue holds; packets beyond it are dropped"
    ),
];

const DIRECTIONS: [Option<&str>; 3] = [None, Some("client to server"), Some("server to client")];
const HEADING: &str = "One direction, up (client to server) or down (server to client)";

/// The options for a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathArgs {
    /// Names and values for both directions, client to server, server to client.
    values: [Vec<(&'static str, String)>; 3],
    steps: Vec<String>,
    traces: TraceArgs,
}

impl Args for PathArgs {
    fn augment_args(mut command: Command) -> Command {
        for (index, direction) in DIRECTIONS.iter().enumerate() {
            for name in &NAMES {
                command = command.arg(option(name, index, *direction));
            }
        }
        command = command.arg(
            Arg::new("at")
                .long("at")
                .value_name("SECONDS NAME=VALUE...")
                .action(ArgAction::Append)
                .help(
                    "Changes conditions for both directions SECONDS after the first packet came \
                     onto the path, as in '5 loss=10 rate=5', or for one, as in '5 up-loss=10'. \
                     Names are the options' names, without the unit if you like. May be \
                     given several times",
                ),
        );
        TraceArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn option(name: &Name, index: usize, direction: Option<&str>) -> Arg {
    let mut option = Arg::new(name.longs[index])
        .long(name.longs[index])
        .value_name(name.value)
        .allow_negative_numbers(true)
        .help(match direction {
            None => name.help.to_owned(),
            Some(direction) => format!("As --{}, from {direction} alone", name.longs[0]),
        });
    if direction.is_some() {
        option = option.help_heading(HEADING).hide_short_help(true);
    }
    if let Some(shorts) = name.shorts {
        option = option.visible_alias(shorts[index]);
    }
    if name.longs[0] == "ordered" {
        option = option.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    option
}

impl FromArgMatches for PathArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let values = std::array::from_fn(|index| {
            let value = |name: &Name| {
                let value = matches.get_one::<String>(name.longs[index])?;
                Some((name.longs[0], value.clone()))
            };
            NAMES.iter().filter_map(value).collect()
        });
        let steps = matches.get_many("at").into_iter().flatten().cloned().collect();
        Ok(Self { values, steps, traces: TraceArgs::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl PathArgs {
    /// The conditions of the path, checked.
    pub(crate) fn directions(&self) -> anyhow::Result<Directions> {
        let mut options = [Settings::default(); 3];
        for (settings, values) in options.iter_mut().zip(&self.values) {
            for (name, value) in values {
                settings.set(name, value)?;
            }
        }
        let step = |text: &String| parse_step(text).with_context(|| format!("--at '{text}'"));
        let mut steps = self.steps.iter().map(step).collect::<anyhow::Result<Vec<_>>>()?;
        steps.sort_by_key(|(at, _)| *at);

        let phases = [1, 2].map(|direction| {
            let mut settings = options[direction].or(options[0]);
            let mut phases = vec![(Duration::ZERO, settings)];
            for (at, step) in &steps {
                settings = step[direction].or(step[0]).or(settings);
                phases.push((*at, settings));
            }
            phases
        });
        let all = phases.iter().flatten().map(|(_, settings)| settings);
        check_use(all, self.traces.has_rate())?;
        let [up, down] = self.traces.replays(phases.each_ref().map(|phases| beside(phases)))?;
        let directions = Directions {
            up: Schedule { replay: up, ..schedule(&phases[0])? },
            down: Schedule { replay: down, ..schedule(&phases[1])? },
        };
        directions.validate()?;
        Ok(directions)
    }
}

/// The settings beside a trace, if there is one.
fn beside(phases: &[(Duration, Settings)]) -> Beside {
    let queue = phases.first().and_then(|(_, settings)| settings.queue);
    Beside {
        queue,
        delay: phases.iter().any(|(_, settings)| settings.delay.is_some()),
        queue_changes: phases.iter().any(|(_, settings)| settings.queue != queue),
    }
}

/// Rejects settings without an effect at any time in any direction.
fn check_use<'a>(
    phases: impl Iterator<Item = &'a Settings> + Clone,
    has_trace: bool,
) -> anyhow::Result<()> {
    let bursts = phases.clone().filter(|settings| settings.burst.is_some());
    let losses = bursts.clone().any(|settings| settings.loss.is_some_and(|loss| loss > 0.0));
    ensure!(
        losses || bursts.count() == 0,
        "bursts need losses: give a --loss above 0, or a step with loss="
    );
    let mut queues = phases.filter(|settings| settings.queue.is_some()).peekable();
    ensure!(
        queues.peek().is_none() || has_trace || queues.any(|settings| settings.rate_mbit.is_some()),
        "a queue needs a rate: give --rate-mbit, a step with rate=, or a trace"
    );
    Ok(())
}

/// The last one of steps at the same time has the settings of all of them.
fn schedule(phases: &[(Duration, Settings)]) -> anyhow::Result<Schedule> {
    let mut phases = phases.iter();
    let initial =
        phases.next().map_or_else(|| Ok(Conditions::default()), |(_, first)| first.conditions())?;
    let mut steps: Vec<Step> = Vec::new();
    for (at, settings) in phases {
        let conditions = settings.conditions().with_context(|| format!("the step at {at:?}"))?;
        steps.pop_if(|last| last.at == *at);
        steps.push(Step { at: *at, conditions });
    }
    Ok(Schedule { initial, steps, ..Schedule::default() })
}

/// The time of a step, and what it sets for both directions, client to server, server to client.
fn parse_step(text: &str) -> anyhow::Result<(Duration, [Settings; 3])> {
    let mut words = text.split_whitespace();
    let seconds = words.next().unwrap_or_default();
    let at = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let at = at.with_context(|| {
        format!("a step must begin with seconds, as in '5 loss=10 rate=5', got '{seconds}'")
    })?;
    let mut step = [Settings::default(); 3];
    let mut changes = 0;
    for word in words {
        let (name, value) = word
            .split_once('=')
            .with_context(|| format!("a change must be NAME=VALUE, as in loss=10, got '{word}'"))?;
        let (direction, name) = match (name.strip_prefix("up-"), name.strip_prefix("down-")) {
            (Some(name), _) => (1, name),
            (_, Some(name)) => (2, name),
            (None, None) => (0, name),
        };
        step[direction].set(name, value)?;
        changes += 1;
    }
    ensure!(changes > 0, "a step must have a change, as in '5 loss=10 rate=5', got '{text}'");
    Ok((at, step))
}

/// The settings that were given.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    delay: Option<Duration>,
    jitter: Option<Duration>,
    ordered: Option<bool>,
    loss: Option<f64>,
    burst: Option<Burst>,
    reorder: Option<f64>,
    duplicate: Option<f64>,
    rate_mbit: Option<f64>,
    queue: Option<usize>,
}

impl Settings {
    /// Sets one, under its long or its short name.
    fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let known = NAMES.iter().find(|known| {
            known.longs[0] == name || known.shorts.is_some_and(|shorts| shorts[0] == name)
        });
        let Some(name) = known.map(|known| known.longs[0]) else {
            let names = NAMES.map(|known| known.longs[0]).join(", ");
            bail!("unknown condition '{name}': use {names}, also after up- or down-");
        };
        let number = || -> anyhow::Result<f64> {
            value.parse().ok().with_context(|| format!("{name} must be a number, got '{value}'"))
        };
        let time = || {
            let time = Duration::try_from_secs_f64(number()? / 1e3).ok();
            time.with_context(|| {
                format!("{name} must be between 0 and 10000 milliseconds, got '{value}'")
            })
        };
        match name {
            "delay-ms" => put(&mut self.delay, name, time()?),
            "jitter-ms" => put(&mut self.jitter, name, time()?),
            "ordered" => {
                let ordered = value.parse().ok();
                let ordered = ordered
                    .with_context(|| format!("{name} must be true or false, got '{value}'"))?;
                put(&mut self.ordered, name, ordered)
            }
            "loss" => put(&mut self.loss, name, number()?),
            "burst" | "burst-ms" => {
                ensure!(
                    self.burst.is_none(),
                    "burst and burst-ms exclude each other: give one of them, once"
                );
                let by_time = name == "burst-ms";
                let burst = if by_time { Burst::Time(time()?) } else { Burst::Packets(number()?) };
                put(&mut self.burst, name, burst)
            }
            "reorder" => put(&mut self.reorder, name, number()?),
            "duplicate" => put(&mut self.duplicate, name, number()?),
            "rate-mbit" => put(&mut self.rate_mbit, name, number()?),
            _ => {
                let queue = value.parse().ok().with_context(|| {
                    format!("{name} must be a whole number of packets, at least 1, got '{value}'")
                })?;
                put(&mut self.queue, name, queue)
            }
        }
    }

    /// These, and where they set nothing the others.
    fn or(self, others: Self) -> Self {
        Self {
            delay: self.delay.or(others.delay),
            jitter: self.jitter.or(others.jitter),
            ordered: self.ordered.or(others.ordered),
            loss: self.loss.or(others.loss),
            burst: self.burst.or(others.burst),
            reorder: self.reorder.or(others.reorder),
            duplicate: self.duplicate.or(others.duplicate),
            rate_mbit: self.rate_mbit.or(others.rate_mbit),
            queue: self.queue.or(others.queue),
        }
    }

    /// The conditions that they make, the ranges of values not checked.
    fn conditions(&self) -> anyhow::Result<Conditions> {
        let default = Conditions::default();
        let loss = self.loss.unwrap_or(default.loss);
        let bottleneck = match (self.rate_mbit, self.queue) {
            (Some(rate_mbit), Some(queue)) => Some(Bottleneck { rate_mbit, queue }),
            (Some(rate), None) => {
                bail!("a rate of {rate} Mbit/s needs a queue: give --queue, or queue= in the step")
            }
            // The queue of a rate that another step sets, or another direction has.
            (None, _) => None,
        };
        Ok(Conditions {
            delay: self.delay.unwrap_or(default.delay),
            jitter: self.jitter.unwrap_or(default.jitter),
            ordered: self.ordered.unwrap_or(default.ordered),
            loss,
            // While nothing is lost there is nothing that could come in bursts.
            burst: self.burst.filter(|_| loss > 0.0),
            reorder: self.reorder.unwrap_or(default.reorder),
            duplicate: self.duplicate.unwrap_or(default.duplicate),
            bottleneck,
        })
    }
}

fn put<T>(setting: &mut Option<T>, name: &str, value: T) -> anyhow::Result<()> {
    ensure!(setting.is_none(), "{name} is given twice: give it once");
    *setting = Some(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        path: PathArgs,
    }

    fn directions(line: &[&str]) -> anyhow::Result<Directions> {
        let words = std::iter::once(&"relay").chain(line);
        <Line as clap::Parser>::try_parse_from(words)?.path.directions()
    }

    fn parse(line: &[&str]) -> Directions {
        directions(line).expect("good options")
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn every_option_sets_its_condition_in_both_directions() {
        assert_eq!(parse(&[]), Directions::default());
        let line = "--delay-ms 40 --jitter-ms 2.5 --ordered --loss 5 --burst 3 --reorder 1 \
                    --duplicate 2 --rate-mbit 20 --queue 50";
        let expected = Conditions {
            delay: 40 * MS,
            jitter: 5 * MS / 2,
            ordered: true,
            loss: 5.0,
            burst: Some(Burst::Packets(3.0)),
            reorder: 1.0,
            duplicate: 2.0,
            bottleneck: Some(Bottleneck { rate_mbit: 20.0, queue: 50 }),
        };
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(parse(&words), Directions::from(expected));
        let short = line.replace("-ms", "").replace("-mbit", "");
        let words: Vec<_> = short.split_whitespace().collect();
        assert_eq!(parse(&words), Directions::from(expected));
        let by_time = parse(&["--loss=5", "--burst-ms=20"]);
        assert_eq!(by_time.up.initial.burst, Some(Burst::Time(20 * MS)));
    }

    #[test]
    fn option_of_a_direction_goes_before_that_of_both() {
        let line = [
            "--up-loss",
            "1",
            "--loss",
            "2",
            "--down-delay",
            "70",
            "--ordered",
            "--up-ordered=false",
        ];
        let Directions { up, down } = parse(&line);
        assert_eq!((up.initial.loss, down.initial.loss), (1.0, 2.0));
        assert_eq!((up.initial.delay, down.initial.delay), (25 * MS, 70 * MS));
        assert_eq!((up.initial.ordered, down.initial.ordered), (false, true));
        // Each of them alone.
        for name in &NAMES {
            let value = if name.longs[0] == "ordered" { "true" } else { "3" };
            let set = |index: usize| {
                let mut line = vec![format!("--{}={value}", name.longs[index])];
                match name.longs[0] {
                    "burst" | "burst-ms" => line.push("--loss=5".into()),
                    "queue" => line.push("--rate=5".into()),
                    "rate-mbit" => line.push("--queue=5".into()),
                    _ => {}
                }
                let words: Vec<_> = line.iter().map(String::as_str).collect();
                directions(&words)
            };
            let both = set(0).expect("good options");
            assert_eq!(both.up, both.down, "{}", name.longs[0]);
            // A rate for both needs a queue for both.
            if name.longs[0] != "queue" {
                for index in [1, 2] {
                    let one = set(index).expect("good options");
                    let (set, other) =
                        if index == 1 { (&one.up, &one.down) } else { (&one.down, &one.up) };
                    assert_eq!(*set, both.up, "{}", name.longs[index]);
                    assert_ne!(*other, both.up, "{}", name.longs[index]);
                }
            }
        }
    }

    #[test]
    fn steps_change_what_they_name_and_keep_the_rest() {
        // Not in the order of time, and two at the same time.
        let Directions { up, down } = parse(&[
            "--loss=1",
            "--up-loss=2",
            "--queue=50",
            "--burst=3",
            "--at=10 loss=0",
            "--at=5 loss=10 rate=5",
            "--at=5 up-delay=40 down-burst-ms=20",
            "--at=7.5 down-loss=4",
        ]);
        let bottleneck = Some(Bottleneck { rate_mbit: 5.0, queue: 50 });
        let burst = Some(Burst::Packets(3.0));
        let initial = Conditions { loss: 2.0, burst, ..Conditions::default() };
        let first = Conditions { loss: 10.0, delay: 40 * MS, bottleneck, ..initial };
        let last = Conditions { loss: 0.0, burst: None, ..first };
        let step = |millis, conditions| Step { at: MS * millis, conditions };
        let steps = vec![step(5_000, first), step(7_500, first), step(10_000, last)];
        assert_eq!(up, Schedule { initial, steps, ..Schedule::default() });

        let initial = Conditions { loss: 1.0, ..initial };
        let burst = Some(Burst::Time(20 * MS));
        let first = Conditions { loss: 10.0, burst, bottleneck, ..initial };
        let second = Conditions { loss: 4.0, ..first };
        let last = Conditions { loss: 0.0, burst: None, ..first };
        let steps = vec![step(5_000, first), step(7_500, second), step(10_000, last)];
        assert_eq!(down, Schedule { initial, steps, ..Schedule::default() });
    }

    /// A file with this text, which has the name of the test.
    fn file(name: &str, text: &str) -> String {
        let directory = std::env::temp_dir().join(format!("kcpx-relay-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for temporary files");
        let file = directory.join(name);
        std::fs::write(&file, text).expect("a temporary file");
        file.display().to_string()
    }

    #[test]
    fn traces_replace_rate_and_delay() {
        let (up, delay) = (file("good.up", "1\n5\n5\n"), file("good.delay", "10\n20\n"));
        let line = ["--trace-up", &up, "--trace-delay", &delay, "--trace-offset=2.5", "--loss=1"];
        let both = parse(&line);
        let rate = both.up.replay.rate.as_ref().expect("a trace");
        assert_eq!((&rate.file, rate.queue, rate.offset), (&up, 300, 2_500 * MS));
        assert_eq!(rate.trace, kcpx_relay::Trace::parse("1\n5\n5").expect("a trace"));
        assert_eq!(both.down.replay.rate, None);
        for direction in [&both.up, &both.down] {
            let delay = direction.replay.delay.as_ref().expect("a trace");
            assert_eq!(delay.offset, 2_500 * MS);
            assert_eq!(direction.initial.loss, 1.0);
        }
        let both = parse(&["--trace-down", &up, "--queue=40", "--delay=3"]);
        assert_eq!(both.down.replay.rate.map(|rate| rate.queue), Some(40));
        assert_eq!(both.down.initial.delay, 3 * MS);
    }

    #[test]
    fn bad_traces_are_rejected_with_file_and_line() {
        let good = file("good", "1\n5");
        for (name, text, expected) in [
            ("empty", "", "the file is empty: write at least one line"),
            ("zero", "0\n0", "line 2: the trace ends at 0 ms: end it with its length"),
            ("unsorted", "5\n4", "line 2: 4 ms comes after 5 ms: sort the lines"),
            ("words", "5\nabc", "line 2 is 'abc': write one whole number"),
        ] {
            let path = file(name, text);
            for option in ["--trace-up", "--trace-down"] {
                let error = format!("{:#}", directions(&[option, &path]).expect_err("bad trace"));
                assert_eq!(
                    error.find(&format!("{option}: {path}: {expected}")),
                    Some(0),
                    "{error}"
                );
            }
        }
        for (line, expected) in [
            (&["--trace-up", "missing"][..], "--trace-up: cannot read missing: give a trace"),
            (
                &["--trace-up", &good, "--rate=5", "--queue=5"],
                "a trace and a rate exclude each other",
            ),
            (&["--trace-up", &good, "--queue=0"], "queue must be at least 1 packet, got 0"),
            (
                &["--trace-up", &good, "--at=5 queue=9"],
                "--trace-up requires one --queue at all times",
            ),
            (&["--trace-delay", &good, "--delay=9"], "exclude each other: give one of them"),
            (
                &["--trace-up", &good, "--trace-offset=-1"],
                "must be at least 0 seconds, as in 7.5, got -1",
            ),
            (&["--trace-offset=1"], "--trace-offset needs a trace: give --trace-up"),
        ] {
            let error = format!("{:#}", directions(line).expect_err("bad options"));
            assert!(error.contains(expected), "{line:?}: {error}, not {expected}");
        }
    }

    #[test]
    fn bad_conditions_are_rejected_with_their_range() {
        for (line, expected) in [
            (&["--loss=x"][..], "loss must be a number, got 'x'"),
            (&["--loss", "-5"], "loss must be between 0 and 100 %, got -5"),
            (
                &["--down-loss=101"],
                "from server to client: loss must be between 0 and 100 %, got 101",
            ),
            (&["--delay", "-5"], "delay-ms must be between 0 and 10000 milliseconds, got '-5'"),
            (&["--delay=nan"], "between 0 and 10000 milliseconds, got 'nan'"),
            (&["--jitter=10000"], "must be at most 10s together"),
            (&["--ordered=x"], "ordered must be true or false, got 'x'"),
            (&["--burst=3"], "bursts need losses: give a --loss above 0"),
            (&["--burst-ms=20"], "bursts need losses: give a --loss above 0"),
            (&["--up-burst=3", "--down-loss=5"], "bursts need losses"),
            (&["--loss=5", "--burst=3", "--burst-ms=20"], "exclude each other: give one of them"),
            (&["--loss=5", "--burst=0.5"], "burst must be between 1 and 1000000 packets, got 0.5"),
            (&["--loss=80", "--burst=3"], "must be at most 75.00 %, got 80"),
            (&["--loss=5", "--burst-ms=0.1"], "must be between 1ms and 10s, got 100µs"),
            (&["--rate=5"], "needs a queue: give --queue"),
            (&["--queue=5"], "a queue needs a rate: give --rate-mbit"),
            (&["--up-rate=5", "--down-queue=5"], "a queue needs a rate"),
            (&["--rate=5", "--queue=0"], "queue must be at least 1 packet, got 0"),
            (
                &["--rate=5", "--queue=1.5"],
                "must be a whole number of packets, at least 1, got '1.5'",
            ),
            (&["--rate=0", "--queue=5"], "must be between 0.001 and 1000000 Mbit/s, got 0"),
            (&["--at="], "must begin with seconds, as in '5 loss=10 rate=5', got ''"),
            (&["--at=loss=5"], "must begin with seconds, as in '5 loss=10 rate=5', got 'loss=5'"),
            (&["--at=-1 loss=5"], "got '-1'"),
            (&["--at=5"], "a step must have a change"),
            (&["--at=5 loss"], "a change must be NAME=VALUE, as in loss=10, got 'loss'"),
            (&["--at=5 lost=3"], "unknown condition 'lost': use delay-ms, jitter-ms"),
            (&["--at=5 loss=3 loss=4"], "loss is given twice: give it once"),
            (&["--at=5 loss=300"], "the step at 5s: loss must be between 0 and 100 %, got 300"),
            (&["--at=5 rate=5"], "the step at 5s: a rate of 5 Mbit/s needs a queue"),
            (&["--at=5 burst=5"], "bursts need losses"),
        ] {
            let error = directions(line).expect_err("bad options");
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{line:?}: {error}, not {expected}");
        }
    }
}
