//! Graphs: a command buffer recorded once and submitted as often as wanted.

use std::any::Any;
use std::sync::Arc;

use ash::vk;
use onebuf_core::backend::{Graph, Kernel, Launch, Memory, Node, Part, Work};
use onebuf_core::{Error, Result};
use parking_lot::Mutex;

use crate::recorder::{self, Bound, Keep};
use crate::shared::Shared;
use crate::stream::{self, create_commands};

/// A graph of this backend.
pub(crate) struct VulkanGraph {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    nodes: Vec<OwnedNode>,
    /// The newest recording; `None` after an update.
    recording: Option<Arc<Recording>>,
}

/// A command buffer that may be pending several times at once. Batches that replay it hold it.
pub(crate) struct Recording {
    pub(crate) cmd: vk::CommandBuffer,
    pool: vk::CommandPool,
    _keep: Vec<Keep>,
    shared: Arc<Shared>,
}

struct OwnedNode {
    work: OwnedWork,
    after: Vec<u32>,
}

/// A part of memory, owned.
struct OwnedPart {
    memory: Arc<dyn Memory>,
    offset_bytes: u64,
    size_bytes: u64,
}

enum OwnedWork {
    Launch { kernel: Arc<dyn Kernel>, bindings: Vec<OwnedPart>, immediates: Vec<u8>, groups: [u32; 3] },
    Copy { from: OwnedPart, to: OwnedPart },
    Fill { to: OwnedPart, word: u32 },
}

impl VulkanGraph {
    pub(crate) fn create(shared: &Arc<Shared>, nodes: &[Node<'_>]) -> Result<VulkanGraph> {
        for (position, node) in nodes.iter().enumerate() {
            if let Some(later) = node.after.iter().find(|&&other| other as usize >= position) {
                let what =
                    format!("node {position} of the graph comes after node {later}, which is not earlier");
                return Err(Error::InvalidArgument(what));
            }
        }
        let nodes = nodes
            .iter()
            .map(|node| OwnedNode { work: own(&node.work), after: node.after.to_vec() })
            .collect();
        let mut state = State { nodes, recording: None };
        state.recording = Some(Arc::new(Recording::create(shared, &state.nodes)?));
        Ok(VulkanGraph { shared: shared.clone(), state: Mutex::new(state) })
    }
}

impl Graph for VulkanGraph {
    fn len(&self) -> usize {
        self.state.lock().nodes.len()
    }

    fn update(&self, node: usize, work: Work<'_>) -> Result<()> {
        let mut state = self.state.lock();
        let count = state.nodes.len();
        let slot = state.nodes.get_mut(node);
        let slot = slot
            .ok_or_else(|| Error::InvalidArgument(format!("the graph has {count} nodes, no node {node}")))?;
        slot.work = own(&work);
        // Recorded anew at the next replay, so that many updates cost one recording. The old one lives on in batches.
        state.recording = None;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The command buffer of a graph as it stands.
pub(crate) fn recording(graph: &Arc<dyn Graph>) -> Result<Arc<Recording>> {
    let graph: Option<&VulkanGraph> = graph.as_any().downcast_ref();
    let graph =
        graph.ok_or_else(|| Error::InvalidArgument("the graph is not one of the Vulkan backend".into()))?;
    let mut state = graph.state.lock();
    if let Some(recording) = &state.recording {
        return Ok(recording.clone());
    }
    let recording = Arc::new(Recording::create(&graph.shared, &state.nodes)?);
    state.recording = Some(recording.clone());
    Ok(recording)
}

impl Recording {
    fn create(shared: &Arc<Shared>, nodes: &[OwnedNode]) -> Result<Recording> {
        let (pool, cmd) = create_commands(shared, vk::CommandPoolCreateFlags::empty())?;
        // Made whole at once, so that an error below frees the pool.
        let mut recording = Recording { cmd, pool, _keep: Vec::new(), shared: shared.clone() };
        let again = vk::CommandBufferUsageFlags::SIMULTANEOUS_USE;
        stream::begin(shared, cmd, again).map_err(shared.fail("vkBeginCommandBuffer"))?;
        let mut bound = Bound::default();
        // Earlier work of the queue is seen by every node.
        recorder::barrier(shared, cmd);
        let mut seen = 0;
        for (position, node) in nodes.iter().enumerate() {
            if node.after.iter().any(|&other| other as usize >= seen) {
                recorder::barrier(shared, cmd);
                seen = position;
            }
            record(shared, cmd, &node.work, &mut bound, &mut recording._keep)?;
        }
        if bound.host_visible_writes {
            recorder::host_barrier(shared, cmd);
        }
        recorder::barrier(shared, cmd);
        // SAFETY: the command buffer records.
        unsafe { shared.raw.end_command_buffer(cmd) }.map_err(shared.fail("vkEndCommandBuffer"))?;
        Ok(recording)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: batches that replay the recording hold it, so it is not pending.
        unsafe { self.shared.raw.destroy_command_pool(self.pool, None) };
    }
}

fn record(
    shared: &Shared,
    cmd: vk::CommandBuffer,
    work: &OwnedWork,
    bound: &mut Bound,
    keep: &mut Vec<Keep>,
) -> Result<()> {
    let work = match work {
        OwnedWork::Launch { kernel, bindings, immediates, groups } => {
            let bindings: Vec<Part<'_>> = bindings.iter().map(OwnedPart::part).collect();
            let launch = Launch { kernel, bindings: &bindings, immediates, groups: *groups };
            return recorder::record(shared, cmd, &Work::Launch(launch), bound, keep);
        }
        OwnedWork::Copy { from, to } => Work::Copy { from: from.part(), to: to.part() },
        OwnedWork::Fill { to, word } => Work::Fill { to: to.part(), word: *word },
    };
    recorder::record(shared, cmd, &work, bound, keep)
}

fn own(work: &Work<'_>) -> OwnedWork {
    match work {
        Work::Launch(launch) => OwnedWork::Launch {
            kernel: launch.kernel.clone(),
            bindings: launch.bindings.iter().map(OwnedPart::of).collect(),
            immediates: launch.immediates.to_vec(),
            groups: launch.groups,
        },
        Work::Copy { from, to } => OwnedWork::Copy { from: OwnedPart::of(from), to: OwnedPart::of(to) },
        Work::Fill { to, word } => OwnedWork::Fill { to: OwnedPart::of(to), word: *word },
    }
}

impl OwnedPart {
    fn of(part: &Part<'_>) -> OwnedPart {
        OwnedPart {
            memory: part.memory.clone(),
            offset_bytes: part.offset_bytes,
            size_bytes: part.size_bytes,
        }
    }

    fn part(&self) -> Part<'_> {
        Part { memory: &self.memory, offset_bytes: self.offset_bytes, size_bytes: self.size_bytes }
    }
}
