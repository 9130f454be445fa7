//! The loader, the drivers that it would load, and the validation layer.

use std::path::Path;

use super::{Check, Status, library};
use crate::system::{ADDING, Environment, FILTERS, Manifest, REPLACING, driver_places, folders, manifests};

const INSTALL_LOADER: &str = "Debian, Ubuntu: apt-get install libvulkan1; Fedora: dnf install vulkan-loader; Arch: pacman -S vulkan-icd-loader";
const INSTALL_DRIVER: &str = "\
AMD, Intel, or a CPU alone: apt-get install mesa-vulkan-drivers (Fedora: dnf install mesa-vulkan-drivers)
NVIDIA: the driver's own package; in a container NVIDIA_DRIVER_CAPABILITIES must hold `graphics`";

/// The lowest version of Vulkan that onebuf works with.
const NEEDED: (u32, u32) = (1, 2);

/// Whether the Vulkan loader is there, and which.
pub(super) fn loader() -> Check {
    const ID: &str = "vulkan-loader";
    // The names that programs look for, the newest habit first.
    let names = ["libvulkan.so.1", "libvulkan.so"];
    let mut refused = Vec::new();
    for name in names {
        match library::open(name, &["vkEnumerateInstanceVersion"], true) {
            Ok(opened) => {
                let path = opened.path.unwrap_or_else(|| name.to_owned());
                let (major, minor, patch) = split(opened.version.unwrap_or(1 << 22));
                let version = format!("Vulkan {major}.{minor}.{patch}");
                if (major, minor) < NEEDED {
                    return Check::fail(ID, format!("the loader offers {version}; onebuf needs 1.2"))
                        .because(path)
                        .remedy(INSTALL_LOADER);
                }
                return Check::ok(ID, version).because(path);
            }
            Err(why) => refused.push(why),
        }
    }
    let check = Check::fail(ID, "the Vulkan loader cannot be opened").remedy(INSTALL_LOADER);
    refused.into_iter().fold(check, Check::because)
}

/// `VK_MAKE_API_VERSION`, taken apart.
fn split(version: u32) -> (u32, u32, u32) {
    (version >> 22 & 0x7f, version >> 12 & 0x3ff, version & 0xfff)
}

/// The variables that decide which drivers are loaded.
pub(super) fn variables(environment: Environment<'_>) -> Vec<Check> {
    const ID: &str = "vulkan-variables";
    let mut checks = Vec::new();
    let set = |name: &'static str| environment(name).filter(|value| !value.is_empty());
    let shown = |name| set(name).map(|value| format!("{name}={}", value.to_string_lossy()));
    if let [Some(new), Some(old)] = REPLACING.map(set)
        && new != old
    {
        checks.push(
            Check::warn(
                ID,
                "VK_DRIVER_FILES and VK_ICD_FILENAMES differ; a loader reads the first that it knows",
            )
            .because(format!("VK_DRIVER_FILES={}", new.to_string_lossy()))
            .because(format!("VK_ICD_FILENAMES={}", old.to_string_lossy()))
            .remedy("give both the same value, or unset one"),
        );
    }
    for filter in FILTERS {
        if let Some(shown) = shown(filter) {
            checks.push(
                Check::warn(ID, "drivers are left out by a variable")
                    .because(shown)
                    .remedy(format!("unset {filter}, unless it is meant")),
            );
        }
    }
    if checks.is_empty()
        && let Some(shown) = REPLACING.into_iter().chain([ADDING]).find_map(shown)
    {
        checks.push(Check::ok(ID, "a variable chooses the drivers").because(shown));
    }
    checks
}

/// Each driver that the loader would load. A broken one among working ones is no failure.
pub(super) fn drivers(environment: Environment<'_>, can_run: bool) -> Vec<Check> {
    const ID: &str = "vulkan-driver";
    let bad = if can_run { Status::Warn } else { Status::Fail };
    let places = driver_places(environment);
    let mut checks = Vec::new();
    for place in &places {
        if let Some(variable) = place.named_by
            && !place.path.exists()
        {
            // Named by hand, and not there: this is what the variable's user wants to know first.
            checks.push(
                Check::new(ID, bad, format!("{variable} names a file that is not there"))
                    .because(place.path.display().to_string())
                    .remedy(format!("correct {variable}, or unset it")),
            );
            continue;
        }
        if place.path.exists() {
            checks.extend(manifests(&place.path).iter().map(|path| driver(ID, bad, path, place.named_by)));
        }
    }
    if checks.is_empty() {
        let check = Check::new(ID, bad, "no Vulkan driver is installed").remedy(INSTALL_DRIVER);
        checks.push(
            places
                .iter()
                .fold(check, |check, place| check.because(format!("nothing in {}", place.path.display()))),
        );
    }
    checks
}

/// What every driver has, one of them.
const DRIVER_FUNCTIONS: [&str; 2] = ["vk_icdGetInstanceProcAddr", "vk_icdNegotiateLoaderICDInterfaceVersion"];

fn driver(id: &'static str, bad: Status, path: &Path, named_by: Option<&str>) -> Check {
    let shown = path.display().to_string();
    let name = path.file_name().map_or_else(|| shown.clone(), |name| name.to_string_lossy().into_owned());
    let named = named_by.map_or_else(String::new, |variable| format!(" (by {variable})"));
    let manifest = match Manifest::read(path) {
        Ok(manifest) => manifest,
        Err(why) => {
            return Check::new(id, bad, format!("{name}: its manifest cannot be used: {why}"))
                .because(shown + &named)
                .remedy("install the driver's package again, or delete the file");
        }
    };
    let library = manifest.library.display().to_string();
    let about = format!("{shown}{named}: {library}, Vulkan {}", manifest.api_version);
    match library::open(&library, &DRIVER_FUNCTIONS, false) {
        Ok(opened) if opened.functions.is_empty() => {
            Check::new(id, bad, format!("{name}: its library is no Vulkan driver"))
                .because(about)
                .because(format!("it has neither {}", DRIVER_FUNCTIONS.join(" nor ")))
                .remedy("install the driver's package again, or delete the manifest")
        }
        // Which version its devices have is theirs to say: lavapipe's manifest says 1.1, and its device 1.3.
        Ok(_) => Check::ok(id, format!("{name}: its library opens")).because(about),
        Err(why) => Check::new(id, bad, format!("{name}: its library cannot be opened"))
            .because(about)
            .because(why)
            .remedy("install the library that is named, or the driver's package again"),
    }
}

/// Whether the Khronos validation layer is there.
pub(super) fn validation_layer(environment: Environment<'_>) -> Check {
    const ID: &str = "validation-layer";
    const LAYER: &str = "VK_LAYER_KHRONOS_validation";
    let asked = environment("ONEBUF_VALIDATION").is_some_and(|value| !value.is_empty() && value != "0");
    let listed = environment("VK_LAYER_PATH")
        .into_iter()
        .flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
    let places = listed.chain(folders("explicit_layer.d", environment));
    let mut files = places.filter(|place| place.exists()).flat_map(|place| manifests(&place));
    let found = files.find(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(LAYER)));
    match (found, asked) {
        (Some(file), _) => Check::ok(ID, "installed").because(file.display().to_string()),
        (None, false) => Check::ok(ID, "not installed; only developers need it"),
        (None, true) => Check::fail(ID, "ONEBUF_VALIDATION asks for it, and it is not installed")
            .remedy("apt-get install vulkan-validationlayers, or unset ONEBUF_VALIDATION"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_taken_apart() {
        assert_eq!(split(1 << 22 | 3 << 12 | 239), (1, 3, 239));
    }

    #[test]
    fn variables_that_disagree_are_named() {
        let environment = |name: &str| match name {
            "VK_DRIVER_FILES" => Some("/a.json".into()),
            "VK_ICD_FILENAMES" => Some("/b.json".into()),
            "VK_LOADER_DRIVERS_DISABLE" => Some("*lvp*".into()),
            _ => None,
        };
        let checks = variables(&environment);
        assert_eq!(checks.len(), 2);
        assert!(checks[0].evidence.iter().any(|e| e == "VK_ICD_FILENAMES=/b.json"));
        assert!(checks[1].remedy.as_deref().is_some_and(|r| r.contains("VK_LOADER_DRIVERS_DISABLE")));
        assert!(variables(&|_| None).is_empty());
    }
}
