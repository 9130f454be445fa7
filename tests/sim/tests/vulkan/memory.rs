//! Memory that no driver at hand has.

use onebuf::core::backend::{Allocation, Backend, Part, Work};
use onebuf::{DeviceUse, HostAccess, HostPath, args};
use onebuf_sim::{Call, Options, Simulated};

use crate::{ADD, World};

/// Host writes and device work in turn, on parts that do not end where atoms do.
fn turns(world: &World, device_use: DeviceUse) {
    let device = &world.device;
    let stream = device.stream().unwrap();
    let add = device.kernel(ADD).unwrap().build().unwrap();
    let data = device
        .buffer::<u32>(1000)
        .host(HostAccess::ReadWrite)
        .device_use(device_use)
        .zeroed()
        .build()
        .unwrap();
    let mut model = vec![0u32; 1000];
    for round in 0..40usize {
        let at = round * 23 % 900;
        {
            let mut part = if round % 3 == 0 {
                data.slice(at..at + 7).unwrap().overwrite().unwrap()
            } else {
                data.slice(at..at + 7).unwrap().write().unwrap()
            };
            part.fill(round as u32);
            model[at..at + 7].fill(round as u32);
        }
        stream.launch(&add, add.groups_for([1000, 1, 1]), args![&data, 3u32]).unwrap();
        model.iter_mut().for_each(|word| *word += 3);
        if round % 4 == 0 {
            let (start, end) = (at / 2, at / 2 + 50);
            assert_eq!(data.slice(start..end).unwrap().read().unwrap()[..], model[start..end]);
        }
        if round % 7 == 0 {
            stream.fill(data.slice(at..at + 1).unwrap(), 9).unwrap();
            model[at] = 9;
            assert_eq!(data.slice(at..at + 2).unwrap().read_to_vec().unwrap(), model[at..at + 2]);
        }
    }
    assert_eq!(data.read().unwrap()[..], model);
    data.copy_from_slice(&model).unwrap();
    assert_eq!(data.read_to_vec().unwrap(), model);
    world.check();
}

#[test]
fn nothing_changed_is_nothing_wrong() {
    let Some(world) = World::new(Options::default()) else { return };
    turns(&world, DeviceUse::Streaming);
    assert_eq!(world.device.copied_bytes(), 0);
}

#[test]
fn non_coherent_memory_is_flushed_and_invalidated() {
    for atom in [1, 64, 256] {
        let Some(world) = World::new(Options::non_coherent(atom)) else { return };
        turns(&world, DeviceUse::Streaming);
        assert!(world.control.calls(Call::Flush) > 0 && world.control.calls(Call::Invalidate) > 0);
        assert_eq!(world.device.copied_bytes(), 0);
        let placement =
            world.device.buffer::<u32>(8).host(HostAccess::Read).build().unwrap().placement().clone();
        assert!(!placement.coherent && placement.path == HostPath::Uma);
    }
}

#[test]
fn memory_that_the_cpu_cannot_see_is_staged() {
    for options in
        [Options::discrete(), Options::discrete_non_coherent(64), Options::discrete_non_coherent(256)]
    {
        let Some(world) = World::new(options) else { return };
        turns(&world, DeviceUse::Heavy);
        assert!(world.device.copied_bytes() > 0);
        // Used once by each, it lies in host memory, and nothing is copied.
        let copied = world.device.copied_bytes();
        turns(&world, DeviceUse::Streaming);
        assert_eq!(world.device.copied_bytes(), copied);
    }
}

#[test]
fn uncached_memory_works_in_place() {
    let Some(world) = World::new(Options::uncached()) else { return };
    turns(&world, DeviceUse::Streaming);
    assert_eq!(world.device.copied_bytes(), 0);
}

#[test]
fn a_bar_is_written_in_place() {
    let Some(world) = World::new(Options::resizable_bar()) else { return };
    turns(&world, DeviceUse::Heavy);
    let device = &world.device;
    let data = device.buffer::<u32>(64).host(HostAccess::Write).device_use(DeviceUse::Heavy).build().unwrap();
    assert_eq!(data.placement().path, HostPath::ResizableBar);
    let copied = device.copied_bytes();
    data.overwrite().unwrap().fill(4);
    assert_eq!(device.copied_bytes(), copied);
    assert_eq!(data.read_to_vec().unwrap(), [4; 64]);
    assert_eq!(device.copied_bytes(), copied + 256);
    world.check();
}

#[test]
fn one_at_a_time_unified_memory_stops_the_device() {
    let Some(world) = World::new(Options::exclusive_unified()) else { return };
    turns(&world, DeviceUse::Streaming);
    let device = &world.device;
    let data = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
    assert_eq!(data.placement().path, HostPath::Unified);
    let other = device.buffer::<u32>(64).build().unwrap();
    let guard = data.write().unwrap();
    assert!(matches!(device.stream().unwrap().fill(&other, 1), Err(onebuf::Error::Busy(_))));
    drop(guard);
    device.stream().unwrap().fill(&other, 1).unwrap();
}

#[test]
fn small_memory_runs_out_and_comes_back() {
    let Some(world) = World::new(Options::non_coherent(64).with_memory_bytes(1 << 20)) else { return };
    let device = &world.device;
    for _ in 0..3 {
        let mut held = Vec::new();
        let error = loop {
            match device.buffer::<u8>(100_000).host(HostAccess::Write).init_with(|i| i as u8) {
                Ok(buffer) => held.push(buffer),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, onebuf::Error::OutOfMemory { never_fits: false, .. }), "{error}");
        assert!(held.len() >= 9, "{}", held.len());
        drop(held);
        assert_eq!(device.memory().live_bytes, 0);
        // One that needs all that the pool keeps.
        device.buffer::<u8>(1_000_000).build().unwrap();
    }
    let error = device.buffer::<u8>(2 << 20).build().unwrap_err();
    assert!(matches!(error, onebuf::Error::OutOfMemory { never_fits: true, .. }), "{error}");
    device.trim();
    world.check();
}

/// The simulation itself: a forgotten flush, a forgotten invalidation and a neighbour in the atom show.
#[test]
fn the_simulation_shows_what_it_is_for() {
    let Some(world) = World::new(Options::default()) else { return };
    let simulated = Simulated::new(world.vulkan.clone(), Options::non_coherent(64));
    let device = simulated.open(world.device.info().id.ordinal).unwrap();
    let request = Allocation { kind: 0, size_bytes: 256, exportable: false, mapped: true };
    let memory = device.allocate(&request).unwrap();
    let pointer = memory.host_pointer().unwrap().cast::<u32>();
    let stream = device.create_stream().unwrap();
    let fill = |word| {
        let to = Part { memory: &memory, offset_bytes: 0, size_bytes: 256 };
        // SAFETY: whole words within the memory, whose last work has been waited for.
        let ticket = unsafe { stream.submit(Work::Fill { to, word }, &[]) }.unwrap();
        device.wait(&[ticket], None).unwrap();
    };
    // SAFETY: the index is within the 64 words, and all device work has been waited for.
    let get = |index: usize| unsafe { pointer.add(index).read() };
    // SAFETY: as above.
    let set = |index: usize, word: u32| unsafe { pointer.add(index).write(word) };
    fill(7);
    assert_ne!(get(0), 7, "not invalidated");
    memory.invalidate(0, 4).unwrap();
    assert_eq!((get(0), get(15)), (7, 7), "the whole atom");
    assert_ne!(get(16), 7, "and no other");
    set(0, 1);
    fill(8);
    memory.flush(0, 4).unwrap();
    memory.invalidate(0, 256).unwrap();
    assert_eq!((get(0), get(1), get(16)), (1, 7, 8), "stale neighbours in the atom were put back");
    set(32, 5);
    memory.invalidate(128, 4).unwrap();
    assert_eq!(get(32), 8, "a write that was not flushed is lost");
    assert_eq!(simulated.control().violations(), Vec::<String>::new());
    assert!(memory.flush(200, 100).is_err() || !simulated.control().violations().is_empty());
}
