//! GPU compute on shared memory: one buffer that the CPU, every GPU, other processes and APIs touch with no copies, and one
//! WGSL kernel on every vendor.
//!
//! A program states who will touch a buffer. onebuf picks the memory that makes that true on the device at hand with
//! the fewest copies, says what it picked and why, orders all work on the buffer by itself, and runs the kernel.
//!
//! ```
//! use onebuf::{Device, HostAccess, args};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if onebuf::no_device_here()? { return Ok(()) }
//! let device = Device::open_default()?; // ONEBUF_DEVICE names another
//! println!("{}: {}", device.info().name, device.chosen_because());
//!
//! // Memory that the CPU writes and reads in place, wherever that can be had.
//! let numbers = device.buffer::<f32>(1000).host(HostAccess::ReadWrite).init_with(|i| i as f32)?;
//! println!("{}", numbers.placement()); // which memory, and why the others lost
//!
//! let kernel = device
//!     .kernel(
//!         "override OFFSET: u32;
//!          var<immediate> scale: f32;
//!          @group(0) @binding(0) var<storage, read_write> numbers: array<f32>;
//!          @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) {
//!              if at.x < arrayLength(&numbers) { numbers[at.x] = scale * numbers[at.x] + f32(OFFSET); }
//!          }",
//!     )?
//!     .set("OFFSET", 2)
//!     .build()?;
//! let stream = device.stream()?;
//! stream.launch(&kernel, kernel.groups_for([1000, 1, 1]), args![&numbers, 0.5f32])?;
//!
//! // Waits for the launch; then it is a plain slice of the memory that the device wrote.
//! assert_eq!(numbers.read()?[12], 8.0);
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | to | see |
//! |---|---|
//! | find devices, or open one | [`Registry`], [`Device`] |
//! | make memory | [`Device::buffer`], [`BufferBuilder`]; memory that is already there: [`Device::adopt`], [`PageVec`] |
//! | use it from the CPU | [`Buffer::read`], [`Buffer::write`], [`ReadGuard`], [`WriteGuard`] |
//! | know where it is and what it costs | [`Buffer::placement`], [`Device::semantics`], [`Device::memory`] |
//! | compute | [`Device::kernel`], [`Stream::launch`], [`args!`] |
//! | measure | [`Stream::event`], [`Event`] |
//! | run the same work again and again | [`Device::graph`], [`Graph`] |
//! | share with another process | [`BufferBuilder::share`], [`Buffer::share`], [`Device::open_shared`], [`ipc`] |
//! | pass frames to another process | [`ring`] |
//! | share with another API | [`Buffer::export`], [`Device::import_buffer`], [`Device::order_external`] |
//! | share with CUDA programs that have no onebuf | [`Buffer::export`], `Device::import_cuda` |
//! | share with another library's arrays | [`dlpack`] |
//! | add a backend | [`mod@core`], [`Registry::with`] |
//!
//! # Order
//!
//! A buffer remembers who wrote it last and who has read it since. Work waits on the device for what it conflicts with,
//! whichever stream that is on; a guard waits on the CPU, and refuses conflicting work while it lives. Nothing has to be
//! ordered by hand to be right.
//!
//! # What is copied, and when
//!
//! | memory of the buffer | [`Buffer::read`] | [`Buffer::write`] | [`Buffer::overwrite`] |
//! |---|---|---|---|
//! | `uma`: integrated GPUs, software devices | nothing | nothing | nothing |
//! | `host-mapped`: the CPU's memory, seen by the device | nothing | nothing | nothing |
//! | imported: [`Device::adopt`], [`Device::import_host`] | nothing | nothing | nothing |
//! | `resizable-bar`, `bar-window`, built for [`HostAccess::Write`] | refused; [`Buffer::read_to_vec`] copies | nothing | nothing |
//! | `unified` | nothing; pages move | nothing; pages move | nothing; pages move |
//! | staged (the placement says so) | the range, before | the range, before and after | the range, after |
//!
//! [`Device::copied_bytes`] counts what went through staging. `read_to_vec`, `copy_to_slice` and `copy_from_slice` copy to
//! and from the caller's memory, as their names say.

mod across;
mod arg;
mod buffer;
mod builder;
mod device;
pub mod dlpack;
mod event;
#[cfg(feature = "cuda")]
mod foreign;
mod graph;
mod guard;
mod host;
mod interop;
mod kernel;
mod order;
mod pages;
mod partners;
mod pool;
mod registry;
pub mod ring;
mod share;
mod storage;
mod stream;
#[cfg(feature = "wgpu")]
pub mod wgpu;

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
pub use onebuf_core::backend::{Backend, Export, KernelSource};
pub use onebuf_core::{
    Access, Adapter, Binding, BindingKind, CostClass, DeviceId, DeviceInfo, DeviceKind, DeviceProfile,
    DeviceUse, DeviceUuid, Error, Features, HandleKind, HostAccess, HostPath, Intent, KernelInterface,
    Limits, Placement, Result, Scalar, Semantic, Share, Slot, StreamId, Strength, Ticket, Tickets, Token,
    UnifiedLevel, Ways,
};
#[cfg(feature = "cuda")]
pub use onebuf_cuda::Handle as CudaHandle;
pub use onebuf_ipc as ipc;
pub use onebuf_ipc::SharedBuffer;
pub use partners::{HOST_PATIENCE, Handover, Handovers};
pub use pool::PoolStats;
pub use registry::{DEVICE_VARIABLE, DefaultChoice, Listing, Registry};
pub use stream::Stream;

/// True where examples have no device to run on. A skip never passes for a run: with `ONEBUF_REQUIRE` set, it is an error.
#[doc(hidden)]
pub fn no_device_here() -> Result<bool> {
    match Registry::system().default_choice() {
        Ok(_) => Ok(false),
        Err(error) if std::env::var_os("ONEBUF_REQUIRE").is_some() => Err(error),
        Err(_) => Ok(true),
    }
}
