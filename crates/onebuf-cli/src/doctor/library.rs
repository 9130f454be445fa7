//! Libraries, opened in a second process: their initialisers may crash, hang or print.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::child;

const LIMIT: Duration = Duration::from_secs(20);

/// A library for a second process to open.
#[derive(Debug, clap::Args)]
pub(crate) struct LibraryOf {
    /// A path, or a name for the system's search.
    name: String,
    /// Functions, of which one must be there.
    #[arg(long)]
    function: Vec<String>,
    /// Call the first function, which writes a number: its version.
    #[arg(long)]
    version: bool,
}

/// A library that was opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    /// The file that it came from, where the system says.
    pub(super) path: Option<String>,
    /// The functions that it has.
    pub(super) functions: Vec<String>,
    /// What its version function wrote.
    pub(super) version: Option<u32>,
}

/// Opens a library in a second process, and looks for functions.
///
/// # Errors
/// Why it cannot be opened, as the system says; or how the process ended.
pub(super) fn open(name: &str, functions: &[&str], version: bool) -> Result<Opened, String> {
    let mut args = vec!["__child", "library"];
    for function in functions {
        args.extend(["--function", function]);
    }
    if version {
        args.push("--version");
    }
    args.extend(["--", name]);
    let ended = child::run(&args, LIMIT).map_err(|error| error.to_string())?;
    ended.value().unwrap_or_else(|| Err(ended.why()))
}

/// In the second process: opens the library and reports.
pub(crate) fn here(library: &LibraryOf) -> crate::error::Result<()> {
    child::report(&load(library))
}

#[allow(unsafe_code)]
fn load(asked: &LibraryOf) -> Result<Opened, String> {
    // SAFETY: the initialisers of a driver or of a toolkit's library have no preconditions, and this process does
    // nothing else: what they break is nobody's.
    let library = unsafe { libloading::Library::new(&asked.name) }.map_err(|error| error.to_string())?;
    let mut opened = Opened { path: path_of(&asked.name), functions: Vec::new(), version: None };
    for function in &asked.function {
        type Version = unsafe extern "C" fn(*mut u32) -> i32;
        // SAFETY: the type is only used for the version functions, all of which have it: vkEnumerateInstanceVersion and
        // cuDriverGetVersion write one 32-bit number and need no set-up.
        let Ok(symbol) = (unsafe { library.get::<Version>(function.as_bytes()) }) else { continue };
        if asked.version && opened.functions.is_empty() {
            let mut version = 0;
            // SAFETY: as above.
            if unsafe { symbol(&mut version) } == 0 {
                opened.version = Some(version);
            }
        }
        opened.functions.push(function.clone());
    }
    // Some drivers crash when they are unloaded, which is nothing that a program would do.
    std::mem::forget(library);
    Ok(opened)
}

/// The file that a library with this name is mapped from.
fn path_of(name: &str) -> Option<String> {
    let base = name.rsplit('/').next()?;
    // libvulkan.so.1 is a link to libvulkan.so.1.3.239.
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}"));
    paths.into_iter().find(|path| path.rsplit('/').next().is_some_and(|file| file.starts_with(base)))
}
