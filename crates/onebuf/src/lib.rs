//! GPU compute on shared memory: one buffer that the CPU, every GPU, other processes and APIs touch with no copies, and one WGSL kernel on every vendor.

mod arg;
mod buffer;
mod builder;
mod device;
mod event;
mod graph;
mod guard;
mod host;
mod interop;
mod kernel;
mod order;
mod pool;
mod registry;
mod storage;
mod stream;

pub use arg::{Arg, AsArg};
pub use buffer::{Buffer, BufferSlice};
pub use builder::BufferBuilder;
pub use device::{Device, MemoryUse};
pub use event::Event;
pub use graph::{Graph, GraphBuilder, NodeId};
pub use guard::{ReadGuard, WriteGuard};
pub use host::{NotAdopted, PageVec};
pub use kernel::{Kernel, KernelBuilder, OverrideValue};
pub use onebuf_core as core;
pub use onebuf_core::backend::{Backend, Export};
pub use onebuf_core::{
    Access, Adapter, Binding, BindingKind, CostClass, DeviceId, DeviceInfo, DeviceKind, DeviceProfile,
    DeviceUse, DeviceUuid, Error, Features, HandleKind, HostAccess, HostPath, Intent, KernelInterface,
    Limits, Placement, Result, Scalar, Semantic, Share, Slot, StreamId, Strength, Ticket, Tickets,
    UnifiedLevel,
};
pub use pool::PoolStats;
pub use registry::{DEVICE_VARIABLE, DefaultChoice, Listing, Registry};
pub use stream::Stream;
