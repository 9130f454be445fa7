//! The crate on the real device that is there. Without one the tests say so and do nothing, unless `ONEBUF_REQUIRE` is set.

use onebuf::{Device, Error, HandleKind, HostAccess, Share, args};
use std::io::Write as _;

const ADD: &str = "
    var<immediate> number: u32;
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&data) { data[at.x] += number; }
    }";

const SUM: &str = "
    @group(0) @binding(0) var<storage> a: array<u32>;
    @group(0) @binding(1) var<storage, read_write> b: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&b) { b[at.x] = b[at.x] * 3u + a[at.x]; }
    }";

fn device() -> Option<Device> {
    if onebuf::no_device_here().unwrap() {
        let _ = writeln!(std::io::stderr(), "not run: no device here");
        return None;
    }
    Some(Device::open_default().unwrap())
}

#[test]
fn bytes_are_words_to_a_kernel() {
    let Some(device) = device() else { return };
    let add = device.kernel(ADD).unwrap().build().unwrap();
    let bytes = device.buffer::<u8>(13).host(HostAccess::ReadWrite).init_with(|i| i as u8).unwrap();
    device.stream().unwrap().launch(&add, [1; 3], args![&bytes, 0x0101_0101u32]).unwrap();
    let expected: Vec<u8> = (1..14).collect();
    assert_eq!(bytes.read().unwrap()[..], expected);
}

#[test]
fn adopted_pages_are_worked_on_in_place() {
    let Some(device) = device() else { return };
    let add = device.kernel(ADD).unwrap().build().unwrap();
    let mut pages = device.page_vec::<u32>(100_000).unwrap();
    for (index, word) in pages.iter_mut().enumerate() {
        *word = index as u32;
    }
    let address = pages.as_ptr();
    let buffer = match device.adopt(pages) {
        Ok(buffer) => buffer,
        Err(refused) => {
            assert!(matches!(refused.error, Error::Unsupported { .. }), "{refused}");
            assert_eq!(refused.pages[99_999], 99_999);
            return;
        }
    };
    let stream = device.stream().unwrap();
    for _ in 0..10 {
        stream.launch(&add, add.groups_for([100_000, 1, 1]), args![&buffer, 1u32]).unwrap();
    }
    let read = buffer.read().unwrap();
    assert_eq!(read.as_ptr(), address);
    assert!(read.iter().enumerate().all(|(index, &word)| word == index as u32 + 10));
    assert_eq!(device.copied_bytes(), 0);
    drop(read);
    // Dropped with work on its way.
    for _ in 0..100 {
        stream.launch(&add, add.groups_for([100_000, 1, 1]), args![&buffer, 1u32]).unwrap();
    }
    drop(buffer);
    device.wait_idle().unwrap();
    assert_eq!(device.memory().live_bytes, 0);
}

#[test]
fn an_exported_buffer_comes_back_as_the_same_memory() {
    let Some(device) = device() else { return };
    let build = || device.buffer::<u32>(1000).host(HostAccess::ReadWrite).share(Share::Process).build();
    let ours = match build() {
        Ok(buffer) => buffer,
        Err(Error::NoPlacement { .. }) => return, // It exports nothing, and says so for each kind.
        Err(other) => panic!("{other}"),
    };
    let Ok(export) = ours.export(HandleKind::OpaqueFd) else { return };
    // SAFETY: below, each side works when the other has been waited for.
    let theirs = unsafe { device.import_buffer::<u32>(export, 1000) }.unwrap();
    assert!(!theirs.same_memory(&ours));
    ours.write().unwrap().fill(5);
    let stream = device.stream().unwrap();
    let add = device.kernel(ADD).unwrap().build().unwrap();
    stream.launch(&add, [16, 1, 1], args![&theirs, 2u32]).unwrap();
    stream.wait().unwrap();
    assert_eq!(ours.read_to_vec().unwrap(), [7; 1000]);
    assert_eq!(theirs.read_to_vec().unwrap(), [7; 1000]);
    let export = ours.export(HandleKind::OpaqueFd).unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { device.import_buffer::<u32>(export, 1001) };
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    let export = ours.export(HandleKind::OpaqueFd).unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { device.import_buffer::<u64>(export, usize::MAX) };
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    let private = device.buffer::<u32>(10).build().unwrap();
    assert!(matches!(private.export(HandleKind::OpaqueFd), Err(Error::Unsupported { .. })));
}

#[test]
fn a_graph_of_a_thousand_nodes() {
    let Some(device) = device() else { return };
    let sum = device.kernel(SUM).unwrap().build().unwrap();
    let build = || device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
    let (a, b, c) = (build(), build(), build());
    let mut graph = device.graph();
    let first = graph.fill(&a, 1).unwrap();
    let nodes: Vec<_> = (0..1000)
        .map(|i| {
            let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            graph.launch(&sum, [1; 3], args![from, to]).unwrap()
        })
        .collect();
    let mut graph = graph.build().unwrap();
    let stream = device.stream().unwrap();
    let mut model = [0u32; 3];
    let replay = |model: &mut [u32; 3], last: usize| {
        model[0] = 1;
        for i in 0..1000 {
            let (from, to) = if i % 2 == 0 { (0, 1) } else { (1, 0) };
            let to = if i == 999 { last } else { to };
            model[to] = model[to].wrapping_mul(3).wrapping_add(model[from]);
        }
    };
    for round in 0..4 {
        if round == 2 {
            graph.update(nodes[999], args![&b, &c]).unwrap();
        }
        stream.replay(&graph).unwrap();
        replay(&mut model, if round < 2 { 0 } else { 2 });
    }
    let got = [&a, &b, &c].map(|buffer| buffer.read().unwrap()[63]);
    assert_eq!(got, model);
    assert!(matches!(graph.update(first, args![&a]), Err(Error::InvalidArgument(_))));
}

#[test]
fn sixteen_threads_share_a_device() {
    let Some(device) = device() else { return };
    let (add, sum) =
        (device.kernel(ADD).unwrap().build().unwrap(), device.kernel(SUM).unwrap().build().unwrap());
    let shared = device.buffer::<u32>(64).init(&[2; 64]).unwrap();
    let counter = device.buffer::<u32>(64).host(HostAccess::Read).zeroed().build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16u32 {
            let (device, add, sum, shared, counter) = (&device, &add, &sum, &shared, &counter);
            scope.spawn(move || {
                let stream = if thread % 4 == 0 { device.default_stream() } else { device.stream() }.unwrap();
                let mut mine = device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
                let mut model = 0u32;
                for round in 0..50 {
                    stream.launch(sum, [1; 3], args![shared, &mine]).unwrap();
                    stream.launch(add, [1; 3], args![counter, 1u32]).unwrap();
                    model = model.wrapping_mul(3).wrapping_add(2);
                    if round % 10 == thread % 10 {
                        assert_eq!(mine.read().unwrap()[..], [model; 64]);
                        let fresh = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
                        stream.copy(&mine, &fresh).unwrap();
                        mine = fresh;
                    }
                }
                assert_eq!(mine.read().unwrap()[..], [model; 64]);
            });
        }
    });
    assert_eq!(counter.read().unwrap()[..], [16 * 50; 64]);
    drop((shared, counter));
    device.wait_idle().unwrap();
    assert_eq!(device.memory().live_bytes, 0);
}

#[test]
fn events_measure_work() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    let data = device.buffer::<u32>(1 << 20).build().unwrap();
    let start = stream.event().unwrap();
    for _ in 0..8 {
        stream.fill(&data, 1).unwrap();
    }
    let end = stream.event().unwrap();
    match end.elapsed_since(&start) {
        Ok(time) => assert!(time.as_nanos() > 0 && time.as_secs() < 60, "{time:?}"),
        Err(Error::Unsupported { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}
