//! Drivers that fail: an error, nothing half done, and what can go on goes on.

use std::time::Duration;

use onebuf::{DeviceUse, Error, HostAccess, args};
use onebuf_sim::{Call, Options};
use onebuf_tests::{kernels, lab};

fn told() -> Error {
    Error::Driver { call: "told", code: "to fail".into() }
}

#[test]
fn a_failed_submission_leaves_no_trace() {
    for (what, options) in
        [("failures", Options::default as fn() -> Options), ("failures, staged", Options::discrete)]
    {
        lab::on_simulation(what, options, |subject| {
            let control = subject.control().unwrap();
            let (step, stream) = (subject.kernel(kernels::STEP), subject.stream());
            let data = subject.zeros::<u32>(64);
            let mut expected = 0u32;
            for k in 0..30u32 {
                if k % 3 == 1 {
                    control.fail(Call::Submit, told());
                    assert_eq!(stream.launch(&step, [1, 1, 1], args![data, k]), Err(told()));
                } else {
                    stream.launch(&step, [1, 1, 1], args![data, k]).unwrap();
                    expected = kernels::step(expected, k);
                }
            }
            assert_eq!(*data.read().unwrap(), [expected; 64]);
        });
    }
}

#[test]
fn a_failed_wait_is_told_and_takes_no_guard() {
    lab::on_simulation("failures", Options::default, |subject| {
        let control = subject.control().unwrap();
        let data = subject.zeros::<u32>(4);
        let stream = subject.stream();
        for call in [Call::Wait, Call::Invalidate] {
            stream.fill(&data, 5).unwrap();
            control.fail(call, told());
            assert_eq!(data.read().map(drop), Err(told()), "{call:?}");
            // No claim is left behind: the device may write, and so may the CPU.
            stream.fill(&data, 6).unwrap();
            assert_eq!(*data.write().unwrap(), [6; 4], "{call:?}");
        }
    });
}

#[test]
fn memory_of_a_failed_build_comes_back() {
    lab::on_simulation("failures", Options::discrete, |subject| {
        let control = subject.control().unwrap();
        let before = subject.device.memory();
        for call in [Call::Allocate, Call::Submit, Call::Flush] {
            control.fail(call, told());
            let builder = subject.device.buffer::<u32>(100_000).host(HostAccess::ReadWrite);
            let outcome = builder.device_use(DeviceUse::Heavy).init(&[1; 100_000]);
            assert_eq!(outcome.map(drop), Err(told()), "{call:?}");
            let after = subject.device.memory();
            assert_eq!((after.live_bytes, after.buffers), (before.live_bytes, before.buffers), "{call:?}");
        }
        // A full kind of memory is not the end: the next one is tried.
        let full = Error::OutOfMemory { asked_bytes: 1, free_bytes: None, never_fits: false };
        control.fail(Call::Allocate, full);
        let buffer = subject.device.buffer::<u32>(4000).build().unwrap();
        assert_eq!(buffer.placement().kind, "host memory", "{}", buffer.placement());
        assert!(buffer.placement().to_string().contains("video memory"), "{}", buffer.placement());
        // Nor is one that refuses what its profile promised.
        control.fail(
            Call::Allocate,
            Error::unsupported("a buffer in this memory", "the driver does not allow it"),
        );
        let buffer = subject.device.buffer::<u32>(5000).build().unwrap();
        assert_eq!(buffer.placement().kind, "host memory", "{}", buffer.placement());
    });
}

#[test]
fn a_lost_device_says_so_and_everything_can_be_dropped() {
    for (what, options) in
        [("a loss", Options::default as fn() -> Options), ("a loss, staged", Options::discrete)]
    {
        lab::on_simulation(what, options, |subject| {
            let device = &subject.device;
            let (step, stream) = (subject.kernel(kernels::STEP), subject.stream());
            let data = subject.zeros::<u32>(64);
            let guard = data.read().unwrap();
            let mut builder = device.graph();
            builder.fill(&data, 1).unwrap();
            let graph = builder.build().unwrap();
            let writer = subject.zeros::<u32>(64);
            let mut held = writer.write().unwrap();
            subject.control().unwrap().lose_after(2);
            let other = subject.zeros::<u32>(64);
            let lost = (0..5u32).find_map(|k| stream.launch(&step, [1, 1, 1], args![other, k]).err());
            let lost = lost.expect("five launches on a device that takes two");
            assert!(matches!(lost, Error::DeviceLost(_)), "{lost}");
            // What was handed out can be looked at, and given back.
            assert!(guard.iter().all(|&word| word == 0));
            held.fill(9);
            drop((guard, held));
            let all = [
                stream.launch(&step, [1, 1, 1], args![other, 1u32]).map(drop),
                stream.fill(&other, 1).map(drop),
                stream.replay(&graph).map(drop),
                stream.event().map(drop),
                stream.wait(),
                stream.wait_timeout(Duration::from_millis(1)),
                device.wait_idle(),
                other.read().map(drop),
                device.stream().map(drop),
                device.kernel(kernels::MIX).and_then(|kernel| kernel.build()).map(drop),
                device.buffer::<u8>(12_345).build().map(drop),
            ];
            for (case, outcome) in all.into_iter().enumerate() {
                assert!(matches!(outcome, Err(Error::DeviceLost(_))), "case {case}: {outcome:?}");
            }
            drop((data, writer, other, graph, step, stream));
            assert_eq!(device.memory().buffers, 0);
        });
    }
}

#[test]
fn slow_devices_are_waited_for() {
    lab::on_simulation("work that takes 30 ms", Options::default, |subject| {
        subject.control().unwrap().slow_work(Duration::from_millis(30));
        let (stream, data) = (subject.stream(), subject.zeros::<u32>(4));
        let start = std::time::Instant::now();
        stream.fill(&data, 3).unwrap();
        assert!(matches!(data.try_read(), Err(Error::Busy(_))));
        let limit = Duration::from_millis(2);
        assert!(matches!(data.read_timeout(limit), Err(Error::Timeout { .. })));
        assert!(matches!(stream.wait_timeout(limit), Err(Error::Timeout { .. })));
        assert_eq!(*data.read().unwrap(), [3; 4]);
        assert!(start.elapsed() >= Duration::from_millis(29));
        subject.control().unwrap().slow_work(Duration::ZERO);
    });
}
