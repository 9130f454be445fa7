//! Graphs: recorded order, updates, hazards of replays.

use std::sync::atomic::Ordering::Relaxed;

use onebuf::{Error, HostAccess, args};

use crate::fake::{Options, mix};
use crate::uma;

/// `a` to `b` to `c`, with a fill and a copy around.
#[test]
fn nodes_take_effect_in_their_order() {
    for seed in 0..if cfg!(miri) { 2 } else { 50 } {
        let (device, fake) = Options { seed, ..Options::uma() }.open();
        let [a, b, c, d] =
            [(); 4].map(|()| device.buffer::<u32>(16).host(HostAccess::ReadWrite).build().unwrap());
        let step = device.kernel("r w imm4").unwrap().build().unwrap();
        let mut graph = device.graph();
        graph.fill(&a, 5).unwrap();
        graph.launch(&step, [1; 3], args![&a, &b, 1u32]).unwrap();
        graph.launch(&step, [1; 3], args![&a, &c, 2u32]).unwrap();
        graph.fill(&a, 6).unwrap();
        graph.copy(&b, &d).unwrap();
        graph.launch(&step, [1; 3], args![&c, &b, 3u32]).unwrap();
        let graph = graph.build().unwrap();
        assert_eq!(graph.len(), 6);
        let stream = device.stream().unwrap();
        stream.fill(&a, 9).unwrap();
        for _ in 0..3 {
            stream.replay(&graph).unwrap();
        }
        let f = |imm: u32, word: u32| mix([1; 3], &imm.to_ne_bytes(), &[word], 1);
        let all = [&a, &b, &c, &d].map(|buffer| buffer.read().unwrap()[7]);
        assert_eq!(all, [6, f(3, f(2, 5)), f(2, 5), f(1, 5)]);
        assert_eq!(fake.core.pending(), 0);
    }
}

#[test]
fn a_replay_waits_and_is_waited_for() {
    let (device, fake) = uma();
    let [a, b] = [(); 2].map(|()| device.buffer::<u32>(16).host(HostAccess::ReadWrite).build().unwrap());
    let mut graph = device.graph();
    graph.copy(&a, &b).unwrap();
    let graph = graph.build().unwrap();
    let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
    let wrote = one.fill(&a, 1).unwrap();
    let replayed = two.replay(&graph).unwrap();
    assert!(fake.core.last_submission().after.contains(&wrote));
    one.fill(&a, 2).unwrap();
    assert!(fake.core.last_submission().after.contains(&replayed));
    let guard = b.read().unwrap();
    assert_eq!(guard[0], 1);
    assert!(matches!(two.replay(&graph), Err(Error::Busy(_))));
    drop(guard);
    // It reads `a`, and so may the CPU.
    let guard = a.read().unwrap();
    two.replay(&graph).unwrap();
    assert_eq!(guard[0], 2);
}

#[test]
fn a_graph_keeps_its_buffers() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(16).build().unwrap();
    let mut graph = device.graph();
    graph.fill(&a, 3).unwrap();
    let graph = graph.build().unwrap();
    drop(a);
    device.trim();
    assert_eq!(fake.core.live_memories.load(Relaxed), 1);
    device.stream().unwrap().replay(&graph).unwrap();
    fake.core.run();
    drop(graph);
    device.trim();
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
}

#[test]
fn nodes_without_work_are_nodes() {
    let (device, _) = uma();
    let a = device.buffer::<u32>(16).host(HostAccess::Read).zeroed().build().unwrap();
    let b = device.buffer::<u32>(16).build().unwrap();
    let step = device.kernel("rw").unwrap().build().unwrap();
    let mut graph = device.graph();
    let empty = graph.launch(&step, [0, 1, 1], args![&a]).unwrap();
    graph.copy(a.slice(..0).unwrap(), a.slice(..0).unwrap()).unwrap();
    let full = graph.launch(&step, [1; 3], args![&a]).unwrap();
    let mut graph = graph.build().unwrap();
    let stream = device.stream().unwrap();
    stream.replay(&graph).unwrap();
    assert_eq!(a.read().unwrap()[0], mix([1; 3], &[], &[0], 0));
    graph.update(empty, args![&b]).unwrap();
    graph.update(full, args![&b]).unwrap();
    stream.replay(&graph).unwrap();
    assert_eq!(a.read().unwrap()[0], mix([1; 3], &[], &[0], 0));
    let nothing = device.graph().build().unwrap();
    assert!(nothing.is_empty());
    let last = stream.last();
    assert_eq!(stream.replay(&nothing).unwrap(), last);
}

#[test]
fn updates_change_what_later_replays_do() {
    let (device, fake) = uma();
    let [a, b, c] = [(); 3].map(|()| device.buffer::<u32>(16).host(HostAccess::ReadWrite).build().unwrap());
    let step = device.kernel("r w imm4").unwrap().build().unwrap();
    let mut graph = device.graph();
    let fill = graph.fill(&a, 5).unwrap();
    let node = graph.launch(&step, [1; 3], args![&a, &b, 1u32]).unwrap();
    let mut graph = graph.build().unwrap();
    let stream = device.stream().unwrap();
    stream.replay(&graph).unwrap();
    graph.update(node, args![&a, &c, 2u32]).unwrap();
    stream.replay(&graph).unwrap();
    let f = |imm: u32, word: u32| mix([1; 3], &imm.to_ne_bytes(), &[word], 1);
    assert_eq!(b.read().unwrap()[3], f(1, 5));
    assert_eq!(c.read().unwrap()[3], f(2, 5));
    // The graph no longer uses `b`.
    let _guard = b.write().unwrap();
    stream.replay(&graph).unwrap();
    fake.core.run();
    // Errors change nothing.
    assert!(matches!(graph.update(fill, args![&a]), Err(Error::InvalidArgument(_))));
    assert!(matches!(graph.update(node, args![&a, &a, 1u32]), Err(Error::BindingMismatch { .. })));
    let mut other = device.graph();
    other.fill(&a, 1).unwrap();
    let stranger = other.launch(&step, [1; 3], args![&a, &b, 1u32]).unwrap();
    let refused = graph.update(stranger, args![&a, &b, 1u32]).unwrap_err().to_string();
    assert!(refused.contains("node 1 is of another graph"), "{refused}");
    stream.replay(&graph).unwrap();
    assert_eq!(c.read().unwrap()[3], f(2, 5));
}

/// New arguments may call for an order that the recorded graph does not have.
#[test]
fn an_update_that_needs_a_new_order_gets_it() {
    for seed in 0..if cfg!(miri) { 2 } else { 50 } {
        let (device, _) = Options { seed, ..Options::uma() }.open();
        let [a, b, c] =
            [(); 3].map(|()| device.buffer::<u32>(16).host(HostAccess::ReadWrite).zeroed().build().unwrap());
        let step = device.kernel("r w").unwrap().build().unwrap();
        let mut graph = device.graph();
        graph.fill(&a, 1).unwrap();
        graph.fill(&b, 2).unwrap();
        let last = graph.launch(&step, [1; 3], args![&a, &c]).unwrap();
        let mut graph = graph.build().unwrap();
        // It did not depend on the second fill; now it does, and no longer on the first.
        graph.update(last, args![&b, &c]).unwrap();
        let stream = device.stream().unwrap();
        stream.replay(&graph).unwrap();
        assert_eq!(c.read().unwrap()[0], mix([1; 3], &[], &[2], 1));
        graph.update(last, args![&b, &a]).unwrap();
        stream.replay(&graph).unwrap();
        assert_eq!(a.read().unwrap()[0], mix([1; 3], &[], &[2], 1));
    }
}

#[test]
fn building_on_a_foreign_device_is_refused() {
    let (device, _) = uma();
    let (other, _) = uma();
    let a = other.buffer::<u32>(16).build().unwrap();
    let mut graph = device.graph();
    assert!(matches!(graph.fill(&a, 1), Err(Error::InvalidArgument(_))));
    assert!(matches!(graph.copy(&a, &a), Err(Error::InvalidArgument(_))));
    assert_eq!(graph.build().unwrap().len(), 0);
}
