//! A thousand random schedules over streams, graphs, guards and the pool, against a model that does one thing after
//! the other. The device runs everything late and in any order that the tickets allow, so a missing wait shows.

use onebuf::{Arg, Buffer, Device, DeviceUse, Graph, HostAccess, Kernel, Stream};
use proptest::prelude::*;

use crate::fake::{Options, mix};

const WORDS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Kernel, stream, buffers, value.
    Launch(usize, usize, [usize; 3], u32),
    Copy(usize, usize, usize),
    Fill(usize, usize, u32),
    HostWrite(usize, u32),
    HostSet(usize, usize, u32),
    HostRead(usize),
    TryRead(usize),
    Renew(usize),
    NewStream(usize),
    Replay(usize),
    Update(usize, [usize; 2]),
}

const BUFFERS: usize = 5;
const STREAMS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let buffer = || 0..BUFFERS;
    let stream = || 0..STREAMS;
    prop_oneof![
        6 => (0usize..3, stream(), prop::array::uniform3(0..BUFFERS), any::<u32>())
            .prop_map(|(kernel, stream, buffers, value)| Step::Launch(kernel, stream, buffers, value)),
        2 => (stream(), buffer(), buffer()).prop_map(|(stream, from, to)| Step::Copy(stream, from, to)),
        2 => (stream(), buffer(), any::<u32>()).prop_map(|(stream, to, word)| Step::Fill(stream, to, word)),
        1 => (buffer(), any::<u32>()).prop_map(|(buffer, word)| Step::HostWrite(buffer, word)),
        1 => (buffer(), 0..WORDS, any::<u32>()).prop_map(|(buffer, at, word)| Step::HostSet(buffer, at, word)),
        2 => buffer().prop_map(Step::HostRead),
        1 => buffer().prop_map(Step::TryRead),
        1 => buffer().prop_map(Step::Renew),
        1 => stream().prop_map(Step::NewStream),
        2 => stream().prop_map(Step::Replay),
        1 => (stream(), prop::array::uniform2(0..BUFFERS)).prop_map(|(node, buffers)| Step::Update(node, buffers)),
    ]
}

/// The kernels: what each reads and writes, in the order of its bindings.
const KERNELS: [(&str, [(bool, bool); 3]); 3] = [
    ("r w imm4", [(true, false), (false, true), (false, false)]),
    ("r rw imm4", [(true, false), (true, true), (false, false)]),
    ("r r rw imm4", [(true, false), (true, false), (true, true)]),
];

fn model_launch(model: &mut [[u32; WORDS]], kernel: usize, buffers: &[usize], value: u32) {
    let uses = KERNELS[kernel].1;
    (0..WORDS).for_each(|word| {
        let read: Vec<u32> =
            buffers.iter().zip(uses).filter(|(_, (reads, _))| *reads).map(|(&b, _)| model[b][word]).collect();
        for (position, (&buffer, (_, writes))) in buffers.iter().zip(uses).enumerate() {
            if writes {
                model[buffer][word] = mix([1; 3], &value.to_ne_bytes(), &read, position as u32);
            }
        }
    });
}

struct World {
    device: Device,
    kernels: Vec<Kernel>,
    buffers: Vec<Buffer<u32>>,
    streams: Vec<Stream>,
    model: [[u32; WORDS]; BUFFERS],
    graph: Graph,
    nodes: [(onebuf::NodeId, [usize; 2]); 3],
}

impl World {
    fn new(options: Options) -> World {
        let (device, _) = options.open();
        let kernels: Vec<Kernel> =
            KERNELS.iter().map(|(source, _)| device.kernel(source).unwrap().build().unwrap()).collect();
        let buffers: Vec<Buffer<u32>> = (0..BUFFERS).map(|_| buffer(&device)).collect();
        let streams = (0..STREAMS).map(|_| device.stream().unwrap()).collect();
        let mut graph = device.graph();
        let nodes = [[0, 1], [2, 3], [1, 4]].map(|[from, to]| {
            let args =
                [Arg::buffer(&buffers[from]), Arg::buffer(&buffers[to]), Arg::immediates(&[7, 0, 0, 0])];
            (graph.launch(&kernels[1], [1; 3], &args).unwrap(), [from, to])
        });
        let graph = graph.build().unwrap();
        World { device, kernels, buffers, streams, model: [[0; WORDS]; BUFFERS], graph, nodes }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Launch(kernel, stream, buffers, value) => {
                let count = KERNELS[kernel].0.split(' ').count() - 1;
                let used = &buffers[..count];
                let distinct = (0..count).all(|i| used[..i].iter().all(|b| *b != used[i]));
                let value_bytes = value.to_ne_bytes();
                let mut args: Vec<Arg<'_>> = used.iter().map(|&b| Arg::buffer(&self.buffers[b])).collect();
                args.push(Arg::immediates(&value_bytes));
                let outcome = self.streams[stream].launch(&self.kernels[kernel], [1; 3], &args);
                let reads_twice = kernel == 2 && used[0] == used[1] && used[2] != used[0];
                assert_eq!(outcome.is_ok(), distinct || reads_twice, "{outcome:?}");
                if outcome.is_ok() {
                    model_launch(&mut self.model, kernel, used, value);
                }
            }
            Step::Copy(stream, from, to) => {
                let outcome = self.streams[stream].copy(&self.buffers[from], &self.buffers[to]);
                assert_eq!(outcome.is_ok(), from != to);
                self.model[to] = self.model[from];
            }
            Step::Fill(stream, to, word) => {
                self.streams[stream].fill(&self.buffers[to], word).unwrap();
                self.model[to] = [word; WORDS];
            }
            Step::HostWrite(buffer, word) => {
                self.buffers[buffer].overwrite().unwrap().fill(word);
                self.model[buffer] = [word; WORDS];
            }
            Step::HostSet(buffer, at, word) => {
                self.buffers[buffer].write().unwrap()[at] = word;
                self.model[buffer][at] = word;
            }
            Step::HostRead(buffer) => {
                assert_eq!(self.buffers[buffer].read().unwrap()[..], self.model[buffer])
            }
            Step::TryRead(buffer) => {
                if let Ok(read) = self.buffers[buffer].try_read() {
                    assert_eq!(read[..], self.model[buffer]);
                }
            }
            Step::Renew(buffer_index) => {
                self.buffers[buffer_index] = buffer(&self.device);
                self.model[buffer_index] = [0; WORDS];
                // The graph kept the old one.
                for node in 0..3 {
                    let [from, to] = self.nodes[node].1;
                    self.update(node, [from, to]);
                }
            }
            Step::NewStream(stream) => self.streams[stream] = self.device.stream().unwrap(),
            Step::Replay(stream) => {
                self.streams[stream].replay(&self.graph).unwrap();
                for (_, [from, to]) in self.nodes {
                    model_launch(&mut self.model, 1, &[from, to], 7);
                }
            }
            Step::Update(node, [from, to]) if from != to => self.update(node, [from, to]),
            Step::Update(..) => {}
        }
    }

    fn update(&mut self, node: usize, [from, to]: [usize; 2]) {
        let args = [
            Arg::buffer(&self.buffers[from]),
            Arg::buffer(&self.buffers[to]),
            Arg::immediates(&[7, 0, 0, 0]),
        ];
        self.graph.update(self.nodes[node].0, &args).unwrap();
        self.nodes[node].1 = [from, to];
    }
}

fn buffer(device: &Device) -> Buffer<u32> {
    device.buffer(WORDS).device_use(DeviceUse::Heavy).host(HostAccess::ReadWrite).zeroed().build().unwrap()
}

fn run(mut world: World, steps: &[Step]) {
    for step in steps {
        world.take(step);
    }
    for (buffer, expected) in world.buffers.iter().zip(world.model) {
        assert_eq!(buffer.read().unwrap()[..], expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 1000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shared_memory(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..60)) {
        run(World::new(Options { seed, ..Options::uma() }), &steps);
    }

    #[test]
    fn staged_memory(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..60)) {
        run(World::new(Options { seed, ..Options::discrete() }), &steps);
    }
}
