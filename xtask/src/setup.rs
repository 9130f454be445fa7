//! What this project needs from the system: found where it is there, installed where it is not.

use crate::apt;
use crate::drivers::{LeftOut, Matrix};
use crate::nvrtc::Nvrtc;
use crate::probe::Probe;
use crate::process;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::process::Command;

/// Names, separated by commas, of what must not be left out: drivers, and [`NVRTC`], [`VALIDATION`], [`CPP`].
const REQUIRE: &str = "ONEBUF_REQUIRE_DRIVERS";

pub(crate) const NVRTC: &str = "nvrtc";
pub(crate) const VALIDATION: &str = "validation";
const CPP: &str = "g++";

/// Something that the system may lack, and the packages that bring it.
struct Need {
    name: &'static str,
    what: &'static str,
    /// On Debian and Ubuntu, where this program installs it.
    debian: &'static str,
    fedora: &'static str,
    arch: &'static str,
    is_met: fn(&Probe) -> bool,
}

/// Without these nothing runs.
const TO_RUN: [Need; 2] = [
    Need {
        name: "loader",
        what: "the Vulkan loader",
        debian: "libvulkan1",
        fedora: "vulkan-loader",
        arch: "vulkan-icd-loader",
        is_met: |probe| probe.loader,
    },
    Need {
        name: "driver",
        what: "a Vulkan driver",
        debian: "mesa-vulkan-drivers",
        fedora: "mesa-vulkan-drivers",
        arch: "vulkan-swrast",
        is_met: |probe| !probe.devices.is_empty(),
    },
];

/// Without these some tests are left out.
const TO_TEST: [Need; 3] = [
    Need {
        name: VALIDATION,
        what: "the Khronos validation layer",
        debian: "vulkan-validationlayers",
        fedora: "vulkan-validation-layers",
        arch: "vulkan-validation-layers",
        is_met: Probe::has_validation,
    },
    Need {
        name: CPP,
        what: "a C++ compiler, for kernels run under sanitizers",
        debian: "g++",
        fedora: "gcc-c++ libasan libubsan",
        arch: "gcc",
        is_met: |_| process::succeeds(Command::new("g++").arg("--version")),
    },
    Need {
        name: NVRTC,
        what: "Python's venv, which NVRTC is installed with",
        debian: "python3-venv",
        fedora: "python3",
        arch: "python",
        is_met: |_| process::succeeds(Command::new("python3").args(["-c", "import ensurepip, venv"])),
    },
];

/// `cargo xtask setup`.
pub(crate) fn chore(all: bool) -> Result<()> {
    if all {
        let workspace = Workspace::load()?;
        for_tests(&workspace, &[])?;
    } else {
        to_run()?;
    }
    Ok(())
}

/// Sees to it that a Vulkan device can be opened, and says which there are.
pub(crate) fn to_run() -> Result<()> {
    let probe = ask()?;
    let missing = unmet(&TO_RUN, &probe);
    if missing.is_empty() {
        return show(&probe);
    }
    if !apt::is_here() {
        bail!(advice(&missing));
    }
    install(&missing)?;
    let probe = ask()?;
    match unmet(&TO_RUN, &probe).first() {
        Some(need) => bail!(
            "{} is still missing after its package was installed{}",
            need.what,
            probe.problem.map(|problem| format!(": {problem}")).unwrap_or_default()
        ),
        None => show(&probe),
    }
}

/// What tests run with.
pub(crate) struct TestSetup {
    pub(crate) matrix: Matrix,
    pub(crate) nvrtc: Option<Nvrtc>,
    pub(crate) has_validation: bool,
    /// Everything that could not be had, drivers included. None of it is required.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Brings what tests use; `only` names the drivers wanted, all where it is empty.
pub(crate) fn for_tests(workspace: &Workspace, only: &[String]) -> Result<TestSetup> {
    let mut left_out = Vec::new();
    if apt::is_here() {
        // One call of apt for all that is missing: on a new machine that halves the time.
        let missing = unmet(TO_RUN.iter().chain(&TO_TEST), &ask()?);
        if !missing.is_empty() {
            install(&missing)?;
        }
    }
    to_run()?;
    let probe = ask()?;
    for need in unmet(&TO_TEST, &probe) {
        left_out.push(LeftOut { name: need.name, why: advice(&[need]) });
    }
    let nvrtc = if left_out.iter().any(|one| one.name == NVRTC) {
        None
    } else {
        Nvrtc::collect(&workspace.target.join("nvrtc"))
            .map_err(|error| left_out.push(LeftOut { name: NVRTC, why: format!("{error:#}") }))
            .ok()
    };
    let mut matrix = Matrix::collect(&workspace.target.join("drivers"), only)?;
    left_out.append(&mut matrix.left_out);
    for driver in &matrix.drivers {
        for device in &driver.devices {
            println!(
                "driver {}: {} ({}), Vulkan {}",
                driver.name, device.name, device.driver, device.version
            );
        }
    }
    for one in &left_out {
        println!("left out: {}: {}", one.name, one.why);
    }
    check_required(&left_out, &std::env::var(REQUIRE).unwrap_or_default())?;
    Ok(TestSetup { matrix, nvrtc, has_validation: probe.has_validation(), left_out })
}

/// The drivers as they are now. One that dies or hangs is told, and is as good as none.
fn ask() -> Result<Probe> {
    Probe::here().map_err(|error| {
        error.context(
            "a Vulkan driver of this system is broken; name a good one's ICD file in VK_DRIVER_FILES",
        )
    })
}

fn unmet<'a>(needs: impl IntoIterator<Item = &'a Need>, probe: &Probe) -> Vec<&'a Need> {
    needs.into_iter().filter(|need| !(need.is_met)(probe)).collect()
}

fn install(missing: &[&Need]) -> Result<()> {
    for need in missing {
        println!("missing: {}; installing {}", need.what, need.debian);
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.debian).collect();
    apt::install(&packages)
}

/// What a person installs by hand where there is no apt.
fn advice(missing: &[&Need]) -> String {
    let list = |package: fn(&Need) -> &'static str| {
        missing.iter().map(|need| package(need)).collect::<Vec<_>>().join(" ")
    };
    let what = missing.iter().map(|need| need.what).collect::<Vec<_>>().join(" and ");
    format!(
        "this machine lacks {what}, and without apt it is installed by hand. The packages are: Debian and Ubuntu: {}; Fedora: {}; Arch: {}",
        list(|need| need.debian),
        list(|need| need.fedora),
        list(|need| need.arch)
    )
}

fn show(probe: &Probe) -> Result<()> {
    for device in &probe.devices {
        println!("found: {} ({}), Vulkan {}", device.name, device.driver, device.version);
    }
    Ok(())
}

/// Fails where something in the comma-separated list `required` was left out.
fn check_required(left_out: &[LeftOut], required: &str) -> Result<()> {
    let required = |name: &str| required.split(',').any(|one| one.trim() == name);
    let broken: Vec<&str> = left_out.iter().map(|one| one.name).filter(|name| required(name)).collect();
    if broken.is_empty() {
        return Ok(());
    }
    bail!(
        "{REQUIRE} asks for {}, which this machine could not have: the reasons stand above",
        broken.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_required_may_not_be_left_out() {
        let left_out = [LeftOut { name: "swiftshader", why: "no package".into() }];
        assert!(check_required(&left_out, "").is_ok());
        assert!(check_required(&left_out, "lavapipe, nvrtc").is_ok());
        let error = check_required(&left_out, "lavapipe, swiftshader").unwrap_err().to_string();
        assert!(error.contains("swiftshader") && !error.contains("lavapipe"), "{error}");
    }

    #[test]
    fn a_bare_machine_is_told_every_package() {
        let bare = Probe::default();
        let missing = unmet(&TO_RUN, &bare);
        let text = advice(&missing);
        for word in ["libvulkan1", "mesa-vulkan-drivers", "vulkan-icd-loader", "vulkan-swrast"] {
            assert!(text.contains(word), "{text}");
        }
    }
}
