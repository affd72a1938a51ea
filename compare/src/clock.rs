//! The clock of the timestamps in messages: CLOCK_MONOTONIC, which all processes of a machine share
//! in whatever network namespace they are, as time since its origin.
//!
//! Not `std::time::Instant`: it has no value that another process could be sent.

#[cfg(target_os = "linux")]
pub(crate) use linux::{Alarm, now};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{Alarm, now};

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::{AsFd as _, AsRawFd, RawFd};
    use std::time::Duration;

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub(crate) fn now() -> io::Result<Duration> {
        Ok(nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?.into())
    }

    /// A timer of the kernel: Tokio's rounds up to whole milliseconds, which would be a part of every
    /// latency.
    pub(crate) struct Alarm(AsyncFd<Timer>);

    impl Alarm {
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe; a Timer owns its descriptor as long as it lives"
        )]
        pub(crate) fn new() -> io::Result<Self> {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let timer = Timer(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
            Ok(Self(AsyncFd::with_interest(timer, Interest::READABLE)?))
        }

        /// Waits until the clock shows `time`.
        pub(crate) async fn until(&self, time: Duration) -> io::Result<()> {
            let once = Expiration::OneShot(TimeSpec::from_duration(time));
            self.0.get_ref().0.set(once, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            loop {
                let mut ready = self.0.readable().await?;
                if let Ok(expired) = ready.try_io(|timer| Ok(timer.get_ref().0.wait()?)) {
                    return expired;
                }
            }
        }
    }

    struct Timer(TimerFd);

    impl AsRawFd for Timer {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;
    use std::time::Duration;

    pub(crate) fn now() -> io::Result<Duration> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "messages are timed on Linux alone"))
    }

    pub(crate) struct Alarm;

    impl Alarm {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn until(&self, _time: Duration) -> io::Result<()> {
            now().map(|_| ())
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn alarm_is_never_early_and_a_past_time_does_not_wait() {
        let alarm = Alarm::new().unwrap();
        for _ in 0..3 {
            let due = now().unwrap() + Duration::from_millis(2);
            alarm.until(due).await.unwrap();
            assert!(now().unwrap() >= due);
        }
        let past = now().unwrap() - Duration::from_millis(2);
        alarm.until(past).await.unwrap();
    }
}
