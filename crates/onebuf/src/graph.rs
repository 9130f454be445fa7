//! Graphs: work recorded once and replayed, with the order between its nodes found from the buffers they use.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use onebuf_core::backend::{self, Launch, Node, Part, Work};
use onebuf_core::{Error, Result};
use smallvec::SmallVec;

use crate::arg::{Arg, Span};
use crate::buffer::BufferSlice;
use crate::device::Device;
use crate::kernel::Kernel;
use crate::order::{Use, Uses};
use crate::storage::Storage;
use crate::stream::{Checked, check_copy, check_fill};

/// A node of a graph: what [`Graph::update`] is told to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    /// The graph's number, which no other has.
    graph: u64,
    index: usize,
}

/// A graph that is being recorded. [`Device::graph`] makes it.
///
/// Nodes take effect as if they ran one after the other; those that share no buffer, or only read it, may overlap.
#[must_use = "a builder does nothing until `build`"]
pub struct GraphBuilder {
    device: Device,
    number: u64,
    nodes: Vec<Recorded>,
}

/// Work recorded once, to be replayed by [`Stream::replay`](crate::Stream::replay). It keeps its buffers and kernels
/// alive.
pub struct Graph {
    device: Device,
    number: u64,
    nodes: Vec<Recorded>,
    /// The nodes that have work, in the backend's numbers, each with the earlier ones it must follow.
    edges: Vec<Vec<u32>>,
    memories: Memories,
    /// `None` where no node has work.
    raw: Option<Arc<dyn backend::Graph>>,
}

/// One node.
struct Recorded {
    action: Action,
    parts: SmallVec<[OwnedPart; 4]>,
    /// Its number for the backend; `None` for one without work (an empty grid, an empty copy).
    number: Option<u32>,
}

enum Action {
    Launch { kernel: Kernel, groups: [u32; 3], immediates: SmallVec<[u8; 32]> },
    Copy,
    Fill { word: u32 },
}

/// A part of a buffer that the graph keeps alive.
struct OwnedPart {
    storage: Arc<Storage>,
    offset: u64,
    size: u64,
    writes: bool,
}

impl OwnedPart {
    fn new(span: &Span<'_>, size: u64, writes: bool) -> OwnedPart {
        OwnedPart { storage: span.storage.clone(), offset: span.offset, size, writes }
    }

    fn part(&self) -> Part<'_> {
        self.storage.part(self.offset, self.size)
    }
}

impl GraphBuilder {
    pub(crate) fn new(device: &Device) -> GraphBuilder {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        GraphBuilder { device: device.clone(), number, nodes: Vec::new() }
    }

    /// Adds a launch; see [`Stream::launch`](crate::Stream::launch).
    ///
    /// # Errors
    /// Those of a launch, but for those that depend on the moment.
    pub fn launch(&mut self, kernel: &Kernel, groups: [u32; 3], args: &[Arg<'_>]) -> Result<NodeId> {
        let checked = Checked::new(&self.device, kernel, args)?;
        let immediates = checked.immediates.into();
        let action = Action::Launch { kernel: kernel.clone(), groups, immediates };
        let parts = launch_parts(kernel, &checked);
        Ok(self.push(action, parts, !groups.contains(&0)))
    }

    /// Adds a copy; see [`Stream::copy`](crate::Stream::copy).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the lengths differ, the parts overlap or a buffer is another device's.
    pub fn copy<'a, 'b, T: Pod>(
        &mut self,
        from: impl Into<BufferSlice<'a, T>>,
        to: impl Into<BufferSlice<'b, T>>,
    ) -> Result<NodeId> {
        let (from, to) = (from.into().span, to.into().span);
        check_copy(&self.device, &from, &to)?;
        let parts = [OwnedPart::new(&from, from.size, false), OwnedPart::new(&to, to.size, true)];
        Ok(self.push(Action::Copy, parts.into_iter().collect(), from.size > 0))
    }

    /// Adds a fill; see [`Stream::fill`](crate::Stream::fill).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a slice begins or ends within a word or the buffer is another device's.
    pub fn fill<'a, T: Pod>(&mut self, to: impl Into<BufferSlice<'a, T>>, word: u32) -> Result<NodeId> {
        let to = to.into().span;
        check_fill(&self.device, &to)?;
        let parts = [OwnedPart::new(&to, to.bound_size(), true)];
        Ok(self.push(Action::Fill { word }, parts.into_iter().collect(), to.size > 0))
    }

    /// Builds the graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn build(self) -> Result<Graph> {
        let GraphBuilder { device, number, nodes } = self;
        let memories = Memories::default();
        let mut graph = Graph { device, number, nodes, edges: Vec::new(), memories, raw: None };
        graph.rebuild()?;
        Ok(graph)
    }

    fn push(&mut self, action: Action, parts: SmallVec<[OwnedPart; 4]>, has_work: bool) -> NodeId {
        let number = has_work.then(|| self.nodes.iter().filter(|node| node.number.is_some()).count() as u32);
        self.nodes.push(Recorded { action, parts, number });
        NodeId { graph: self.number, index: self.nodes.len() - 1 }
    }
}

impl Graph {
    /// The device that it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True without nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Gives a launch other arguments, for later replays. Where they call for an order between nodes that the graph does
    /// not have, it is built anew, which takes as long as it did at first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the node is no launch of this graph, and those of a launch.
    pub fn update(&mut self, node: NodeId, args: &[Arg<'_>]) -> Result<()> {
        let index = node.index;
        let recorded = self.nodes.get_mut(index).filter(|_| node.graph == self.number);
        let Some(recorded) = recorded else {
            return Err(Error::InvalidArgument(format!(
                "node {index} is of another graph; update it there, or record the launch in this one"
            )));
        };
        let Action::Launch { kernel, immediates, .. } = &mut recorded.action else {
            return Err(Error::InvalidArgument(format!("node {index} is no launch")));
        };
        let checked = Checked::new(&self.device, kernel, args)?;
        let parts = launch_parts(kernel, &checked);
        let bytes = SmallVec::from_slice(checked.immediates);
        let old_bytes = std::mem::replace(immediates, bytes);
        let old_parts = std::mem::replace(&mut recorded.parts, parts);
        let Some(number) = recorded.number else { return Ok(()) };
        self.memories.remove(number, &old_parts);
        self.memories.add(number, &recorded.parts);
        let outcome = if self.memories.in_order(number, &recorded.parts, &self.edges) {
            let bindings: SmallVec<[Part<'_>; 8]> = recorded.parts.iter().map(OwnedPart::part).collect();
            match &self.raw {
                // SAFETY: the arguments were checked, and the edges keep the node in order with what it conflicts with.
                Some(raw) => unsafe { raw.update(number as usize, work(&recorded.action, &bindings)) },
                None => Ok(()),
            }
        } else {
            self.rebuild()
        };
        if outcome.is_err() {
            // The graph stays what it was.
            let recorded = &mut self.nodes[index];
            self.memories.remove(number, &recorded.parts);
            self.memories.add(number, &old_parts);
            recorded.parts = old_parts;
            if let Action::Launch { immediates, .. } = &mut recorded.action {
                *immediates = old_bytes;
            }
        }
        outcome
    }

    /// Finds the order of the nodes and has the backend record them. Nothing changes where that fails.
    fn rebuild(&mut self) -> Result<()> {
        let busy: Vec<&Recorded> = self.nodes.iter().filter(|node| node.number.is_some()).collect();
        let mut memories = Memories::default();
        let mut edges = Vec::with_capacity(busy.len());
        for (number, node) in busy.iter().enumerate() {
            edges.push(memories.before(&node.parts));
            memories.add(number as u32, &node.parts);
        }
        let raw = if busy.is_empty() {
            None
        } else {
            let bindings: Vec<SmallVec<[Part<'_>; 8]>> =
                busy.iter().map(|node| node.parts.iter().map(OwnedPart::part).collect()).collect();
            let works = busy.iter().zip(&bindings).map(|(node, bindings)| work(&node.action, bindings));
            let nodes: Vec<Node<'_>> = works.zip(&edges).map(|(work, after)| Node { work, after }).collect();
            // SAFETY: every node was checked when it was recorded, and follows all earlier ones that it conflicts with.
            Some(unsafe { self.device.shared.raw.create_graph(&nodes)? })
        };
        self.memories = memories;
        self.edges = edges;
        self.raw = raw;
        Ok(())
    }

    pub(crate) fn raw(&self) -> Option<&Arc<dyn backend::Graph>> {
        self.raw.as_ref()
    }

    /// What a replay uses, in the order of addresses.
    pub(crate) fn uses(&self) -> Uses<'_> {
        let uses = self.memories.0.iter();
        uses.map(|memory| Use { storage: &memory.storage, writes: memory.writers > 0 }).collect()
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

fn launch_parts(kernel: &Kernel, checked: &Checked<'_>) -> SmallVec<[OwnedPart; 4]> {
    let bindings = &kernel.raw.interface().bindings;
    let parts = checked.spans.iter().zip(bindings);
    parts.map(|(span, binding)| OwnedPart::new(span, span.bound_size(), binding.access.writes())).collect()
}

/// A node for the backend.
fn work<'a>(action: &'a Action, parts: &'a [Part<'a>]) -> Work<'a> {
    match (action, parts) {
        (Action::Launch { kernel, groups, immediates }, bindings) => {
            Work::Launch(Launch { kernel: &kernel.raw, bindings, immediates, groups: *groups })
        }
        (Action::Copy, parts) => Work::Copy { from: parts[0], to: parts[1] },
        (Action::Fill { word }, parts) => Work::Fill { to: parts[0], word: *word },
    }
}

/// The memories of a graph, sorted by address, and who uses each.
#[derive(Default)]
struct Memories(Vec<Memory>);

struct Memory {
    storage: Arc<Storage>,
    /// Nodes in their order, and whether each writes.
    users: Vec<(u32, bool)>,
    writers: usize,
}

impl Memories {
    fn find(&self, storage: &Arc<Storage>) -> Result<usize, usize> {
        let address = Arc::as_ptr(storage).addr();
        self.0.binary_search_by_key(&address, |memory| Arc::as_ptr(&memory.storage).addr())
    }

    fn add(&mut self, node: u32, parts: &[OwnedPart]) {
        for part in parts {
            let at = self.find(&part.storage).unwrap_or_else(|at| {
                self.0.insert(at, Memory { storage: part.storage.clone(), users: Vec::new(), writers: 0 });
                at
            });
            let memory = &mut self.0[at];
            match memory.users.binary_search_by_key(&node, |user| user.0) {
                Ok(user) => {
                    memory.writers += usize::from(part.writes && !memory.users[user].1);
                    memory.users[user].1 |= part.writes;
                }
                Err(user) => {
                    memory.users.insert(user, (node, part.writes));
                    memory.writers += usize::from(part.writes);
                }
            }
        }
    }

    fn remove(&mut self, node: u32, parts: &[OwnedPart]) {
        for part in parts {
            let Ok(at) = self.find(&part.storage) else { continue };
            let memory = &mut self.0[at];
            if let Ok(user) = memory.users.binary_search_by_key(&node, |user| user.0) {
                memory.writers -= usize::from(memory.users.remove(user).1);
            }
            if memory.users.is_empty() {
                self.0.remove(at);
            }
        }
    }

    /// The nodes that one with these parts must follow, when it comes after all that are known.
    fn before(&self, parts: &[OwnedPart]) -> Vec<u32> {
        let mut before = Vec::new();
        for part in parts {
            if let Ok(at) = self.find(&part.storage) {
                before.extend(conflicts(self.0[at].users.iter().rev(), part.writes));
            }
        }
        before.sort_unstable();
        before.dedup();
        before
    }

    /// Whether the edges keep `node`, with these parts, in order with everybody else.
    fn in_order(&self, node: u32, parts: &[OwnedPart], edges: &[Vec<u32>]) -> bool {
        parts.iter().all(|part| {
            let Ok(at) = self.find(&part.storage) else { return true };
            let users = &self.0[at].users;
            let writes = users.contains(&(node, true));
            let split = users.partition_point(|user| user.0 < node);
            let earlier = conflicts(users[..split].iter().rev(), writes);
            let later = conflicts(users[split..].iter().filter(|user| user.0 != node), writes);
            earlier.iter().all(|&earlier| follows(edges, node, earlier))
                && later.iter().all(|&later| follows(edges, later, node))
        })
    }
}

/// Of the users of a memory, met one after the other, those that conflict with one more: a writer conflicts with the
/// reads up to the next write, and with that; a reader with the next write.
fn conflicts<'a>(users: impl Iterator<Item = &'a (u32, bool)>, writes: bool) -> Vec<u32> {
    let mut found = Vec::new();
    for &(node, node_writes) in users {
        if node_writes {
            // Reads in between have the write before them already, or behind them.
            if found.is_empty() || !writes {
                found.push(node);
            }
            break;
        }
        if writes {
            found.push(node);
        }
    }
    found
}

/// Whether the edges lead from `node` back to `earlier`.
fn follows(edges: &[Vec<u32>], node: u32, earlier: u32) -> bool {
    let mut seen = vec![false; (node - earlier) as usize + 1];
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        if node == earlier {
            return true;
        }
        // The nearest are looked at first: the edge that is sought is mostly a direct one.
        for &before in edges.get(node as usize).into_iter().flatten().filter(|before| **before >= earlier) {
            if !std::mem::replace(&mut seen[(before - earlier) as usize], true) {
                open.push(before);
            }
        }
    }
    false
}
