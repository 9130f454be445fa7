//! The contract of onebuf: what "shared" can mean, how memory is chosen, how work is ordered, and what a backend must do.
//!
//! This crate talks to no driver and has no unsafe block. Backends implement [`backend`]; the crate `onebuf` drives them.
//!
//! | module | what is in it |
//! |---|---|
//! | [`semantics`] | the eleven meanings of "shared GPU memory" |
//! | [`report`] | advertised, permitted, verified, cost: the four facts of each |
//! | [`device`] | who a device is, and its limits |
//! | [`profile`] | a device's memory, described |
//! | [`intent`] | what a buffer's users will do |
//! | [`placement`] | from profile and intent to a ranked choice, with reasons |
//! | [`kernel`] | what a kernel takes |
//! | [`args`] | the check of arguments against it |
//! | [`hazard`] | tickets, and who must wait for whom |
//! | [`backend`] | the traits |
//! | [`owned`] | work that outlives its call, for graphs |
//! | [`error`] | what can go wrong |
//!
//! # Writing a backend
//!
//! Implement [`backend::Backend`] and the traits behind it, hand the backend to `onebuf::Registry`, and run the conformance
//! suite on it. The module [`backend`] says who decides what. Nothing else is needed.
//!
//! ```
//! use onebuf_core::intent::{HostAccess, Intent};
//! use onebuf_core::placement::rank;
//! use onebuf_core::profile::{DeviceProfile, Heap, MemoryKind};
//! use onebuf_core::{DeviceKind, UnifiedLevel};
//!
//! // An integrated GPU with one memory type. Where would a buffer go that the CPU reads?
//! let profile = DeviceProfile {
//!     device: "vulkan:0".into(),
//!     kind: DeviceKind::Integrated,
//!     unified: UnifiedLevel::None,
//!     heaps: vec![Heap { size_bytes: 8 << 30, budget_bytes: None, device_local: true }],
//!     memory: vec![MemoryKind {
//!         name: "type 0".into(),
//!         device_local: true,
//!         host_visible: true,
//!         host_coherent: true,
//!         host_cached: true,
//!         ..MemoryKind::default()
//!     }],
//!     max_allocation_bytes: 4 << 30,
//!     max_buffer_bytes: 4 << 30,
//! };
//! let intent = Intent { size_bytes: 1 << 20, host: HostAccess::Read, ..Intent::default() };
//! let ranking = rank(&profile, &intent)?;
//! assert_eq!(ranking.candidates[0].kind, 0);
//! assert_eq!(ranking.candidates[0].staging, None); // in place
//! # Ok::<(), onebuf_core::Error>(())
//! ```

#![deny(unsafe_code)]

pub mod args;
pub mod backend;
pub mod device;
pub mod error;
pub mod hazard;
pub mod intent;
pub mod kernel;
pub mod owned;
pub mod placement;
pub mod profile;
pub mod report;
pub mod semantics;
pub mod token;

pub use device::{Adapter, DeviceId, DeviceInfo, DeviceKind, DeviceUuid, Limits};
pub use error::{Error, Result};
pub use hazard::{StreamId, Ticket, Tickets};
pub use intent::{DeviceUse, HostAccess, Intent, Share, Strength, Ways};
pub use kernel::{Access, Binding, BindingKind, Features, KernelInterface, Override, Scalar, Slot};
pub use placement::Placement;
pub use profile::{CostClass, DeviceProfile, HandleKind, HostPath};
pub use semantics::{Semantic, UnifiedLevel};
pub use token::Token;
