//! CUDA's driver library, and its run-time compiler.

use std::time::Duration;

use onebuf_wgsl::nvrtc::Nvrtc;

use super::nvidia::{self, Facts};
use super::{Check, library, nodes};
use crate::child;

const LIMIT: Duration = Duration::from_secs(20);

/// Checks of the libraries that CUDA needs.
pub(super) fn checks() -> Vec<Check> {
    let hardware = nodes::has_nvidia();
    let (driver, serves) = driver(hardware);
    let (nvrtc, compiles) = nvrtc();
    let facts = Facts::gather(serves, compiles, hardware);
    [driver, nvrtc].into_iter().chain(nvidia::checks(&facts)).collect()
}

/// The driver's library, and the CUDA that it serves: 13000 for 13.0.
fn driver(nvidia: bool) -> (Check, Option<u32>) {
    const ID: &str = "cuda-library";
    // WSL keeps it where the system's search does not look.
    let names = ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];
    let mut refused = Vec::new();
    for name in names {
        match library::open(name, &["cuDriverGetVersion"], true) {
            Ok(opened) => {
                let version = opened.version.map_or_else(
                    || "of unknown version".to_owned(),
                    |version| format!("for CUDA {}.{}", version / 1000, version % 1000 / 10),
                );
                let path = opened.path.unwrap_or_else(|| name.to_owned());
                let check = Check::ok(ID, format!("NVIDIA's driver library, {version}")).because(path);
                return (check, opened.version);
            }
            Err(why) => refused.push(why),
        }
    }
    let check = if nvidia {
        Check::warn(ID, "an NVIDIA GPU is here, and the library of its driver is not").remedy(
            "install NVIDIA's driver; in a container: docker run --gpus all, with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    } else {
        Check::ok(ID, "not found; only NVIDIA GPUs need it")
    };
    (refused.into_iter().fold(check, Check::because), None)
}

/// The compiler, and its version.
fn nvrtc() -> (Check, Option<(i32, i32)>) {
    const ID: &str = "nvrtc";
    let found: Result<(i32, i32), String> = match child::run(&["__child", "nvrtc"], LIMIT) {
        Ok(ended) => ended.value().unwrap_or_else(|| Err(ended.why())),
        Err(error) => Err(error.to_string()),
    };
    match found {
        Ok((major, minor)) => {
            let check = Check::ok(ID, format!("NVRTC {major}.{minor}, which compiles CUDA C++"));
            (check, Some((major, minor)))
        }
        Err(why) => {
            let check = Check::ok(ID, "not found; only `translate --check` and CUDA devices need it");
            (why.split("; ").fold(check, Check::because), None)
        }
    }
}

/// In the second process: loads NVRTC and reports.
pub(crate) fn nvrtc_here() -> crate::error::Result<()> {
    let version = Nvrtc::load().and_then(|nvrtc| nvrtc.version()).map_err(|error| error.to_string());
    child::report(&version)
}
