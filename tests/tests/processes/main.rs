//! What needs another process: memory passed on, a cache in common, broken environments, resources that come back.

mod cache;
mod environment;
mod exhaustion;
mod rings;
mod sharing;
