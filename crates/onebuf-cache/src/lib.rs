//! Compiled kernels on disk: one file each, named by everything that the machine code depends on.
//!
//! One file a kernel, not one a device: two processes never merge each other's data, and a file is written beside its
//! place and renamed, so that a reader sees all of it or none. Whatever goes wrong with a file (a full disk, a missing
//! directory, a cut file) costs a compilation and nothing else.
//!
//! `ONEBUF_CACHE_DIR` names the directory, and is `off` to keep nothing; without it `$XDG_CACHE_HOME/onebuf` or
//! `~/.cache/onebuf` is used.
//!
//! ```
//! use onebuf_cache::{Cache, Kind};
//!
//! const KIND: Kind = Kind { extension: "example", magic: *b"onebufX1" };
//! let directory = tempfile::tempdir()?;
//! let cache = Cache::in_directory(KIND, Some(directory.path().to_owned()));
//! let key = cache.key(&[b"the source", b"the driver's version"]);
//! assert_eq!(cache.load(&key), None);
//! cache.store(&key, b"machine code");
//! assert_eq!(cache.load(&key).as_deref(), Some(&b"machine code"[..]));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The files of one kind in the directory are brought back to three quarters of this when a cache is opened.
const MAX_DIRECTORY_BYTES: u64 = 256 << 20;

/// No kernel's code is longer; a file that claims more is not read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What sort of file a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The ending of the files' names.
    pub extension: &'static str,
    /// The head of each file. It changes with the layout.
    pub magic: [u8; 8],
}

/// Where compiled kernels of one kind are kept.
#[derive(Debug)]
pub struct Cache {
    kind: Kind,
    directory: Option<PathBuf>,
}

/// The name of one compiled kernel: a hash of what it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u128);

impl Cache {
    /// The cache in the directory that the environment names.
    pub fn open(kind: Kind) -> Cache {
        Cache::in_directory(kind, directory())
    }

    /// The cache in `directory`; without one, nothing is kept.
    pub fn in_directory(kind: Kind, directory: Option<PathBuf>) -> Cache {
        if let Some(directory) = &directory {
            trim(directory, kind.extension, MAX_DIRECTORY_BYTES);
        }
        Cache { kind, directory }
    }

    /// The key of what is made from these parts, in this order.
    pub fn key(&self, parts: &[&[u8]]) -> Key {
        let mut hash = Xxh3::new();
        for part in parts {
            // With its length, so that a byte cannot move from one part to the next unseen.
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Key(hash.digest128())
    }

    /// The code of an earlier compilation.
    pub fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        // Before it is opened: a pipe would wait for somebody to write to it.
        let metadata = path.metadata().ok()?;
        if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
            return None;
        }
        let mut file = fs::File::open(path).ok()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).ok()?;
        // Drivers must check what they are given and some do so badly, so a damaged file stops here.
        let rest = content.strip_prefix(&self.kind.magic)?;
        let (sum, data) = rest.split_at_checked(8)?;
        (xxh3_64(data).to_le_bytes() == sum).then(|| data.to_vec())
    }

    /// Keeps the code of a compilation, if it can.
    pub fn store(&self, key: &Key, data: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = self.write(&path, data) {
            tracing::debug!(path = %path.display(), %error, "a compiled kernel could not be kept");
        }
    }

    /// Removes the code behind a key: what a driver refuses is not offered to it again.
    pub fn remove(&self, key: &Key) {
        if let Some(path) = self.path(key) {
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{:032x}.{}", key.0, self.kind.extension)))
    }

    fn write(&self, path: &Path, data: &[u8]) -> std::io::Result<()> {
        let Some(directory) = path.parent() else { return Ok(()) };
        create_private(directory)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
        file.write_all(&self.kind.magic)?;
        file.write_all(&xxh3_64(data).to_le_bytes())?;
        file.write_all(data)?;
        file.persist(path)?;
        Ok(())
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

/// Makes the directory for this user alone: its files are handed to the driver.
fn create_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Removes the files of one kind that were made longest ago once they fill the directory.
fn trim(directory: &Path, extension: &str, most_bytes: u64) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == extension))
        .filter_map(|entry| {
            let data = entry.metadata().ok()?;
            Some((data.modified().ok()?, data.len(), entry.path()))
        })
        .collect();
    let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
    if total <= most_bytes {
        return;
    }
    files.sort();
    for (_, size, path) in files {
        if total <= most_bytes / 4 * 3 {
            break;
        }
        if fs::remove_file(path).is_ok() {
            total -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { extension: "test", magic: *b"onebufT1" };

    #[test]
    fn damaged_files_are_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::in_directory(KIND, Some(directory.path().join("deeper")));
        let key = cache.key(&[b"source"]);
        cache.store(&key, b"machine code");
        assert_eq!(cache.load(&key).unwrap(), b"machine code");
        let path = cache.path(&key).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [0, 7, 8, 15, 16, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(cache.load(&key), None, "cut after {cut} bytes");
        }
        for changed in [0, 8, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[changed] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.load(&key), None, "byte {changed} changed");
        }
        fs::write(&path, &whole).unwrap();
        assert!(cache.load(&key).is_some());
        cache.remove(&key);
        assert_eq!(cache.load(&key), None);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_holds_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::in_directory(KIND, Some(directory.path().to_owned()));
        let key = cache.key(&[b"source"]);
        let path = cache.path(&key).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let (sent, came) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let before = cache.load(&key);
            cache.store(&key, b"machine code");
            sent.send((before, cache.load(&key))).unwrap();
        });
        let (before, after) = came.recv_timeout(std::time::Duration::from_secs(30)).expect("it waits");
        assert_eq!((before, after.as_deref()), (None, Some(&b"machine code"[..])));
        assert!(path.is_file());
    }

    #[test]
    fn keys_tell_parts_apart() {
        let cache = Cache::in_directory(KIND, None);
        assert_ne!(cache.key(&[b"ab", b"c"]), cache.key(&[b"a", b"bc"]));
        assert_ne!(cache.key(&[b"ab"]), cache.key(&[b"ab", b""]));
        assert_eq!(cache.key(&[b"ab", b"c"]), cache.key(&[b"ab", b"c"]));
        cache.store(&cache.key(&[b"x"]), b"kept nowhere");
        assert_eq!(cache.load(&cache.key(&[b"x"])), None);
    }

    #[test]
    fn the_oldest_files_of_the_kind_go_first() {
        let directory = tempfile::tempdir().unwrap();
        let start = SystemTime::now() - std::time::Duration::from_secs(1000);
        for i in 0..10u64 {
            let file = fs::File::create(directory.path().join(format!("{i}.test"))).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(start + std::time::Duration::from_secs(i)).unwrap();
        }
        fs::write(directory.path().join("other.pipeline"), [0; 5000]).unwrap();
        trim(directory.path(), "test", 1000);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 11);
        trim(directory.path(), "test", 900);
        let mut left: Vec<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["4.test", "5.test", "6.test", "7.test", "8.test", "9.test", "other.pipeline"]);
    }
}
