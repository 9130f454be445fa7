//! Random schedules on a real driver through simulated memory, against a model that does one thing after the other.

use onebuf::{Buffer, DeviceUse, HostAccess, Kernel, Stream, args};
use onebuf_sim::Options;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::World;

const WORDS: usize = 100;
const BUFFERS: usize = 4;
const STREAMS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// `to = to * 31 + from + value`
    Mix(usize, usize, usize, u32),
    Copy(usize, usize, usize),
    Fill(usize, usize, u32),
    Set(usize, usize, u32),
    Overwrite(usize, u32),
    Read(usize),
    ReadPart(usize, usize),
    TryRead(usize),
    Renew(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let (buffer, stream) = (|| 0..BUFFERS, || 0..STREAMS);
    prop_oneof![
        6 => (stream(), buffer(), buffer(), any::<u32>()).prop_map(|(s, a, b, v)| Step::Mix(s, a, b, v)),
        2 => (stream(), buffer(), buffer()).prop_map(|(s, a, b)| Step::Copy(s, a, b)),
        2 => (stream(), buffer(), any::<u32>()).prop_map(|(s, a, v)| Step::Fill(s, a, v)),
        2 => (buffer(), 0..WORDS, any::<u32>()).prop_map(|(a, at, v)| Step::Set(a, at, v)),
        1 => (buffer(), any::<u32>()).prop_map(|(a, v)| Step::Overwrite(a, v)),
        1 => buffer().prop_map(Step::Read),
        2 => (buffer(), 0..WORDS).prop_map(|(a, at)| Step::ReadPart(a, at)),
        1 => buffer().prop_map(Step::TryRead),
        1 => (buffer(), any::<u32>()).prop_map(|(a, v)| Step::Renew(a, v)),
    ]
}

const MIX: &str = "
    var<immediate> value: u32;
    @group(0) @binding(0) var<storage> source: array<u32>;
    @group(0) @binding(1) var<storage, read_write> sink: array<u32>;
    @compute @workgroup_size(8) fn main(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&sink) { sink[at.x] = sink[at.x] * 31u + source[at.x] + value; }
    }";

fn build(world: &World, value: u32) -> Buffer<u32> {
    let builder = world.device.buffer(WORDS).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy);
    builder.init(&[value; WORDS]).unwrap()
}

fn run(world: &World, kernel: &Kernel, streams: &[Stream], steps: &[Step]) {
    let mut buffers: Vec<Buffer<u32>> = (0..BUFFERS).map(|_| build(world, 0)).collect();
    let mut model = [[0u32; WORDS]; BUFFERS];
    for step in steps {
        match *step {
            Step::Mix(stream, from, to, value) if from != to => {
                let groups = kernel.groups_for([WORDS as u32, 1, 1]);
                streams[stream].launch(kernel, groups, args![&buffers[from], &buffers[to], value]).unwrap();
                let source = model[from];
                for (sink, source) in model[to].iter_mut().zip(source) {
                    *sink = sink.wrapping_mul(31).wrapping_add(source).wrapping_add(value);
                }
            }
            Step::Copy(stream, from, to) if from != to => {
                streams[stream].copy(&buffers[from], &buffers[to]).unwrap();
                model[to] = model[from];
            }
            Step::Mix(..) | Step::Copy(..) => {}
            Step::Fill(stream, to, word) => {
                streams[stream].fill(&buffers[to], word).unwrap();
                model[to] = [word; WORDS];
            }
            Step::Set(to, at, word) => {
                buffers[to].slice(at..=at).unwrap().write().unwrap()[0] = word;
                model[to][at] = word;
            }
            Step::Overwrite(to, word) => {
                buffers[to].overwrite().unwrap().fill(word);
                model[to] = [word; WORDS];
            }
            Step::Read(from) => assert_eq!(buffers[from].read().unwrap()[..], model[from]),
            Step::ReadPart(from, at) => {
                assert_eq!(buffers[from].slice(at..).unwrap().read().unwrap()[..], model[from][at..]);
            }
            Step::TryRead(from) => {
                if let Ok(read) = buffers[from].try_read() {
                    assert_eq!(read[..], model[from]);
                }
            }
            Step::Renew(index, value) => {
                buffers[index] = build(world, value);
                model[index] = [value; WORDS];
            }
        }
    }
    for (buffer, expected) in buffers.iter().zip(model) {
        assert_eq!(buffer.read().unwrap()[..], expected);
    }
}

fn schedules(options: Options) {
    let Some(world) = World::new(options) else { return };
    let kernel = world.device.kernel(MIX).unwrap().build().unwrap();
    let streams: Vec<Stream> = (0..STREAMS).map(|_| world.device.stream().unwrap()).collect();
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&prop::collection::vec(step(), 1..60), |steps| {
        run(&world, &kernel, &streams, &steps);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    world.check();
}

#[test]
fn plain() {
    schedules(Options::default());
}

#[test]
fn non_coherent_64() {
    schedules(Options::non_coherent(64));
}

#[test]
fn non_coherent_256() {
    schedules(Options::non_coherent(256));
}

#[test]
fn staged() {
    schedules(Options::discrete_non_coherent(256));
}

#[test]
fn exclusive() {
    schedules(Options::exclusive_unified());
}
