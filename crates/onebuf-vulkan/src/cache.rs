//! Compiled pipelines on disk, for one device and driver.

use onebuf_cache::{Cache, Key, Kind};

use crate::adapter::Physical;

const KIND: Kind = Kind { extension: "pipeline", magic: *b"onebufP1" };

/// Where compiled pipelines of one device and driver are kept.
pub(crate) struct PipelineCacheDir {
    cache: Cache,
    device: Vec<u8>,
}

impl PipelineCacheDir {
    pub(crate) fn open(physical: &Physical) -> PipelineCacheDir {
        let mut device = physical.pipeline_cache_uuid.to_vec();
        device.extend_from_slice(&physical.driver_uuid);
        device.extend_from_slice(physical.info.driver.as_bytes());
        device.extend_from_slice(physical.info.name.as_bytes());
        PipelineCacheDir { cache: Cache::open(KIND), device }
    }

    pub(crate) fn key(&self, spirv: &[u32], entry: &str, unchecked: bool) -> Key {
        let words: Vec<u8> = spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.cache.key(&[&self.device, entry.as_bytes(), &[unchecked.into()], &words])
    }

    /// The data of an earlier compilation.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        self.cache.load(key)
    }

    /// Keeps the data of a compilation, if it can.
    pub(crate) fn store(&self, key: &Key, data: &[u8]) {
        self.cache.store(key, data);
    }
}
