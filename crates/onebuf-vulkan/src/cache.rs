//! Compiled pipelines on disk: one file each, named by everything that the machine code depends on.
//!
//! One file a pipeline, not one a device: two processes never merge each other's data, and a file is written beside its
//! place and renamed, so that a reader sees all of it or none. Whatever goes wrong with a file (a full disk, a missing
//! directory, a cut file) costs a compilation and nothing else.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::adapter::Physical;

/// The head of each file; the number changes with the layout.
const MAGIC: &[u8; 8] = b"onebufP1";

/// The directory is brought back to three quarters of this when a device is opened.
const MAX_DIRECTORY_BYTES: u64 = 256 << 20;

/// No pipeline's data is longer; a file that claims more is not read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Where compiled pipelines of one device and driver are kept. `ONEBUF_CACHE_DIR` names the directory, and is
/// `off` to keep nothing; without it `$XDG_CACHE_HOME/onebuf` or `~/.cache/onebuf` is used.
pub(crate) struct PipelineCacheDir {
    directory: Option<PathBuf>,
    device: Vec<u8>,
}

/// The name of one pipeline.
pub(crate) struct PipelineKey(u128);

impl PipelineCacheDir {
    pub(crate) fn open(physical: &Physical) -> PipelineCacheDir {
        let directory = directory();
        if let Some(directory) = &directory {
            trim(directory);
        }
        let mut device = physical.pipeline_cache_uuid.to_vec();
        device.extend_from_slice(&physical.driver_uuid);
        device.extend_from_slice(physical.info.driver.as_bytes());
        device.extend_from_slice(physical.info.name.as_bytes());
        PipelineCacheDir { directory, device }
    }

    pub(crate) fn key(&self, spirv: &[u32], entry: &str, unchecked: bool) -> PipelineKey {
        let mut hash = Xxh3::new();
        hash.update(&self.device);
        hash.update(entry.as_bytes());
        hash.update(&[unchecked.into()]);
        for word in spirv {
            hash.update(&word.to_le_bytes());
        }
        PipelineKey(hash.digest128())
    }

    /// The data of an earlier compilation.
    pub(crate) fn load(&self, key: &PipelineKey) -> Option<Vec<u8>> {
        let mut file = fs::File::open(self.path(key)?).ok()?;
        if file.metadata().ok()?.len() > MAX_FILE_BYTES {
            return None;
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).ok()?;
        // Drivers must check what they are given and some do so badly, so a damaged file stops here.
        let rest = content.strip_prefix(MAGIC)?;
        let (sum, data) = rest.split_at_checked(8)?;
        (xxh3_64(data).to_le_bytes() == sum).then(|| data.to_vec())
    }

    /// Keeps the data of a compilation, if it can.
    pub(crate) fn store(&self, key: &PipelineKey, data: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write(&path, data) {
            tracing::debug!(path = %path.display(), %error, "a compiled pipeline could not be kept");
        }
    }

    fn path(&self, key: &PipelineKey) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{:032x}.pipeline", key.0)))
    }
}

fn directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    match set("ONEBUF_CACHE_DIR") {
        Some(value) if value == "off" => None,
        Some(value) => Some(PathBuf::from(value)),
        None => {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
            cache.map(|cache| cache.join("onebuf"))
        }
    }
}

fn write(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let Some(directory) = path.parent() else { return Ok(()) };
    create_private(directory)?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
    file.write_all(MAGIC)?;
    file.write_all(&xxh3_64(data).to_le_bytes())?;
    file.write_all(data)?;
    file.persist(path)?;
    Ok(())
}

/// Makes the directory for this user alone: its files are handed to the driver.
fn create_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Removes the files that were made longest ago once the directory is full.
fn trim(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "pipeline"))
        .filter_map(|entry| {
            let data = entry.metadata().ok()?;
            Some((data.modified().ok()?, data.len(), entry.path()))
        })
        .collect();
    let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
    if total <= MAX_DIRECTORY_BYTES {
        return;
    }
    files.sort();
    for (_, size, path) in files {
        if total <= MAX_DIRECTORY_BYTES / 4 * 3 {
            break;
        }
        if fs::remove_file(path).is_ok() {
            total -= size;
        }
    }
}
