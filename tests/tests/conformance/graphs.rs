//! Graphs: recorded once, replayed while replays are pending, on other streams, with other arguments.

use std::time::Duration;

use onebuf::{Error, args};
use onebuf_tests::{kernels, lab};

const GROUPS: [u32; 3] = [1, 1, 1];

#[test]
fn a_graph_does_the_same_as_its_launches() {
    lab::on_every_device(|subject| {
        let (mix, step) = (subject.kernel(kernels::MIX), subject.kernel(kernels::STEP));
        let buffers = [subject.buffer(&[1u32; 64]), subject.buffer(&[2u32; 64]), subject.buffer(&[3u32; 64])];
        let mut model = [1u32, 2, 3];
        let mut builder = subject.device.graph();
        let [a, b, c] = &buffers;
        builder.launch(&mix, GROUPS, args![a, b, 5u32]).unwrap();
        builder.copy(b, c).unwrap();
        builder.launch(&step, GROUPS, args![a, 9u32]).unwrap();
        builder.fill(b.slice(32..).unwrap(), 77).unwrap();
        let graph = builder.build().unwrap();
        assert_eq!((graph.len(), graph.is_empty()), (4, false));
        let stream = subject.stream();
        let mut upper = 2u32;
        for _ in 0..20 {
            stream.replay(&graph).unwrap();
            model[1] = kernels::mix(model[1], model[0], 5);
            let upper_mixed = kernels::mix(upper, model[0], 5);
            model[2] = model[1];
            let c_upper = upper_mixed;
            model[0] = kernels::step(model[0], 9);
            upper = 77;
            let seen = c.read().unwrap();
            assert!(seen[..32].iter().all(|&word| word == model[2]));
            assert!(seen[32..].iter().all(|&word| word == c_upper));
        }
        assert_eq!(*a.read().unwrap(), [model[0]; 64]);
        let seen = b.read().unwrap();
        assert!(seen[..32].iter().all(|&w| w == model[1]) && seen[32..].iter().all(|&w| w == 77));
    });
}

#[test]
fn replays_pile_up_on_many_streams_and_stay_in_order() {
    lab::on_every_device(|subject| {
        let (step, slow) = (subject.kernel(kernels::STEP), subject.kernel(kernels::SLOW));
        let rounds = subject.rounds_for(Duration::from_millis(2));
        let word = subject.zeros::<u32>(1);
        let mut builder = subject.device.graph();
        builder.launch(&step, GROUPS, args![word, 3u32]).unwrap();
        builder.launch(&slow, GROUPS, args![word, rounds]).unwrap();
        let graph = builder.build().unwrap();
        let streams = [subject.stream(), subject.stream(), subject.stream()];
        let mut expected = 0u32;
        for i in 0..60 {
            streams[i * i % 3].replay(&graph).unwrap();
            expected = kernels::slow(kernels::step(expected, 3), rounds);
        }
        assert_eq!(word.read().unwrap()[0], expected);
    });
}

#[test]
fn an_update_counts_for_later_replays_alone() {
    lab::on_every_device(|subject| {
        let (mix, slow) = (subject.kernel(kernels::MIX), subject.kernel(kernels::SLOW));
        let rounds = subject.rounds_for(Duration::from_millis(10));
        let sources: Vec<_> = (0..4u32).map(|i| subject.buffer(&[100 * i])).collect();
        let (sum, other) = (subject.zeros::<u32>(1), subject.zeros::<u32>(1));
        let mut builder = subject.device.graph();
        let wait = builder.launch(&slow, GROUPS, args![sum, rounds]).unwrap();
        let node = builder.launch(&mix, GROUPS, args![sources[0], sum, 0u32]).unwrap();
        let copy = builder.copy(&sum, &other).unwrap();
        let mut graph = builder.build().unwrap();
        let stream = subject.stream();
        let mut expected = 0u32;
        for round in 0..12u32 {
            let source = &sources[round as usize % 4];
            graph.update(node, args![source, sum, round]).unwrap();
            stream.replay(&graph).unwrap();
            expected = kernels::mix(kernels::slow(expected, rounds), 100 * (round % 4), round);
        }
        assert_eq!(other.read().unwrap()[0], expected);
        // What cannot be updated, or not so, changes nothing.
        let wrong = [
            graph.update(copy, args![sum, other]),
            graph.update(node, args![sources[1]]),
            graph.update(node, args![sum, sum, 1u32]),
            graph.update(node, args![sources[1], sum]),
            graph.update(wait, args![sum]),
        ];
        assert!(wrong.iter().all(|outcome| outcome.is_err()), "{wrong:?}");
        stream.replay(&graph).unwrap();
        expected = kernels::mix(kernels::slow(expected, rounds), 300, 11);
        assert_eq!(other.read().unwrap()[0], expected);
    });
}

#[test]
fn a_node_of_another_graph_is_refused() {
    lab::on_every_device(|subject| {
        let step = subject.kernel(kernels::STEP);
        let data = subject.zeros::<u32>(1);
        let mut long = subject.device.graph();
        let nodes: Vec<_> = (0..5).map(|_| long.launch(&step, GROUPS, args![data, 1u32]).unwrap()).collect();
        let mut short = subject.device.graph();
        short.launch(&step, GROUPS, args![data, 1u32]).unwrap();
        let mut short = short.build().unwrap();
        let error = short.update(nodes[4], args![data, 2u32]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        drop(long);
    });
}

#[test]
fn new_arguments_may_call_for_another_order() {
    lab::on_every_device(|subject| {
        // Two nodes that share nothing, then the second reads what the first writes, then the other way round.
        let (mix, slow) = (subject.kernel(kernels::MIX), subject.kernel(kernels::SLOW));
        let rounds = subject.rounds_for(Duration::from_millis(10));
        let (a, b, c) = (subject.buffer(&[1u32]), subject.buffer(&[2u32]), subject.buffer(&[3u32]));
        let mut builder = subject.device.graph();
        let first = builder.launch(&slow, GROUPS, args![a, rounds]).unwrap();
        let second = builder.launch(&mix, GROUPS, args![b, c, 1u32]).unwrap();
        let mut graph = builder.build().unwrap();
        let stream = subject.stream();
        let (mut x, mut y, mut z) = (1u32, 2u32, 3u32);
        stream.replay(&graph).unwrap();
        (x, z) = (kernels::slow(x, rounds), kernels::mix(z, y, 1));
        graph.update(second, args![a, c, 2u32]).unwrap();
        stream.replay(&graph).unwrap();
        x = kernels::slow(x, rounds);
        z = kernels::mix(z, x, 2);
        graph.update(first, args![c, rounds]).unwrap();
        graph.update(second, args![b, a, 3u32]).unwrap();
        stream.replay(&graph).unwrap();
        z = kernels::slow(z, rounds);
        x = kernels::mix(x, y, 3);
        graph.update(first, args![b, rounds]).unwrap();
        stream.replay(&graph).unwrap();
        y = kernels::slow(y, rounds);
        x = kernels::mix(x, y, 3);
        let seen = [&a, &b, &c].map(|word| word.read().unwrap()[0]);
        assert_eq!(seen, [x, y, z]);
    });
}

#[test]
fn a_graph_dropped_while_pending_is_finished() {
    lab::on_every_device(|subject| {
        let slow = subject.kernel(kernels::SLOW);
        let rounds = subject.rounds_for(Duration::from_millis(30));
        let word = subject.buffer(&[1u32]);
        let stream = subject.stream();
        {
            let mut builder = subject.device.graph();
            let node = builder.launch(&slow, GROUPS, args![word, rounds]).unwrap();
            let mut graph = builder.build().unwrap();
            stream.replay(&graph).unwrap();
            stream.replay(&graph).unwrap();
            // The recording that is pending goes with the update.
            let other = subject.buffer(&[1u32]);
            graph.update(node, args![other, rounds]).unwrap();
            stream.replay(&graph).unwrap();
        }
        drop(slow);
        assert_eq!(word.read().unwrap()[0], kernels::slow(kernels::slow(1, rounds), rounds));
    });
}

#[test]
fn graphs_without_work_are_allowed() {
    lab::on_every_device(|subject| {
        let step = subject.kernel(kernels::STEP);
        let data = subject.buffer(&[4u32; 4]);
        let empty = subject.device.graph().build().unwrap();
        let mut builder = subject.device.graph();
        builder.launch(&step, [0, 1, 1], args![data, 1u32]).unwrap();
        builder.copy(data.slice(0..0).unwrap(), data.slice(1..1).unwrap()).unwrap();
        builder.fill(data.slice(2..2).unwrap(), 9).unwrap();
        let idle = builder.build().unwrap();
        let stream = subject.stream();
        let last = stream.last();
        assert_eq!(stream.replay(&empty).unwrap(), last);
        assert_eq!(stream.replay(&idle).unwrap(), last);
        assert!(empty.is_empty() && idle.len() == 3);
        assert_eq!(*data.read().unwrap(), [4; 4]);
    });
}

#[test]
fn long_graphs_keep_their_order() {
    lab::on_real_devices(|subject| {
        let (step, mix) = (subject.kernel(kernels::STEP), subject.kernel(kernels::MIX));
        let (a, b) = (subject.zeros::<u32>(64), subject.zeros::<u32>(64));
        let mut builder = subject.device.graph();
        let (mut x, mut y) = (0u32, 0u32);
        for k in 0..600u32 {
            if k % 3 == 0 {
                builder.launch(&mix, GROUPS, args![a, b, k]).unwrap();
            } else {
                builder.launch(&step, GROUPS, args![a, k]).unwrap();
            }
        }
        let graph = builder.build().unwrap();
        let stream = subject.stream();
        for _ in 0..2 {
            stream.replay(&graph).unwrap();
            for k in 0..600u32 {
                if k % 3 == 0 { y = kernels::mix(y, x, k) } else { x = kernels::step(x, k) }
            }
        }
        assert_eq!((a.read().unwrap()[9], b.read().unwrap()[63]), (x, y));
    });
}

#[test]
fn graphs_and_their_parts_belong_to_one_opening() {
    lab::on_real_devices(|subject| {
        let other = lab::registry().open(&subject.device.info().id.to_string()).unwrap();
        let theirs = other.buffer::<u32>(4).zeroed().build().unwrap();
        let mine = subject.zeros::<u32>(4);
        let step = subject.kernel(kernels::STEP);
        let mut builder = subject.device.graph();
        let refused = [
            builder.launch(&step, GROUPS, args![theirs, 1u32]).err(),
            builder.copy(&theirs, &mine).err(),
            builder.copy(&mine, &theirs).err(),
            builder.fill(&theirs, 1).err(),
            other.graph().launch(&step, GROUPS, args![theirs, 1u32]).err(),
        ];
        for (case, error) in refused.into_iter().enumerate() {
            assert!(matches!(error, Some(Error::InvalidArgument(_))), "case {case}: {error:?}");
        }
        let graph = builder.build().unwrap();
        let refused = other.stream().unwrap().replay(&graph);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    });
}
