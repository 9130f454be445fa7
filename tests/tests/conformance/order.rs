//! Hazard order: whatever the streams, work takes effect as if it ran one after the other.

use fastrand::Rng;
use onebuf::{Buffer, Graph, HostAccess, Kernel, NodeId, Stream, args};
use onebuf_tests::{Subject, kernels, lab, seeds};

const LEN: usize = 64;
const GROUPS: [u32; 3] = [1, 1, 1];
type Words = [u32; LEN];

/// Buffers, and what they must hold.
struct World<'a> {
    subject: &'a Subject,
    streams: Vec<Stream>,
    mix: Kernel,
    step: Kernel,
    buffers: Vec<Buffer<u32>>,
    model: Vec<Words>,
    graph: Option<(Graph, Vec<(NodeId, GraphStep)>)>,
}

/// One node of a graph, for the model.
#[derive(Clone, Copy)]
enum GraphStep {
    Mix { from: usize, to: usize, k: u32 },
    Step { at: usize, k: u32 },
    Copy { from: usize, to: usize },
    Fill { at: usize, word: u32 },
}

impl GraphStep {
    fn random(rng: &mut Rng, buffers: usize) -> GraphStep {
        let (from, to) = two(rng, buffers);
        match rng.u32(0..6) {
            0..=2 => GraphStep::Mix { from, to, k: rng.u32(..) },
            3 => GraphStep::Step { at: to, k: rng.u32(..) },
            4 => GraphStep::Copy { from, to },
            _ => GraphStep::Fill { at: to, word: rng.u32(..) },
        }
    }

    fn apply(self, model: &mut [Words]) {
        match self {
            GraphStep::Mix { from, to, k } => {
                let source = model[from];
                model[to].iter_mut().zip(source).for_each(|(to, from)| *to = kernels::mix(*to, from, k));
            }
            GraphStep::Step { at, k } => {
                model[at].iter_mut().for_each(|word| *word = kernels::step(*word, k))
            }
            GraphStep::Copy { from, to } => model[to] = model[from],
            GraphStep::Fill { at, word } => model[at] = [word; LEN],
        }
    }
}

/// Two different buffers.
fn two(rng: &mut Rng, buffers: usize) -> (usize, usize) {
    let from = rng.usize(0..buffers);
    (from, (from + rng.usize(1..buffers)) % buffers)
}

impl<'a> World<'a> {
    fn new(subject: &'a Subject, streams: usize) -> World<'a> {
        World {
            subject,
            streams: (0..streams).map(|_| subject.stream()).collect(),
            mix: subject.kernel(kernels::MIX),
            step: subject.kernel(kernels::STEP),
            buffers: Vec::new(),
            model: Vec::new(),
            graph: None,
        }
    }

    fn start(&mut self, rng: &mut Rng, buffers: usize) {
        self.graph = None;
        self.buffers.clear();
        self.model.clear();
        for _ in 0..buffers {
            self.add(rng);
        }
    }

    fn add(&mut self, rng: &mut Rng) {
        let words: Words = std::array::from_fn(|_| rng.u32(..));
        let host = [HostAccess::None, HostAccess::Read, HostAccess::Write, HostAccess::ReadWrite];
        let builder = self.subject.device.buffer::<u32>(LEN).host(host[rng.usize(0..4)]);
        let builder = builder.device_use(self.subject.device_use());
        self.buffers.push(builder.init(&words).unwrap());
        self.model.push(words);
    }

    /// One step of a schedule, done and modelled.
    fn step(&mut self, rng: &mut Rng) {
        let stream = self.streams[rng.usize(0..self.streams.len())].clone();
        let (from, to) = two(rng, self.buffers.len());
        let (source, target) = (&self.buffers[from], &self.buffers[to]);
        match rng.u32(0..100) {
            0..40 => {
                let k = rng.u32(..);
                stream.launch(&self.mix, GROUPS, args![source, target, k]).unwrap();
                GraphStep::Mix { from, to, k }.apply(&mut self.model);
            }
            40..55 => {
                let k = rng.u32(..);
                stream.launch(&self.step, GROUPS, args![target, k]).unwrap();
                GraphStep::Step { at: to, k }.apply(&mut self.model);
            }
            55..65 => {
                stream.copy(source, target).unwrap();
                GraphStep::Copy { from, to }.apply(&mut self.model);
            }
            65..70 => {
                let (at, len) = (rng.usize(0..LEN), rng.usize(0..LEN));
                let (a, b) = (at.min(LEN - len), rng.usize(0..=LEN - len));
                let (part, place) = (source.slice(a..a + len).unwrap(), target.slice(b..b + len).unwrap());
                stream.copy(part, place).unwrap();
                let words = self.model[from];
                self.model[to][b..b + len].copy_from_slice(&words[a..a + len]);
            }
            70..75 => {
                let word = rng.u32(..);
                stream.fill(target, word).unwrap();
                self.model[to] = [word; LEN];
            }
            75..80 => {
                let (a, b) = (rng.usize(0..LEN), rng.usize(0..LEN));
                let range = a.min(b)..a.max(b);
                let word = rng.u32(..);
                stream.fill(target.slice(range.clone()).unwrap(), word).unwrap();
                self.model[to][range].fill(word);
            }
            80..84 => assert_eq!(source.read_to_vec().unwrap(), self.model[from]),
            84..87 => {
                let words: Words = std::array::from_fn(|_| rng.u32(..));
                target.copy_from_slice(&words).unwrap();
                self.model[to] = words;
            }
            87..89 => {
                stream.event().unwrap();
            }
            89..91 => stream.flush().unwrap(),
            91..93 => {
                let other = self.streams[rng.usize(0..self.streams.len())].last();
                stream.wait_for(other).unwrap();
            }
            93..95 => {
                // A buffer goes while work on it may be queued, and a new one takes its memory.
                self.graph = None;
                self.buffers.swap_remove(to);
                self.model.swap_remove(to);
                self.add(rng);
            }
            95..97 => self.record(rng),
            _ => self.replay(rng, &stream),
        }
    }

    fn record(&mut self, rng: &mut Rng) {
        let mut builder = self.subject.device.graph();
        let mut steps = Vec::new();
        for _ in 0..rng.usize(1..8) {
            let step = GraphStep::random(rng, self.buffers.len());
            let buffers = &self.buffers;
            let node = match step {
                GraphStep::Mix { from, to, k } => {
                    builder.launch(&self.mix, GROUPS, args![buffers[from], buffers[to], k])
                }
                GraphStep::Step { at, k } => builder.launch(&self.step, GROUPS, args![buffers[at], k]),
                GraphStep::Copy { from, to } => builder.copy(&buffers[from], &buffers[to]),
                GraphStep::Fill { at, word } => builder.fill(&buffers[at], word),
            };
            steps.push((node.unwrap(), step));
        }
        self.graph = Some((builder.build().unwrap(), steps));
    }

    fn replay(&mut self, rng: &mut Rng, stream: &Stream) {
        if self.graph.is_none() {
            self.record(rng);
        }
        let buffers = &self.buffers;
        let Some((graph, steps)) = &mut self.graph else { return };
        let launches: Vec<usize> = (0..steps.len())
            .filter(|&i| matches!(steps[i].1, GraphStep::Mix { .. } | GraphStep::Step { .. }))
            .collect();
        if !launches.is_empty() && rng.bool() {
            // Other arguments from here on; replays before this one keep theirs.
            let i = launches[rng.usize(0..launches.len())];
            let (node, step) = &mut steps[i];
            let (a, b) = two(rng, buffers.len());
            let new = rng.u32(..);
            match step {
                GraphStep::Mix { from, to, k } => {
                    (*from, *to, *k) = (a, b, new);
                    graph.update(*node, args![buffers[a], buffers[b], new]).unwrap();
                }
                GraphStep::Step { at, k } => {
                    (*at, *k) = (b, new);
                    graph.update(*node, args![buffers[b], new]).unwrap();
                }
                _ => {}
            }
        }
        stream.replay(graph).unwrap();
        for (_, step) in steps {
            step.apply(&mut self.model);
        }
    }

    fn check(&self) {
        for (i, (buffer, words)) in self.buffers.iter().zip(&self.model).enumerate() {
            assert_eq!(buffer.read_to_vec().unwrap(), *words, "buffer {i}");
        }
    }
}

fn schedules(subject: &Subject, count: u64, streams: usize, buffers: usize, steps: std::ops::Range<usize>) {
    let mut world = World::new(subject, streams);
    seeds::each(count, |rng| {
        world.start(rng, buffers);
        for _ in 0..rng.usize(steps.clone()) {
            world.step(rng);
        }
        world.check();
    });
}

#[test]
fn a_thousand_schedules_on_two_streams_match_the_model() {
    lab::on_real_devices(|subject| schedules(subject, 1000, 2, 4, 5..30));
}

#[test]
fn schedules_on_five_streams_match_the_model() {
    lab::on_real_devices(|subject| schedules(subject, 150, 5, 6, 20..120));
}

#[test]
fn schedules_on_simulated_devices_match_the_model() {
    lab::on_simulated_devices(|subject| schedules(subject, 100, 3, 4, 5..40));
}

#[test]
fn a_slow_kernel_is_waited_for_by_every_other_stream() {
    lab::on_every_device(|subject| {
        let slow = subject.kernel(kernels::SLOW);
        let rounds = subject.rounds_for(std::time::Duration::from_millis(20));
        let streams = [subject.stream(), subject.stream(), subject.stream()];
        let (a, b) = (subject.buffer(&[1u32]), subject.buffer(&[2u32]));
        let (mut x, mut y) = (1u32, 2u32);
        let mix = subject.kernel(kernels::MIX);
        for round in 0..9u32 {
            let [one, two, three] = std::array::from_fn(|i| &streams[(i + round as usize) % 3]);
            one.launch(&slow, GROUPS, args![a, rounds]).unwrap();
            x = kernels::slow(x, rounds);
            two.launch(&mix, GROUPS, args![a, b, round]).unwrap();
            y = kernels::mix(y, x, round);
            // Overwrites what the one before reads.
            three.fill(&a, round).unwrap();
            x = round;
        }
        assert_eq!((a.read().unwrap()[0], b.read().unwrap()[0]), (x, y));
    });
}

#[test]
fn readers_on_many_streams_do_not_disturb_each_other_and_the_writer_waits_for_all() {
    lab::on_every_device(|subject| {
        let mix = subject.kernel(kernels::MIX);
        let streams: Vec<Stream> = (0..12).map(|_| subject.stream()).collect();
        let shared = subject.buffer(&[1u32; LEN]);
        let sums: Vec<Buffer<u32>> = streams.iter().map(|_| subject.zeros(LEN)).collect();
        let mut expected = 0u32;
        for round in 1..40u32 {
            for (stream, sum) in streams.iter().zip(&sums) {
                stream.launch(&mix, GROUPS, args![shared, sum, 0u32]).unwrap();
            }
            expected = kernels::mix(expected, round, 0);
            streams[round as usize % 12].fill(&shared, round + 1).unwrap();
        }
        for sum in &sums {
            assert_eq!(*sum.read().unwrap(), [expected; LEN]);
        }
    });
}

#[test]
fn work_without_a_shared_buffer_is_ordered_by_hand() {
    lab::on_every_device(|subject| {
        let (slow, step) =
            (subject.slow(std::time::Duration::from_millis(60)), subject.kernel(kernels::STEP));
        let (one, two) = (subject.stream(), subject.stream());
        let (a, b) = (subject.buffer(&[1u32]), subject.buffer(&[1u32]));
        slow.start(&one, &a);
        let first = one.last();
        two.wait_for(first).unwrap();
        let second = two.launch(&step, GROUPS, args![b, 1u32]).unwrap();
        subject.device.wait(second).unwrap();
        // The second is done, so the first is.
        assert!(subject.device.is_done(first).unwrap());
        let third = one.launch(&slow.kernel, GROUPS, args![a, 5u32]).unwrap();
        // SAFETY: the ticket named is the last of this buffer.
        let fourth = unsafe { two.launch_unordered(&step, GROUPS, args![a, 3u32], &[third]) }.unwrap();
        subject.device.wait(fourth).unwrap();
        let expected = kernels::step(kernels::slow(slow.model(1), 5), 3);
        assert_eq!((a.read().unwrap()[0], b.read().unwrap()[0]), (expected, 6));
    });
}

#[test]
fn thousands_of_launches_without_a_wait_arrive_in_order() {
    lab::on_real_devices(|subject| {
        let (step, stream) = (subject.kernel(kernels::STEP), subject.stream());
        let data = subject.zeros::<u32>(LEN);
        let mut expected = 0u32;
        for k in 0..5000u32 {
            stream.launch(&step, GROUPS, args![data, k]).unwrap();
            expected = kernels::step(expected, k);
        }
        assert_eq!(*data.read().unwrap(), [expected; LEN]);
    });
}
