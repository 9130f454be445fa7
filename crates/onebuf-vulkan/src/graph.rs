//! Graphs: a command buffer recorded once and submitted as often as wanted.

use std::any::Any;
use std::sync::Arc;

use ash::vk;
use onebuf_core::backend::{Graph, Node, Work};
use onebuf_core::owned::OwnedNode;
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

impl VulkanGraph {
    pub(crate) fn create(shared: &Arc<Shared>, nodes: &[Node<'_>]) -> Result<VulkanGraph> {
        let mut state = State { nodes: OwnedNode::all(nodes)?, recording: None };
        state.recording = Some(Arc::new(Recording::create(shared, &state.nodes)?));
        Ok(VulkanGraph { shared: shared.clone(), state: Mutex::new(state) })
    }
}

impl Graph for VulkanGraph {
    fn len(&self) -> usize {
        self.state.lock().nodes.len()
    }

    unsafe fn update(&self, node: usize, work: Work<'_>) -> Result<()> {
        let mut state = self.state.lock();
        OwnedNode::at(&mut state.nodes, node)?.work = (&work).into();
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
        // Earlier work is seen by every node.
        recorder::opening_barrier(shared, cmd);
        let mut seen = 0;
        for (position, node) in nodes.iter().enumerate() {
            if node.after.iter().any(|&other| other as usize >= seen) {
                recorder::barrier(shared, cmd);
                seen = position;
            }
            let keep = &mut recording._keep;
            node.work.with(|work| recorder::record(shared, cmd, &work, &mut bound, keep))?;
        }
        if bound.host_visible_writes {
            recorder::host_barrier(shared, cmd);
        }
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
