//! Array files: elements go between a file and a buffer's memory, and nowhere else.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::npy::{DType, Header, Shape};
use crate::error::{Error, Result};

/// How a file holds an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// With a header that says type and shape.
    Npy,
    /// The elements alone.
    Bin,
}

/// A file on the command line, whose name says its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrayPath {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
}

impl ArrayPath {
    /// The file called `name`.
    pub(crate) fn new(name: &str) -> Result<ArrayPath, String> {
        let path = PathBuf::from(name);
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format = match extension {
            Some("npy") => Format::Npy,
            Some("bin") => Format::Bin,
            _ => return Err(format!("`{name}` is no array file; its name must end with .npy or .bin")),
        };
        Ok(ArrayPath { path, format })
    }
}

/// An array in a file, found to be all there.
#[derive(Debug)]
pub(crate) struct ArrayFile {
    file: File,
    path: PathBuf,
    /// Raw bytes where the file has no header.
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// Size of the elements in bytes.
    pub(crate) bytes: u64,
}

impl ArrayFile {
    /// Opens a file and checks that it holds as many bytes as it says: nothing is reserved before.
    pub(crate) fn open(from: &ArrayPath) -> Result<ArrayFile> {
        let path = &from.path;
        let io = |error| Error::io(path.display(), error);
        let bad = |problem: String| Error::Failed(format!("{}: {problem}", path.display()));
        // Before it is opened: a pipe would wait for somebody to write to it.
        if !path.metadata().map_err(io)?.is_file() {
            return Err(bad("it is no regular file, whose size can be known beforehand".into()));
        }
        let mut file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let (dtype, shape, offset) = match from.format {
            Format::Npy => {
                let header = Header::read(&mut file).map_err(|error| bad(error.to_string()))?;
                (header.dtype, header.shape, header.data_offset)
            }
            Format::Bin => (DType::U1, Shape(vec![metadata.len()]), 0),
        };
        let bytes = shape.bytes(dtype).unwrap_or(u64::MAX);
        let holds = metadata.len().saturating_sub(offset);
        if holds != bytes {
            let what = if holds < bytes { "it is cut" } else { "something follows the array" };
            return Err(bad(format!(
                "{what}: {shape} elements of {dtype} have {bytes} bytes, and it holds {holds}"
            )));
        }
        file.seek(SeekFrom::Start(offset)).map_err(io)?;
        Ok(ArrayFile { file, path: path.clone(), dtype, shape, bytes })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all elements into `target`, which is as long as they are.
    pub(crate) fn read_into(&mut self, target: &mut [u8]) -> Result<()> {
        self.file.read_exact(target).map_err(|error| Error::io(self.path.display(), error))
    }
}

/// Writes an array.
pub(crate) fn write(to: &ArrayPath, dtype: DType, shape: &Shape, elements: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(&to.path)?;
        if to.format == Format::Npy {
            file.write_all(&Header::write(dtype, shape))?;
        }
        file.write_all(elements)
    };
    write().map_err(|error| Error::io(to.path.display(), error))
}

/// Checks that a result can be put where it is to go, before the work is done. Nothing there is changed.
pub(crate) fn check_writable(to: &ArrayPath) -> Result<()> {
    let path = &to.path;
    let bad = |problem: String| Err(Error::Failed(format!("{}: {problem}", path.display())));
    let folder = folder_of(path);
    match path.metadata() {
        Ok(there) if there.is_dir() => bad("it is a folder; name a file".into()),
        Ok(there) if there.is_file() => {
            OpenOptions::new().write(true).open(path).map(drop).map_err(|e| Error::io(path.display(), e))
        }
        // A device or a pipe is opened once, when there is something to be written.
        Ok(_) => Ok(()),
        Err(_) if !folder.is_dir() => bad(format!("there is no folder {}", folder.display())),
        Err(_) => access(folder, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|e| Error::io(format!("{}: the folder {}", path.display(), folder.display()), e.into())),
    }
}

/// Refuses results of which two go to one file, where the last would replace the others.
pub(crate) fn check_apart<'a>(all: impl Iterator<Item = &'a ArrayPath>) -> Result<()> {
    let mut taken = HashSet::new();
    for to in all {
        let path = &to.path;
        // By whatever name: the file that is there, or else its folder and its name in it.
        let place = path.canonicalize().or_else(|_| {
            folder_of(path).canonicalize().map(|folder| folder.join(path.file_name().unwrap_or_default()))
        });
        if !taken.insert(place.unwrap_or_else(|_| path.clone())) {
            return Err(Error::usage(format!("{}: two results go to this file; name two", path.display())));
        }
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
