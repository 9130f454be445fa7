//! Work that outlives the call it came with: what the nodes of a graph hold.

use std::sync::Arc;

use crate::backend::{Kernel, Launch, Memory, Node, Part, Work};
use crate::error::{Error, Result};

/// A part of memory, owned.
#[derive(Clone)]
pub struct OwnedPart {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// Where the part begins, in bytes.
    pub offset_bytes: u64,
    /// Its length in bytes.
    pub size_bytes: u64,
}

impl OwnedPart {
    /// The part, borrowed.
    pub fn part(&self) -> Part<'_> {
        Part { memory: &self.memory, offset_bytes: self.offset_bytes, size_bytes: self.size_bytes }
    }
}

impl From<&Part<'_>> for OwnedPart {
    fn from(part: &Part<'_>) -> OwnedPart {
        let Part { memory, offset_bytes, size_bytes } = *part;
        OwnedPart { memory: memory.clone(), offset_bytes, size_bytes }
    }
}

/// A piece of work, owned.
#[derive(Clone)]
pub enum OwnedWork {
    /// A kernel over a grid.
    Launch {
        /// The kernel.
        kernel: Arc<dyn Kernel>,
        /// The resources, in the order of [`KernelInterface::bindings`](crate::KernelInterface::bindings).
        bindings: Vec<OwnedPart>,
        /// The immediate data.
        immediates: Vec<u8>,
        /// Workgroups along x, y, z.
        groups: [u32; 3],
    },
    /// A copy.
    Copy {
        /// From here.
        from: OwnedPart,
        /// To here.
        to: OwnedPart,
    },
    /// A fill.
    Fill {
        /// What is filled.
        to: OwnedPart,
        /// With this.
        word: u32,
    },
}

impl OwnedWork {
    /// Calls `f` with the work, borrowed.
    pub fn with<R>(&self, f: impl FnOnce(Work<'_>) -> R) -> R {
        match self {
            OwnedWork::Launch { kernel, bindings, immediates, groups } => {
                let bindings: Vec<Part<'_>> = bindings.iter().map(OwnedPart::part).collect();
                f(Work::Launch(Launch { kernel, bindings: &bindings, immediates, groups: *groups }))
            }
            OwnedWork::Copy { from, to } => f(Work::Copy { from: from.part(), to: to.part() }),
            OwnedWork::Fill { to, word } => f(Work::Fill { to: to.part(), word: *word }),
        }
    }
}

impl From<&Work<'_>> for OwnedWork {
    fn from(work: &Work<'_>) -> OwnedWork {
        match work {
            Work::Launch(launch) => OwnedWork::Launch {
                kernel: launch.kernel.clone(),
                bindings: launch.bindings.iter().map(OwnedPart::from).collect(),
                immediates: launch.immediates.to_vec(),
                groups: launch.groups,
            },
            Work::Copy { from, to } => OwnedWork::Copy { from: from.into(), to: to.into() },
            Work::Fill { to, word } => OwnedWork::Fill { to: to.into(), word: *word },
        }
    }
}

/// A node of a graph, owned.
#[derive(Clone)]
pub struct OwnedNode {
    /// What it does.
    pub work: OwnedWork,
    /// Earlier nodes whose effects it must see, by position.
    pub after: Vec<u32>,
}

impl OwnedNode {
    /// The nodes of a graph.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a node comes after one that is not earlier.
    pub fn all(nodes: &[Node<'_>]) -> Result<Vec<OwnedNode>> {
        let own = |(position, node): (usize, &Node<'_>)| {
            if let Some(later) = node.after.iter().find(|&&other| other as usize >= position) {
                let what =
                    format!("node {position} of the graph comes after node {later}, which is not earlier");
                return Err(Error::InvalidArgument(what));
            }
            Ok(OwnedNode { work: (&node.work).into(), after: node.after.to_vec() })
        };
        nodes.iter().enumerate().map(own).collect()
    }

    /// The node at `index` of a graph's, for [`Graph::update`](crate::backend::Graph::update).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no such node.
    pub fn at(nodes: &mut [OwnedNode], index: usize) -> Result<&mut OwnedNode> {
        let count = nodes.len();
        nodes
            .get_mut(index)
            .ok_or_else(|| Error::InvalidArgument(format!("the graph has {count} nodes, no node {index}")))
    }
}
