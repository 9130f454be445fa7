//! Drivers that fail, take their time, or lose the device: an error each, no panic, and what can go on goes on.

use std::time::{Duration, Instant};

use onebuf::{DeviceUse, Error, HostAccess, args};
use onebuf_sim::{Call, Options};

use crate::{ADD, World};

fn told() -> Error {
    Error::Driver { call: "told", code: "to fail".into() }
}

#[test]
fn every_call_may_fail_once() {
    let Some(world) = World::new(Options::discrete_non_coherent(64)) else { return };
    let (device, control) = (&world.device, &world.control);
    let fails = |call: Call, act: &dyn Fn() -> onebuf::Result<()>| {
        control.fail(call, told());
        assert_eq!(act(), Err(told()), "{call:?}");
        act().unwrap_or_else(|error| panic!("{call:?}, the second time: {error}"));
    };
    let stream = device.stream().unwrap();
    let build = || device.buffer::<u32>(1000).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy);
    let data = build().init(&[1; 1000]).unwrap();
    let other = build().zeroed().build().unwrap();
    let add = device.kernel(ADD).unwrap().build().unwrap();
    fails(Call::Allocate, &|| device.buffer::<u8>(300_000).build().map(drop));
    fails(Call::Compile, &|| device.kernel(ADD)?.build().map(drop));
    fails(Call::CreateStream, &|| device.stream().map(drop));
    fails(Call::Submit, &|| stream.launch(&add, [125, 1, 1], args![&data, 1u32]).map(drop));
    fails(Call::Submit, &|| stream.copy(&data, &other).map(drop));
    fails(Call::Submit, &|| data.read().map(drop));
    fails(Call::Submit, &|| data.copy_from_slice(&[2; 1000]));
    fails(Call::Flush, &|| data.copy_from_slice(&[2; 1000]));
    fails(Call::Invalidate, &|| data.read().map(drop));
    fails(Call::Wait, &|| data.read().map(drop));
    fails(Call::Wait, &|| stream.wait());
    fails(Call::Event, &|| stream.event().map(drop));
    let mut builder = device.graph();
    let node = builder.launch(&add, [125, 1, 1], args![&data, 1u32]).unwrap();
    let mut graph = builder.build().unwrap();
    fails(Call::Replay, &|| stream.replay(&graph).map(drop));
    control.fail(Call::UpdateGraph, told());
    assert_eq!(graph.update(node, args![&other, 1u32]), Err(told()));
    stream.replay(&graph).unwrap();
    assert_eq!(data.read().unwrap()[..], [4; 1000], "two replays of the graph as it was");
    let mut builder = device.graph();
    builder.fill(&other, 1).unwrap();
    control.fail(Call::CreateGraph, told());
    assert_eq!(builder.build().map(drop), Err(told()));
    world.check();
    drop((data, other, graph, stream));
    device.wait_idle().unwrap();
    assert_eq!(device.memory().buffers, 0);
}

#[test]
fn a_lost_device_says_so_everywhere() {
    for options in [Options::non_coherent(64), Options::discrete()] {
        let Some(world) = World::new(options) else { return };
        let device = &world.device;
        let stream = device.stream().unwrap();
        let add = device.kernel(ADD).unwrap().build().unwrap();
        let data = device
            .buffer::<u32>(64)
            .host(HostAccess::ReadWrite)
            .device_use(DeviceUse::Heavy)
            .build()
            .unwrap();
        let mut graph = device.graph();
        graph.fill(&data, 1).unwrap();
        let graph = graph.build().unwrap();
        world.control.lose_after(3);
        let lost = (0..10)
            .map(|_| stream.launch(&add, [8, 1, 1], args![&data, 1u32]))
            .find_map(Result::err)
            .expect("ten launches on a device that takes three");
        assert!(matches!(lost, Error::DeviceLost(_)), "{lost}");
        let all = [
            stream.fill(&data, 1).map(drop),
            stream.replay(&graph).map(drop),
            stream.wait(),
            data.read().map(drop),
            data.write().map(drop),
            data.read_to_vec().map(drop),
            data.copy_from_slice(&[0; 64]),
            device.buffer::<u8>(1 << 19).build().map(drop),
            device.stream().map(drop),
            device.wait_idle(),
        ];
        for (step, outcome) in all.into_iter().enumerate() {
            assert!(matches!(outcome, Err(Error::DeviceLost(_))), "{step}: {outcome:?}");
        }
    }
}

#[test]
fn pages_of_a_lost_device_are_let_go() {
    let Some(world) = World::new(Options::default()) else { return };
    let device = &world.device;
    let Ok(buffer) = device.adopt(device.page_vec::<u32>(1000).unwrap()) else { return };
    let stream = device.stream().unwrap();
    stream.fill(&buffer, 1).unwrap();
    stream.wait().unwrap();
    world.control.lose_after(0);
    assert!(stream.fill(&buffer, 2).is_err());
    drop(buffer);
    device.trim();
}

#[test]
fn slow_work_is_busy_then_times_out_then_is_there() {
    for options in [Options::non_coherent(64), Options::discrete()] {
        let Some(world) = World::new(options) else { return };
        let (device, control) = (&world.device, &world.control);
        let stream = device.stream().unwrap();
        let build = || device.buffer::<u32>(64).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy);
        let data = build().init(&[0; 64]).unwrap();
        device.wait_idle().unwrap();
        let slow = Duration::from_millis(1500);
        control.slow_work(slow);
        let start = Instant::now();
        let ticket = stream.fill(&data, 3).unwrap();
        assert!(matches!(data.try_read(), Err(Error::Busy(_))));
        assert!(matches!(data.try_write(), Err(Error::Busy(_))));
        let short = Duration::from_millis(5);
        assert!(matches!(data.read_timeout(short), Err(Error::Timeout { .. })));
        assert!(matches!(device.wait_timeout(ticket, short), Err(Error::Timeout { .. })));
        assert!(matches!(stream.wait_timeout(short), Err(Error::Timeout { .. })));
        assert!(!device.is_done(ticket).unwrap());
        // A buffer whose old memory is still worked on is made at once, and the pool does not wait.
        drop(build().zeroed().build().unwrap());
        drop(build().init(&[1; 64]).unwrap());
        assert!(start.elapsed() < slow, "something waited: {:?}", start.elapsed());
        assert_eq!(data.read_timeout(Duration::from_secs(30)).unwrap()[..], [3; 64]);
        assert!(start.elapsed() >= slow);
        control.slow_work(Duration::ZERO);
        device.wait_idle().unwrap();
        while matches!(data.try_read(), Err(Error::Busy(_))) {
            std::thread::yield_now();
        }
        world.check();
    }
}

#[test]
fn trying_does_not_wait_for_a_slow_driver() {
    let Some(world) = World::new(Options::default()) else { return };
    let device = &world.device;
    let data = device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
    world.control.slow_submissions(Duration::from_secs(2));
    let before = world.control.calls(Call::Submit);
    std::thread::scope(|scope| {
        scope.spawn(|| device.stream().unwrap().fill(&data, 1).unwrap());
        while world.control.calls(Call::Submit) == before {
            std::thread::yield_now();
        }
        let start = Instant::now();
        let outcome = data.try_read();
        assert!(matches!(outcome, Err(Error::Busy(_))), "{outcome:?}");
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    });
}
