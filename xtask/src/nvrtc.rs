//! NVIDIA's run-time compiler, from its Python wheel: it needs neither a GPU nor a driver.

use crate::process;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of CUDA 13.0, the oldest that the library is written for.
const WHEEL: &str = "nvidia-cuda-nvrtc==13.0.88";
const LIBRARY: &str = "libnvrtc.so.13";

/// Where the compiler is.
pub(crate) struct Nvrtc(PathBuf);

impl Nvrtc {
    /// Finds it in the virtual environment in `folder`, or installs it there.
    pub(crate) fn collect(folder: &Path) -> Result<Self> {
        if let Some(library) = find(folder) {
            return Ok(Self(library));
        }
        if folder.exists() {
            std::fs::remove_dir_all(folder)
                .with_context(|| format!("could not empty {}", folder.display()))?;
        }
        println!("fetching {WHEEL} into {}", folder.display());
        process::read(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", WHEEL]);
        process::read(&mut pip)?;
        match find(folder) {
            Some(library) => Ok(Self(library)),
            None => bail!("the wheel {WHEEL} brought no {LIBRARY}"),
        }
    }

    /// The variables that name it to a test. Its built-ins are opened by bare name, so their folder is on the path.
    pub(crate) fn environment(
        &self,
        library_path: Option<&OsString>,
    ) -> Result<Vec<(&'static str, OsString)>> {
        let folder = self.0.parent().unwrap_or(Path::new("/"));
        let inherited = std::env::var_os("LD_LIBRARY_PATH");
        let before = library_path.or(inherited.as_ref());
        let paths = before.into_iter().flat_map(std::env::split_paths).chain([folder.to_path_buf()]);
        Ok(vec![("ONEBUF_NVRTC", self.0.clone().into()), ("LD_LIBRARY_PATH", std::env::join_paths(paths)?)])
    }
}

/// The library in a virtual environment, where it is whole.
fn find(folder: &Path) -> Option<PathBuf> {
    let below = std::fs::read_dir(folder.join("lib")).ok()?;
    let library = |entry: std::fs::DirEntry| {
        let path = entry.path().join("site-packages/nvidia/cu13/lib").join(LIBRARY);
        path.is_file().then_some(path)
    };
    below.filter_map(Result::ok).find_map(library)
}
