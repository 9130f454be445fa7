//! The drivers that tests run on: the system's own, and software drivers unpacked beside the build.
//!
//! Nothing here changes the system's drivers. A package is unpacked into `target/drivers/NAME`, an ICD file with the
//! library's absolute path is written there, and `VK_DRIVER_FILES` selects it for one process.

use crate::apt::{self, Archive};
use crate::probe::{Device, Probe};
use crate::process;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A driver, selected by its environment.
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) devices: Vec<Device>,
}

/// Something that this machine could not have.
pub(crate) struct LeftOut {
    pub(crate) name: &'static str,
    pub(crate) why: String,
}

/// Every driver that could be had, and those that could not.
#[derive(Default)]
pub(crate) struct Matrix {
    pub(crate) drivers: Vec<Driver>,
    pub(crate) left_out: Vec<LeftOut>,
    /// The ICD file of a driver that answers every query and runs nothing.
    pub(crate) mock: Option<PathBuf>,
}

/// The system's own drivers, whatever they are.
const SYSTEM: &str = "system";

/// A software driver in a package.
struct Packaged {
    name: &'static str,
    package: &'static str,
    from_backports: bool,
    library: &'static str,
}

const PACKAGED: [Packaged; 3] = [
    Packaged {
        name: "lavapipe",
        package: "mesa-vulkan-drivers",
        from_backports: false,
        library: "libvulkan_lvp.so",
    },
    Packaged {
        name: "lavapipe-backports",
        package: "mesa-vulkan-drivers",
        from_backports: true,
        library: "libvulkan_lvp.so",
    },
    Packaged {
        name: "swiftshader",
        package: "chromium-common",
        from_backports: false,
        library: "libvk_swiftshader.so",
    },
];

/// The mock driver lies beside SwiftShader in its package.
const MOCK_LIBRARY: &str = "libVkICD_mock_icd.so";

impl Matrix {
    /// Finds or fetches the drivers named in `only`, or all where it is empty, under the folder `root`.
    pub(crate) fn collect(root: &Path, only: &[String]) -> Result<Self> {
        let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
        let names = || std::iter::once(SYSTEM).chain(PACKAGED.iter().map(|packaged| packaged.name));
        if let Some(unknown) = only.iter().find(|one| !names().any(|name| name == one.as_str())) {
            bail!("there is no driver {unknown}; there are {}", names().collect::<Vec<_>>().join(", "));
        }
        let mut matrix = Self::default();
        let mut archive = None;
        for packaged in PACKAGED.iter().filter(|packaged| wanted(packaged.name)) {
            match packaged.driver(root, &mut archive) {
                Ok(driver) => matrix.drivers.push(driver),
                Err(error) => matrix.leave_out(packaged.name, &error),
            }
        }
        let mock = icd_file(root, "mock");
        matrix.mock = mock.is_file().then_some(mock);
        if wanted(SYSTEM) {
            matrix.add_system();
        }
        Ok(matrix)
    }

    /// Adds the system's own drivers, first, unless a packaged one is the very same.
    fn add_system(&mut self) {
        let devices = match Probe::here() {
            Ok(probe) => probe.devices,
            Err(error) => return self.leave_out(SYSTEM, &error),
        };
        if devices.is_empty() {
            self.leave_out(SYSTEM, &anyhow::anyhow!("it has no Vulkan device"));
        } else if let Some(same) = self.drivers.iter().find(|driver| driver.devices == devices) {
            println!("driver system: the same as {}, so it is run once", same.name);
        } else {
            self.drivers.insert(0, Driver { name: SYSTEM, environment: Vec::new(), devices });
        }
    }

    fn leave_out(&mut self, name: &'static str, why: &anyhow::Error) {
        self.left_out.push(LeftOut { name, why: format!("{why:#}") });
    }
}

impl Packaged {
    /// The driver from its folder, or fetched into it first.
    fn driver(&self, root: &Path, archive: &mut Option<Archive>) -> Result<Driver> {
        let icd = icd_file(root, self.name);
        // The ICD file is written last, so a folder that has one is whole.
        if icd.is_file()
            && let Ok(driver) = self.open(&icd)
        {
            return Ok(driver);
        }
        if !apt::is_here() {
            bail!("it comes from Debian's package {}, and this distribution has no apt", self.package);
        }
        let archive = match archive {
            Some(archive) => archive,
            None => archive.insert(Archive::open(&root.join("apt"))?),
        };
        self.fetch(root, archive)?;
        self.open(&icd)
    }

    fn fetch(&self, root: &Path, archive: &Archive) -> Result<()> {
        let folder = root.join(self.name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("could not empty {}", folder.display()))?;
        }
        let suite = if self.from_backports { Some(archive.backports()?) } else { None };
        let unpacked = archive.unpack(self.package, suite, &folder)?;
        let library = find(&folder, self.library).with_context(|| {
            format!("the package {} {} has no {}", self.package, unpacked.version, self.library)
        })?;
        complete(&library, unpacked.depends, &folder, archive)?;
        if let Some(mock) = find(&folder, MOCK_LIBRARY) {
            write_icd(&icd_file(root, "mock"), &mock)?;
        }
        write_icd(&icd_file(root, self.name), &library)
    }

    /// Selects the driver by its ICD file and asks it for its devices.
    fn open(&self, icd: &Path) -> Result<Driver> {
        let environment = environment(icd)?;
        let probe = Probe::ask(environment.iter().map(|(key, value)| (key, value)))?;
        if probe.devices.is_empty() {
            let why = probe.problem.unwrap_or_else(|| "it lists no device".into());
            bail!("{} does not load: {why}", icd.display());
        }
        Ok(Driver { name: self.name, environment, devices: probe.devices })
    }
}

/// The variables that select the driver of an ICD file, and let its library find the libraries unpacked beside it.
fn environment(icd: &Path) -> Result<Vec<(&'static str, OsString)>> {
    let folder = icd.with_extension("");
    let mut paths = library_folders(&folder);
    paths.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    Ok(vec![
        ("VK_DRIVER_FILES", icd.into()),
        // The same for loaders older than 1.3.207.
        ("VK_ICD_FILENAMES", icd.into()),
        ("LD_LIBRARY_PATH", std::env::join_paths(paths)?),
    ])
}

fn icd_file(root: &Path, name: &str) -> PathBuf {
    root.join(name).with_extension("json")
}

fn write_icd(file: &Path, library: &Path) -> Result<()> {
    let icd = serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": library, "api_version": "1.3.0" }
    });
    std::fs::write(file, format!("{icd:#}\n")).with_context(|| format!("could not write {}", file.display()))
}

/// Unpacks the packages that bring the shared libraries which `library` wants and this system lacks.
fn complete(library: &Path, depends: Vec<String>, folder: &Path, archive: &Archive) -> Result<()> {
    let mut open = VecDeque::from(depends);
    let mut seen: BTreeSet<String> = open.iter().cloned().collect();
    loop {
        let missing = missing_libraries(library, &library_folders(folder))?;
        if missing.is_empty() {
            return Ok(());
        }
        let next = loop {
            match open.pop_front() {
                Some(package) if apt::is_installed(&package) => {}
                next => break next,
            }
        };
        let Some(package) = next else {
            bail!("{} wants {}, which no package brings", library.display(), missing.join(", "));
        };
        let unpacked = archive.unpack(&package, None, folder)?;
        open.extend(unpacked.depends.into_iter().filter(|package| seen.insert(package.clone())));
    }
}

/// Shared libraries that the dynamic loader does not find.
fn missing_libraries(library: &Path, folders: &[PathBuf]) -> Result<Vec<String>> {
    let mut command = Command::new("ldd");
    command.arg(library).env("LC_ALL", "C").env("LD_LIBRARY_PATH", std::env::join_paths(folders)?);
    let text = process::read(&mut command)?;
    Ok(text.lines().filter_map(|line| Some(line.split_once("=> not found")?.0.trim().to_string())).collect())
}

/// Folders under an unpacked package in which Debian puts shared libraries.
fn library_folders(folder: &Path) -> Vec<PathBuf> {
    let parents = [folder.join("usr/lib"), folder.join("lib")];
    let below = parents.iter().filter_map(|parent| std::fs::read_dir(parent).ok()).flatten();
    below
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with("-linux-gnu"))
        .collect()
}

/// The file of this name somewhere below the folder.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut below = Vec::new();
    for entry in std::fs::read_dir(folder).ok()?.filter_map(Result::ok) {
        let path = entry.path();
        if entry.file_name() == name {
            return Some(path);
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below.push(path);
        }
    }
    below.iter().find_map(|path| find(path, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_driver_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = Matrix::collect(folder.path(), &["lavapip".to_string()]).err().unwrap().to_string();
        assert!(error.contains("lavapip") && error.contains("swiftshader"), "{error}");
    }

    #[test]
    fn icd_files_name_the_library_absolutely() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("x/usr/lib/chromium/libvk.so");
        std::fs::create_dir_all(library.parent().unwrap()).unwrap();
        std::fs::write(&library, "").unwrap();
        assert_eq!(find(folder.path(), "libvk.so").as_deref(), Some(library.as_path()));
        let icd = icd_file(folder.path(), "x");
        write_icd(&icd, &library).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&icd).unwrap()).unwrap();
        assert_eq!(read["ICD"]["library_path"], library.to_str().unwrap());
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let this = std::env::current_exe().unwrap();
        assert_eq!(missing_libraries(&this, &[]).unwrap(), Vec::<String>::new());
    }
}
