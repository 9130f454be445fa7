//! What the tests of the backend have in common.

#![allow(dead_code)] // Each test binary uses a part of it.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onebuf_core::backend::{
    Allocation, Backend, Bounds, Device, Graph, Kernel, KernelRequest, KernelSource, Memory, Node, Part,
    Stream, Work,
};
use onebuf_core::{HostAccess, Intent, Override, Result, Ticket, placement};
use onebuf_cuda::{Cuda, CudaOptions};

pub(crate) const SAXPY: &str = "
    @group(0) @binding(0) var<storage> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    var<immediate> a: f32;
    @compute @workgroup_size(64)
    fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&y) { y[id.x] = a * x[id.x] + y[id.x]; }
    }";

/// Tests of one binary run one at a time: they count what the process has.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` on every usable device.
pub(crate) fn on_every_device(test: impl Fn(&dyn Device)) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = match Cuda::new(CudaOptions::default()) {
        Ok(cuda) => cuda,
        Err(error) if required() => panic!("{error}"),
        Err(error) => return not_run(&format!("no CUDA here: {error}")),
    };
    let mut tested = 0;
    for adapter in cuda.adapters().unwrap() {
        if adapter.rejected.is_some() {
            continue;
        }
        eprintln!("on {}: {} ({})", adapter.info.id, adapter.info.name, adapter.info.driver);
        let device = cuda.open(adapter.info.id.ordinal).unwrap();
        test(&*device);
        tested += 1;
    }
    assert!(tested > 0 || !required(), "no usable device");
}

/// Says that a test had nothing to run on, past the harness, which hides what a passing test prints: `cargo xtask test`
/// counts it as skipped.
pub(crate) fn not_run(why: &str) {
    let _ = writeln!(std::io::stderr(), "not run: {why}");
}

/// Whether a missing CUDA is a failure.
pub(crate) fn required() -> bool {
    std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "cuda"))
}

/// The kind of memory with this name.
pub(crate) fn kind(device: &dyn Device, name: &str) -> Option<usize> {
    device.profile().memory.iter().position(|kind| kind.name == name)
}

/// Memory of one kind.
pub(crate) fn of_kind(device: &dyn Device, kind: usize, size_bytes: u64) -> Arc<dyn Memory> {
    device.allocate(&Allocation { kind, size_bytes, exportable: false, mapped: true }).unwrap()
}

/// The device's own memory.
pub(crate) fn on_device(device: &dyn Device, size_bytes: u64) -> Arc<dyn Memory> {
    of_kind(device, kind(device, "device").unwrap(), size_bytes)
}

/// Memory that the CPU works on in place.
pub(crate) fn mapped(device: &dyn Device, size_bytes: u64) -> Arc<dyn Memory> {
    let intent = Intent { size_bytes: 4096, host: HostAccess::ReadWrite, ..Intent::default() };
    let ranking = placement::rank(&device.profile(), &intent).unwrap();
    let kind = ranking.candidates.iter().find(|candidate| candidate.staging.is_none()).unwrap().kind;
    of_kind(device, kind, size_bytes)
}

/// The elements of mapped memory.
#[allow(clippy::mut_from_ref)] // The tests touch it only while no work does.
pub(crate) fn slice<T: bytemuck::AnyBitPattern>(memory: &Arc<dyn Memory>) -> &mut [T] {
    let pointer = memory.host_pointer().unwrap().cast::<T>();
    let length = memory.size_bytes() as usize / size_of::<T>();
    // SAFETY: the memory is mapped for its size, and the tests touch it only while no work does.
    unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), length) }
}

/// The elements of any memory, through a copy.
pub(crate) fn read<T: bytemuck::AnyBitPattern>(device: &dyn Device, memory: &Arc<dyn Memory>) -> Vec<T> {
    let copy = mapped(device, memory.size_bytes());
    let stream = device.create_stream().unwrap();
    let work = Work::Copy { from: whole(memory), to: whole(&copy) };
    wait(device, stream.run(work, &[]).unwrap());
    slice::<T>(&copy).to_vec()
}

pub(crate) fn whole(memory: &Arc<dyn Memory>) -> Part<'_> {
    Part { memory, offset_bytes: 0, size_bytes: memory.size_bytes() }
}

pub(crate) fn kernel(device: &dyn Device, source: &str, overrides: &[Override]) -> Arc<dyn Kernel> {
    compile(device, KernelSource::Wgsl(source), overrides, Bounds::Checked).unwrap()
}

pub(crate) fn compile(
    device: &dyn Device,
    source: KernelSource<'_>,
    overrides: &[Override],
    bounds: Bounds,
) -> Result<Arc<dyn Kernel>> {
    let request = KernelRequest { sources: &[source], entry: None, overrides, bounds };
    // SAFETY: the native sources of the tests fit the interfaces that are given with them.
    unsafe { device.compile(&request) }
}

pub(crate) fn wait(device: &dyn Device, ticket: Ticket) {
    device.wait(&[ticket], Some(Duration::from_secs(20))).unwrap();
}

/// The contract's unsafe functions. What the tests hand over is sound: parts lie within their memory, launches fit their
/// kernels, and tickets or waits keep conflicting work and the CPU apart.
pub(crate) trait Sound {
    fn run(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket>;
    fn run_graph(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket>;
}

impl Sound for dyn Stream {
    fn run(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket> {
        // SAFETY: see the trait.
        unsafe { self.submit(work, after) }
    }

    fn run_graph(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket> {
        // SAFETY: see the trait.
        unsafe { self.replay(graph, after) }
    }
}

/// A graph of sound nodes.
pub(crate) fn build_graph(device: &dyn Device, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
    // SAFETY: see `Sound`.
    unsafe { device.create_graph(nodes) }
}

/// Sound work in the place of a node's.
pub(crate) fn update(graph: &Arc<dyn Graph>, node: usize, work: Work<'_>) -> Result<()> {
    // SAFETY: see `Sound`.
    unsafe { graph.update(node, work) }
}
