//! Graphs: a CUDA graph made node by node, and launched as often as wanted.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode, CUmemorytype, CUresult, CUstream};
use onebuf_core::backend::{Graph, Memory, Node, Work};
use onebuf_core::owned::{OwnedNode, OwnedPart, OwnedWork};
use onebuf_core::{Error, Result};
use parking_lot::Mutex;

use crate::context::Context;
use crate::driver;
use crate::kernel::{self, KernelCode};
use crate::memory::{self, CudaMemory};
use crate::params::Values;
use crate::program::Program;
use crate::shared::Shared;
use crate::work::{parts_of, prepare, writable};

/// A graph of this backend.
pub(crate) struct CudaGraph {
    state: Mutex<State>,
    shared: Arc<Shared>,
}

struct State {
    nodes: Vec<OwnedNode>,
    /// The graph as the driver has it; `None` after an update that it could not take in place.
    built: Option<Arc<Built>>,
    /// What the nodes use now; `None` after an update. Replays that are under way hold what they were launched with.
    uses: Option<Arc<Uses>>,
}

/// One launch of a graph, and what it uses.
#[derive(Clone)]
pub(crate) struct Replay {
    built: Arc<Built>,
    uses: Arc<Uses>,
}

/// What a graph's work uses, kept while it is under way.
struct Uses {
    _memory: Vec<Arc<dyn Memory>>,
    /// Those of the memory that are unified.
    unified: Vec<Arc<dyn Memory>>,
    code: Vec<Arc<KernelCode>>,
}

/// A graph of the driver, made executable.
struct Built {
    graph: CUgraph,
    exec: CUgraphExec,
    /// The driver's nodes of each node: more than one where a grid was split.
    nodes: Vec<Vec<CUgraphNode>>,
    context: Arc<Context>,
}

// SAFETY: graphs are handles. They are changed only under the lock of the graph that owns them, and launched by calls that
// the driver makes thread-safe per executable graph: see `Replay::launch`.
unsafe impl Send for Built {}
// SAFETY: as above.
unsafe impl Sync for Built {}

impl CudaGraph {
    pub(crate) fn create(shared: &Arc<Shared>, nodes: &[Node<'_>]) -> Result<CudaGraph> {
        let nodes = OwnedNode::all(nodes)?;
        let _entered = shared.enter()?;
        let built = Built::create(&shared.context, &nodes).map_err(|error| shared.note(error))?;
        let state = Mutex::new(State { nodes, built: Some(Arc::new(built)), uses: None });
        Ok(CudaGraph { state, shared: shared.clone() })
    }
}

impl Graph for CudaGraph {
    fn len(&self) -> usize {
        self.state.lock().nodes.len()
    }

    unsafe fn update(&self, node: usize, work: Work<'_>) -> Result<()> {
        let _entered = self.shared.enter()?;
        let mut state = self.state.lock();
        let place = OwnedNode::at(&mut state.nodes, node)?;
        // What could not be launched is refused now, and the node stays as it is.
        let work = (&work).into();
        check(&work)?;
        // The driver's node stays of its kind: it answers INVALID_VALUE to the parameters of another.
        let same_kind = std::mem::discriminant(&place.work) == std::mem::discriminant(&work);
        place.work = work;
        state.uses = None;
        let State { nodes, built, .. } = &mut *state;
        if let Some(known) = built
            && !(same_kind
                && known.update(node, &nodes[node].work).map_err(|error| self.shared.note(error))?)
        {
            // Built anew at the next replay, so that many updates cost one build. The old one lives on in replays.
            *built = None;
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Calls `launch` with a graph as it stands. The graph is locked meanwhile: an update changes what the driver launches, and
/// must not come between the look at what that uses and the launch. The context is current.
pub(crate) fn with_replay<R>(graph: &Arc<dyn Graph>, launch: impl FnOnce(Replay) -> Result<R>) -> Result<R> {
    let graph: Option<&CudaGraph> = graph.as_any().downcast_ref();
    let graph =
        graph.ok_or_else(|| Error::InvalidArgument("the graph is not one of the CUDA backend".into()))?;
    let mut state = graph.state.lock();
    let State { nodes, built, uses } = &mut *state;
    let built = match built {
        Some(built) => built,
        None => {
            let fresh =
                Built::create(&graph.shared.context, nodes).map_err(|error| graph.shared.note(error))?;
            built.insert(Arc::new(fresh))
        }
    };
    let uses = match uses {
        Some(uses) => uses,
        None => uses.insert(Arc::new(Uses::of(nodes)?)),
    };
    launch(Replay { built: built.clone(), uses: uses.clone() })
}

impl Replay {
    /// Hands the graph to the driver, which runs it behind the work of the stream and behind its own last launch.
    pub(crate) fn launch(&self, stream: CUstream) -> Result<()> {
        for memory in &self.uses.unified {
            if let Some(memory) = memory::downcast(memory) {
                memory.before_device(stream);
            }
        }
        // SAFETY: graph and stream are live and of one context, and what the graph uses is kept until it is done.
        driver::check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.built.exec, stream) })
    }

    /// Whether two replays use, and keep, the same.
    pub(crate) fn is(&self, other: &Replay) -> bool {
        Arc::ptr_eq(&self.built, &other.built) && Arc::ptr_eq(&self.uses, &other.uses)
    }

    /// Names of its kernels.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = String> {
        self.uses.code.iter().map(|code| code.interface.entry.clone())
    }
}

impl Uses {
    fn of(nodes: &[OwnedNode]) -> Result<Uses> {
        let (mut memory, mut code) = (Vec::new(), Vec::new());
        for node in nodes {
            match &node.work {
                OwnedWork::Launch { kernel, bindings, .. } => {
                    code.push(kernel::code(kernel)?.clone());
                    memory.extend(bindings.iter().map(|part| part.memory.clone()));
                }
                OwnedWork::Copy { from, to } => memory.extend([from.memory.clone(), to.memory.clone()]),
                OwnedWork::Fill { to, .. } => memory.push(to.memory.clone()),
            }
        }
        memory.sort_unstable_by_key(|memory| Arc::as_ptr(memory).addr());
        memory.dedup_by_key(|memory| Arc::as_ptr(memory).addr());
        code.sort_unstable_by_key(|code| Arc::as_ptr(code).addr());
        code.dedup_by_key(|code| Arc::as_ptr(code).addr());
        let is_unified =
            |memory: &&Arc<dyn Memory>| memory::downcast(memory).is_some_and(CudaMemory::is_unified);
        let unified = memory.iter().filter(is_unified).cloned().collect();
        Ok(Uses { _memory: memory, unified, code })
    }
}

impl Built {
    fn create(context: &Arc<Context>, nodes: &[OwnedNode]) -> Result<Built> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the context is current, and the pointer is to a live handle; the flags must be 0.
        driver::check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
        // Made whole at once, so that an error below destroys the graph.
        let mut built =
            Built { graph, exec: std::ptr::null_mut(), nodes: Vec::new(), context: context.clone() };
        for node in nodes {
            let mut after: Vec<CUgraphNode> = Vec::new();
            for &other in &node.after {
                after.extend(built.nodes.get(other as usize).into_iter().flatten());
            }
            after.sort_unstable();
            after.dedup();
            let handles = built.add(&node.work, &after)?;
            built.nodes.push(handles);
        }
        // SAFETY: the graph is live, and the pointer is to a live handle.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut built.exec, graph, 0) };
        driver::check("cuGraphInstantiateWithFlags", code)?;
        Ok(built)
    }

    /// Adds the driver's nodes of a piece of work, each behind `after`.
    fn add(&self, work: &OwnedWork, after: &[CUgraphNode]) -> Result<Vec<CUgraphNode>> {
        let (before, count) = (after.as_ptr(), after.len());
        let mut handle: CUgraphNode = std::ptr::null_mut();
        match work {
            OwnedWork::Launch { .. } => with_launch(work, |code, program, values, groups| {
                let mut handles = Vec::new();
                for (base, grid) in parts_of(groups, code.max_groups) {
                    values.set_base(base);
                    let mut pointers = values.pointers();
                    let params = kernel_params(code, program, grid, pointers.as_mut_ptr());
                    // SAFETY: the graph is live; the dependencies are its nodes; the driver copies the parameters'
                    // values, each of which has at least the parameter's size.
                    let code = unsafe {
                        sys::cuGraphAddKernelNode_v2(&mut handle, self.graph, before, count, &params)
                    };
                    driver::check("cuGraphAddKernelNode", code)?;
                    handles.push(handle);
                }
                Ok(handles)
            }),
            OwnedWork::Copy { from, to } => {
                let mut handles = Vec::new();
                for row in rows(to.size_bytes) {
                    let params = copy_params(from, to, row)?;
                    // SAFETY: as above; the ranges are within live memory, as the caller of the contract checks.
                    let code = unsafe {
                        sys::cuGraphAddMemcpyNode(
                            &mut handle,
                            self.graph,
                            before,
                            count,
                            &params,
                            self.context.raw,
                        )
                    };
                    driver::check("cuGraphAddMemcpyNode", code)?;
                    handles.push(handle);
                }
                Ok(handles)
            }
            OwnedWork::Fill { to, word } => {
                let params = fill_params(to, *word)?;
                // SAFETY: as above.
                let code = unsafe {
                    sys::cuGraphAddMemsetNode(
                        &mut handle,
                        self.graph,
                        before,
                        count,
                        &params,
                        self.context.raw,
                    )
                };
                driver::check("cuGraphAddMemsetNode", code)?;
                Ok(vec![handle])
            }
        }
    }

    /// Replaces a node's work in place, for later launches alone; false where the driver cannot, so that the graph must be
    /// built anew. Called under the lock of the graph.
    fn update(&self, node: usize, work: &OwnedWork) -> Result<bool> {
        let [handle] = self.nodes[node].as_slice() else { return Ok(false) };
        // SAFETY (of the three calls below): the executable graph is live and `handle` is a node of the graph that it was made
        // from; the driver copies the parameters. Launches that are under way keep the old ones.
        let code = match work {
            OwnedWork::Launch { groups, .. } => {
                with_launch(work, |code, program, values, groups_of_launch| {
                    if code.is_split(*groups) {
                        return Ok(CUresult::CUDA_ERROR_NOT_SUPPORTED);
                    }
                    let mut pointers = values.pointers();
                    let params = kernel_params(code, program, groups_of_launch, pointers.as_mut_ptr());
                    // SAFETY: as above.
                    Ok(unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, *handle, &params) })
                })?
            }
            OwnedWork::Copy { from, to } => {
                if to.size_bytes > ROW_BYTES {
                    return Ok(false);
                }
                let params = copy_params(from, to, (0, to.size_bytes))?;
                let context = self.context.raw;
                // SAFETY: as above.
                unsafe { sys::cuGraphExecMemcpyNodeSetParams(self.exec, *handle, &params, context) }
            }
            OwnedWork::Fill { to, word } => {
                let params = fill_params(to, *word)?;
                let context = self.context.raw;
                // SAFETY: as above.
                unsafe { sys::cuGraphExecMemsetNodeSetParams(self.exec, *handle, &params, context) }
            }
        };
        match code {
            CUresult::CUDA_SUCCESS => Ok(true),
            code if driver::fatal(code).is_some() => Err(driver::error("cuGraphExecNodeSetParams", code)),
            // Another kernel, memory that is mapped otherwise: what may change differs between drivers. (A fill stays one of one
            // dimension, as in-place updates must be.)
            code => {
                tracing::debug!(code = driver::name(code), "the driver builds the graph anew");
                Ok(false)
            }
        }
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: replays hold the graph until they are done. What was not made is null, and not destroyed.
        unsafe {
            if !self.exec.is_null() {
                let _ = sys::cuGraphExecDestroy(self.exec);
            }
            let _ = sys::cuGraphDestroy(self.graph);
        }
    }
}

/// Calls `f` with a launch, checked and with its parameters.
fn with_launch<R>(
    work: &OwnedWork,
    f: impl FnOnce(&KernelCode, &Program, &mut Values, [u32; 3]) -> Result<R>,
) -> Result<R> {
    work.with(|work| {
        let Work::Launch(launch) = work else {
            return Err(Error::InvalidArgument("the node is no launch".into()));
        };
        let code = kernel::code(launch.kernel)?;
        let mut values = Values::default();
        let program = prepare(code, &launch, &mut values)?;
        f(code, program, &mut values, launch.groups)
    })
}

fn kernel_params(
    code: &KernelCode,
    program: &Program,
    [x, y, z]: [u32; 3],
    values: *mut *mut c_void,
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    let [width, height, depth] = code.interface.workgroup_size;
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: program.function,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: width,
        blockDimY: height,
        blockDimZ: depth,
        sharedMemBytes: program.dynamic_shared_bytes,
        kernelParams: values,
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

/// A node copies at most this much: a row of the driver's copies ends at 2 GiB.
const ROW_BYTES: u64 = 1 << 30;

/// A copy in rows: where each begins, and its size, in bytes.
fn rows(size_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size_bytes.div_ceil(ROW_BYTES)).map(move |row| {
        let start = row * ROW_BYTES;
        (start, (size_bytes - start).min(ROW_BYTES))
    })
}

/// A copy of one row, by addresses that say themselves where they lie.
fn copy_params(
    from: &OwnedPart,
    to: &OwnedPart,
    (start, size_bytes): (u64, u64),
) -> Result<sys::CUDA_MEMCPY3D> {
    let source = memory::of(&from.part())?.pointer + from.offset_bytes + start;
    let target = memory::of(&to.part())?.pointer + to.offset_bytes + start;
    let bytes = size_bytes as usize;
    Ok(sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: std::ptr::null(),
        srcDevice: source,
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: std::ptr::null_mut(),
        dstDevice: target,
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    })
}

fn fill_params(to: &OwnedPart, word: u32) -> Result<sys::CUDA_MEMSET_NODE_PARAMS> {
    let target = memory::of(&to.part())?.pointer + to.offset_bytes;
    Ok(sys::CUDA_MEMSET_NODE_PARAMS {
        dst: target,
        pitch: 0,
        value: word,
        elementSize: 4,
        width: to.size_bytes as usize / 4,
        height: 1,
    })
}

/// An error where the work could not be launched.
fn check(work: &OwnedWork) -> Result<()> {
    match work {
        OwnedWork::Launch { .. } => with_launch(work, |_, _, _, _| Ok(())),
        OwnedWork::Copy { from, to } => {
            memory::of(&from.part())?;
            writable(&to.part())
        }
        OwnedWork::Fill { to, .. } => writable(&to.part()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_are_rows() {
        assert_eq!(rows(4).collect::<Vec<_>>(), [(0, 4)]);
        assert_eq!(rows(ROW_BYTES).collect::<Vec<_>>(), [(0, ROW_BYTES)]);
        let large: Vec<_> = rows(2 * ROW_BYTES + 5).collect();
        assert_eq!(large, [(0, ROW_BYTES), (ROW_BYTES, ROW_BYTES), (2 * ROW_BYTES, 5)]);
    }
}
