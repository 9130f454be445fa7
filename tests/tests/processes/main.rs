//! What needs another process: memory passed on, a cache in common, broken environments, resources that come back.

mod cache;
mod environment;
mod exhaustion;
mod leases;
mod rings;
mod sharing;
mod ways;
