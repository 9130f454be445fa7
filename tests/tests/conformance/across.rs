//! One memory on two devices of one process: another opening of a driver, another API on the same GPU.

use std::time::{Duration, Instant};

use onebuf::{
    Buffer, Device, DeviceKind, DeviceUse, Error, HandleKind, Handover, HostAccess, HostPath, Kernel, Share,
    Stream, args,
};
use onebuf_tests::{Subject, kernels, lab, resources, seeds};

/// Two devices, and the way by which they have one memory.
struct Pair<'a> {
    subject: &'a Subject,
    there: Device,
    way: HandleKind,
    device_use: DeviceUse,
}

impl Pair<'_> {
    fn name(&self) -> String {
        let (there, way, device_use) = (&self.there.info().id, self.way.name(), self.device_use);
        format!("{} to {there} by {way}, {device_use:?} use", self.subject.name)
    }

    fn build(&self, len: usize) -> Buffer<u32> {
        build(self.subject, self.way, self.device_use, len).unwrap()
    }

    /// A buffer of zeros here, and the same there.
    fn both(&self, len: usize) -> (Buffer<u32>, Buffer<u32>) {
        let mine = self.build(len);
        let theirs = mine.on(&self.there).unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        (mine, theirs)
    }
}

/// A device's part in a test: a stream and a kernel.
struct Side {
    device: Device,
    stream: Stream,
    step: Kernel,
    mix: Kernel,
}

impl Side {
    fn new(device: &Device) -> Side {
        Side {
            device: device.clone(),
            stream: device.stream().unwrap(),
            step: device.kernel(kernels::STEP).unwrap().build().unwrap(),
            mix: device.kernel(kernels::MIX).unwrap().build().unwrap(),
        }
    }

    fn step(&self, buffer: &Buffer<u32>, k: u32) {
        let groups = self.step.groups_for([buffer.len() as u32, 1, 1]);
        self.stream.launch(&self.step, groups, args![buffer, k]).unwrap();
    }

    fn mix(&self, from: &Buffer<u32>, to: &Buffer<u32>, k: u32) {
        self.try_mix(from, to, k).unwrap();
    }

    fn try_mix(&self, from: &Buffer<u32>, to: &Buffer<u32>, k: u32) -> onebuf::Result<()> {
        let groups = self.mix.groups_for([to.len() as u32, 1, 1]);
        self.stream.launch(&self.mix, groups, args![from, to, k]).map(drop)
    }
}

/// Does something again for as long as a guard of another thread is in its way.
fn until_free(mut work: impl FnMut() -> onebuf::Result<()>) {
    loop {
        match work() {
            Err(Error::Busy(_)) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

fn build(
    subject: &Subject,
    way: HandleKind,
    device_use: DeviceUse,
    len: usize,
) -> onebuf::Result<Buffer<u32>> {
    let builder = subject.device.buffer(len).share(Share::Api).ways([way]);
    builder.host(HostAccess::ReadWrite).device_use(device_use).build()
}

/// Runs a case for each pair of devices: every real one with another opening of itself, and with every other of the same
/// UUID, by each way that both have.
fn each_pair(case: impl Fn(&Pair<'_>)) {
    lab::on_real_devices(|subject| {
        let mine = subject.device.info();
        let mut any = false;
        for adapter in lab::registry().adapters().adapters.iter().filter(|adapter| adapter.rejected.is_none())
        {
            let same = adapter.info.id == mine.id;
            if !same && (adapter.info.uuid.is_none() || adapter.info.uuid != mine.uuid) {
                continue;
            }
            let there = lab::registry().open(&adapter.info.id.to_string()).unwrap();
            for (way, device_use) in [
                (HandleKind::OpaqueFd, DeviceUse::Heavy),
                (HandleKind::OpaqueFd, DeviceUse::Streaming),
                (HandleKind::Memfd, DeviceUse::Streaming),
            ] {
                let Ok(probe) = build(subject, way, device_use, 1) else { continue };
                match probe.on(&there) {
                    Ok(_) => {
                        any = true;
                        case(&Pair { subject, there: there.clone(), way, device_use });
                    }
                    // Pages of the CPU, which the other device may not import.
                    Err(Error::Unsupported { .. }) if way == HandleKind::Memfd => {}
                    // Memory of the CPU that one API exported, which another would not see as it is.
                    Err(Error::Unsupported { reason, .. })
                        if probe.placement().path == HostPath::HostMemory
                            && adapter.info.id.backend != mine.id.backend =>
                    {
                        assert!(reason.contains("Memfd"), "{reason}");
                    }
                    // A driver's own descriptor opens on its own device again, and with another API on the same hardware.
                    Err(error) => panic!("{} to {} by {}: {error}", mine.id, there.info().id, way.name()),
                }
            }
        }
        if !any {
            subject.skip("it has no memory in common with another device");
        }
    });
}

#[test]
fn two_devices_have_one_memory() {
    each_pair(|pair| {
        for len in [1usize, 1000, 70_000] {
            let (mine, theirs) = pair.both(len);
            assert_eq!(
                (theirs.len(), theirs.device().info().id.clone()),
                (len, pair.there.info().id.clone())
            );
            assert!(
                theirs.read().unwrap().iter().all(|&word| word == 0),
                "{}: shared memory begins as zeros",
                pair.name()
            );
            let pattern = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) ^ 0x5bd1;
            mine.write().unwrap().iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
            let there = Side::new(&pair.there);
            there.step(&theirs, 7);
            let here = Side::new(&pair.subject.device);
            here.step(&mine, 9);
            let expected: Vec<u32> =
                (0..len).map(|i| kernels::step(kernels::step(pattern(i), 7), 9)).collect();
            assert_eq!(*theirs.read().unwrap(), expected[..], "{}", pair.name());
            theirs.overwrite().unwrap().fill(3);
            here.step(&mine, 1);
            assert!(mine.read().unwrap().iter().all(|&word| word == 16), "{}", pair.name());
        }
    });
}

#[test]
fn asking_again_gives_the_same_memory() {
    each_pair(|pair| {
        let (mine, theirs) = pair.both(100);
        let before = pair.there.memory().buffers;
        let again = mine.on(&pair.there).unwrap();
        assert!(again.same_memory(&theirs) && pair.there.memory().buffers == before);
        // And back: what the first device has is found there.
        assert!(theirs.on(&pair.subject.device).unwrap().same_memory(&mine));
        assert!(mine.on(&pair.subject.device).unwrap().same_memory(&mine));
        // A part is the part there, too.
        mine.write().unwrap().iter_mut().enumerate().for_each(|(i, word)| *word = i as u32);
        let share = mine.slice(10..20).unwrap().share().unwrap();
        // SAFETY: it is this process's own memory, found and not opened.
        let part: Buffer<u32> = unsafe { pair.subject.device.open_shared(&share) }.unwrap();
        let part_there = part.on(&pair.there).unwrap();
        assert_eq!(*part_there.read().unwrap(), std::array::from_fn::<u32, 10, _>(|i| 10 + i as u32));
        assert!(part_there.same_memory(&theirs));
    });
}

#[test]
fn a_guard_on_one_holds_off_the_work_of_both() {
    each_pair(|pair| {
        let (mine, theirs) = pair.both(64);
        let (here, there) = (Side::new(&pair.subject.device), Side::new(&pair.there));
        let refused = |side: &Side, buffer: &Buffer<u32>| {
            let outcome = side.stream.launch(&side.step, [1, 1, 1], args![buffer, 1u32]);
            assert!(matches!(outcome, Err(Error::Busy(_))), "{}: {outcome:?}", pair.name());
        };
        let writing = mine.write().unwrap();
        refused(&there, &theirs);
        refused(&here, &mine);
        assert!(matches!(theirs.try_read(), Err(Error::Busy(_))));
        drop(writing);
        let reading = theirs.read().unwrap();
        let beside = mine.read().unwrap();
        refused(&here, &mine);
        assert!(matches!(mine.try_write(), Err(Error::Busy(_))));
        drop((reading, beside));
        there.step(&theirs, 5);
        assert_eq!(mine.read().unwrap()[0], 5);
    });
}

#[test]
fn ten_thousand_turns_leave_the_right_word() {
    const TURNS: u32 = 10_000;
    each_pair(|pair| {
        let software = pair.subject.device.info().kind == DeviceKind::Software;
        for handover in [Handover::Auto, Handover::Host, Handover::Timeline] {
            // A turn by a timeline takes over a millisecond between CUDA and Vulkan.
            let turns = match handover {
                _ if software => 500,
                Handover::Timeline => TURNS / 10,
                _ => TURNS,
            };
            pair.there.set_handover(handover);
            pair.subject.device.set_handover(handover);
            let (mine, theirs) = pair.both(256);
            let (here, there) = (Side::new(&pair.subject.device), Side::new(&pair.there));
            // What lies beside it is nobody's.
            let canary = pair.build(256);
            canary.write().unwrap().fill(0xcafe_f00d);
            let mut expected = 0;
            let start = Instant::now();
            for turn in 0..turns {
                if turn % 2 == 0 {
                    here.step(&mine, turn);
                } else {
                    there.step(&theirs, turn);
                }
                expected = kernels::step(expected, turn);
                if turn % 499 == 0 {
                    assert!(
                        mine.read().unwrap().iter().all(|&word| word == expected),
                        "{} {handover:?}",
                        pair.name()
                    );
                }
            }
            let seen = theirs.read().unwrap();
            assert!(
                seen.iter().all(|&word| word == expected),
                "{} {handover:?}: {} of {expected}",
                pair.name(),
                seen[0]
            );
            assert!(canary.read().unwrap().iter().all(|&word| word == 0xcafe_f00d));
            let counts = pair.there.handovers();
            let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(turns);
            lab::say(&format!(
                "{}, {handover:?}: {turns} turns of {each:.1} us, {counts:?} in all",
                pair.name()
            ));
        }
    });
}

#[test]
fn slow_work_on_one_is_waited_for_by_the_other() {
    each_pair(|pair| {
        for handover in [Handover::Auto, Handover::Host, Handover::Timeline] {
            pair.there.set_handover(handover);
            let there = Side::new(&pair.there);
            let before = pair.there.handovers();
            pair.subject.at_work(Duration::from_millis(20), |slow| {
                let (mine, theirs) = pair.both(1);
                mine.write().unwrap()[0] = 77;
                let stream = pair.subject.stream();
                slow.start(&stream, &mine);
                let running = !pair.subject.device.is_done(stream.last()).unwrap();
                // Its stream and its buffer go; the work and the memory stay. (Imported pages are waited for.)
                drop(stream);
                let kept = (pair.way == HandleKind::Memfd).then_some(mine);
                there.step(&theirs, 3);
                assert_eq!(
                    theirs.read().unwrap()[0],
                    kernels::step(slow.model(77), 3),
                    "{} {handover:?}",
                    pair.name()
                );
                drop(kept);
                running
            });
            let after = pair.there.handovers();
            assert!(
                after.by_host + after.by_timeline > before.by_host + before.by_timeline,
                "{}",
                pair.name()
            );
        }
    });
}

#[test]
fn either_side_may_go_first() {
    each_pair(|pair| {
        let (here, there) = (Side::new(&pair.subject.device), Side::new(&pair.there));
        for first in ["mine", "theirs"] {
            let (mine, theirs) = pair.both(1000);
            here.step(&mine, 1);
            there.step(&theirs, 2);
            here.step(&mine, 3);
            let expected = kernels::step(kernels::step(kernels::step(0, 1), 2), 3);
            let kept = if first == "mine" {
                drop(mine);
                theirs
            } else {
                drop(theirs);
                mine
            };
            assert!(
                kept.read().unwrap().iter().all(|&word| word == expected),
                "{}, {first} first",
                pair.name()
            );
        }
        // The device itself: its last work is still waited for.
        let other = lab::registry().open(&pair.there.info().id.to_string()).unwrap();
        let mine = pair.build(1000);
        let theirs = mine.on(&other).unwrap();
        Side::new(&other).step(&theirs, 8);
        drop((theirs, other));
        assert!(mine.read().unwrap().iter().all(|&word| word == 8), "{}", pair.name());
    });
}

#[test]
fn random_schedules_agree_with_a_sequential_model() {
    const BUFFERS: usize = 3;
    each_pair(|pair| {
        let sides = [Side::new(&pair.subject.device), Side::new(&pair.there)];
        seeds::each_within(60, Duration::from_secs(20), |rng| {
            let way = rng.choice([Handover::Auto, Handover::Host, Handover::Timeline]).unwrap_or_default();
            sides.iter().for_each(|side| side.device.set_handover(way));
            let buffers: Vec<[Buffer<u32>; 2]> = (0..BUFFERS)
                .map(|_| {
                    let (mine, theirs) = pair.both(64);
                    [mine, theirs]
                })
                .collect();
            let mut model = [0u32; BUFFERS];
            for k in 0..40u32 {
                let (at, from, on) = (rng.usize(..BUFFERS), rng.usize(..BUFFERS), rng.usize(..2));
                let (side, target) = (&sides[on], &buffers[at][on]);
                match rng.u32(..6) {
                    0 | 1 => {
                        side.step(target, k);
                        model[at] = kernels::step(model[at], k);
                    }
                    2 if from != at => {
                        side.mix(&buffers[from][on], target, k);
                        model[at] = kernels::mix(model[at], model[from], k);
                    }
                    3 => {
                        side.stream.fill(target, k).unwrap();
                        model[at] = k;
                    }
                    4 => {
                        target.write().unwrap().iter_mut().for_each(|word| *word ^= k);
                        model[at] ^= k;
                    }
                    _ => {
                        let words = target.read().unwrap();
                        let wrong = words.iter().position(|&word| word != model[at]);
                        let seen = wrong.map(|i| (i, words[i]));
                        assert_eq!(seen, None, "{}, step {k}: {} wanted", pair.name(), model[at]);
                    }
                }
            }
            for (buffer, expected) in buffers.iter().zip(model) {
                assert!(buffer[1].read().unwrap().iter().all(|&word| word == expected), "{}", pair.name());
            }
        });
    });
}

#[test]
fn threads_that_cross_devices_do_not_block_each_other() {
    const ROUNDS: u32 = 100;
    each_pair(|pair| {
        let ((a, a_there), (b, b_there)) = (pair.both(64), pair.both(64));
        let (here, there) = (Side::new(&pair.subject.device), Side::new(&pair.there));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..ROUNDS).for_each(|k| until_free(|| here.try_mix(&a, &b, k))));
            scope.spawn(|| (0..ROUNDS).for_each(|k| until_free(|| there.try_mix(&b_there, &a_there, k))));
            scope.spawn(|| (0..ROUNDS).for_each(|_| drop((a_there.read().unwrap(), b.read().unwrap()))));
        });
        // What came out depends on who was first; that all of each buffer saw the same order does not.
        for buffer in [a, b_there] {
            let words = buffer.read().unwrap();
            assert!(words.iter().all(|&word| word == words[0]), "{}", pair.name());
        }
    });
}

#[test]
fn a_thousand_times_leave_nothing() {
    each_pair(|pair| {
        let cycles = if pair.subject.device.info().kind != DeviceKind::Software { 250 } else { 100 };
        let (here, there) = (Side::new(&pair.subject.device), Side::new(&pair.there));
        let objects = pair.there.shared_objects();
        resources::settles(4, 48 << 20, || {
            for _ in 0..cycles {
                let (mine, theirs) = pair.both(500);
                here.step(&mine, 1);
                there.step(&theirs, 1);
            }
            here.device.wait_idle().unwrap();
            there.device.wait_idle().unwrap();
        });
        assert_eq!(pair.there.shared_objects(), objects);
    });
}

#[test]
fn what_cannot_be_on_both_is_refused_with_the_remedy() {
    each_pair(|pair| {
        let plain = pair.subject.device.buffer::<u32>(16).build().unwrap();
        let refused = plain.on(&pair.there).unwrap_err();
        assert!(
            matches!(refused, Error::Unsupported { .. }) && refused.to_string().contains(".share("),
            "{refused}"
        );
        // Open by another way, with an order of its own.
        let mine = pair.build(16);
        // SAFETY: no work uses either.
        let apart = unsafe { pair.there.open_shared::<u32>(&mine.share().unwrap()) };
        let other_api = pair.there.info().id.backend != pair.subject.device.info().id.backend;
        if other_api && pair.way != HandleKind::Memfd {
            // What comes from anywhere is not believed to be another API's.
            assert!(matches!(apart, Err(Error::InvalidArgument(_))), "{}", pair.name());
            return;
        }
        let apart = apart.unwrap();
        let refused = mine.on(&pair.there).unwrap_err();
        assert!(
            matches!(refused, Error::InvalidArgument(_)) && refused.to_string().contains("drop that"),
            "{refused}"
        );
        drop(apart);
        mine.on(&pair.there).unwrap();
    });
}

/// Memory that the CPU writes through a bus window, without work of the device whose window it is.
#[test]
fn what_the_cpu_writes_through_a_window_is_seen_there() {
    each_pair(|pair| {
        let builder = pair.subject.device.buffer::<u32>(4096).share(Share::Api).ways([pair.way]);
        let mine = builder.host(HostAccess::Write).build().unwrap();
        let theirs = match mine.on(&pair.there) {
            Ok(theirs) => theirs,
            // Placed in memory of the CPU.
            Err(Error::Unsupported { .. }) => return assert_eq!(mine.placement().path, HostPath::HostMemory),
            Err(error) => panic!("{}: {error}", pair.name()),
        };
        let there = Side::new(&pair.there);
        for round in 0..100u32 {
            mine.overwrite().unwrap().fill(round);
            there.step(&theirs, 3);
            let expected = kernels::step(round, 3);
            assert!(theirs.read_to_vec().unwrap().iter().all(|&word| word == expected), "{}", pair.name());
        }
    });
}

/// One thread's launch waits for the other device, and another thread has a time limit, or none to give.
#[test]
fn time_limits_are_kept_while_a_launch_waits_for_the_other_device() {
    const LIMIT: Duration = Duration::from_millis(30);
    each_pair(|pair| {
        pair.there.set_handover(Handover::Host);
        let there = Side::new(&pair.there);
        pair.subject.at_work(Duration::from_millis(400), |slow| {
            let (mine, theirs) = pair.both(1);
            let stream = pair.subject.stream();
            slow.start(&stream, &mine);
            std::thread::scope(|scope| {
                let launch = scope.spawn(|| there.step(&theirs, 3));
                // The launch has its time to begin.
                std::thread::sleep(LIMIT);
                let start = Instant::now();
                let outcomes = [
                    mine.settle(LIMIT),
                    theirs.settle(LIMIT),
                    theirs.read_timeout(LIMIT).map(drop),
                    theirs.try_read().map(drop),
                ];
                let took = start.elapsed();
                let waiting = !launch.is_finished();
                launch.join().unwrap();
                if !waiting {
                    return false;
                }
                for outcome in outcomes {
                    assert!(
                        matches!(outcome, Err(Error::Timeout { .. } | Error::Busy(_))),
                        "{}: {outcome:?}",
                        pair.name()
                    );
                }
                assert!(took < 8 * LIMIT, "{}: {took:?}", pair.name());
                true
            })
        });
    });
}
