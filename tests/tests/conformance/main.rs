//! What a device does, in this process.

mod across;
mod bounds;
mod coherence;
mod devices;
mod dlpack;
mod errors;
mod events;
mod export;
mod failures;
mod graphs;
mod grids;
mod guards;
mod host_import;
mod kernels;
mod layouts;
mod lifetime;
mod limits;
mod memory;
mod order;
mod placement;
mod scalars;
mod shares;
mod staging;
mod threads;
mod workgroups;
