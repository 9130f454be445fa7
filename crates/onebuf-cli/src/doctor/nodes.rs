//! Device nodes and their permissions, and the graphics hardware on the bus.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::Check;
use crate::system::signs;

const ID: &str = "device-nodes";

/// Checks of what a driver of a GPU must open.
pub(super) fn checks() -> Vec<Check> {
    let nodes = nodes(Path::new("/dev"));
    let hardware = hardware(Path::new("/sys/bus/pci/devices"));
    let mut checks: Vec<Check> = Vec::new();
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    for node in &nodes {
        if let Err(errno) = access(node, Access::READ_OK | Access::WRITE_OK) {
            checks.push(denied(node, &errno.to_string(), &groups));
        }
    }
    let open: Vec<String> = nodes.iter().map(|node| node.display().to_string()).collect();
    if !open.is_empty() && checks.is_empty() {
        checks.push(Check::ok(ID, "all can be opened").because(open.join(" ")));
    }
    let has = |prefix: &str| open.iter().any(|node| node.starts_with(prefix));
    for card in &hardware {
        let reachable = match card.vendor {
            Vendor::Nvidia => has("/dev/nvidia"),
            Vendor::Amd | Vendor::Intel => has("/dev/dri/render"),
            Vendor::Other => true,
        };
        if !reachable {
            let driver = card.driver.as_deref().unwrap_or("none");
            checks.push(
                Check::warn(ID, format!("{} has no device node here", card.vendor.name()))
                    .because(format!("PCI device {}, kernel driver: {driver}", card.address))
                    .remedy(remedy(card.vendor)),
            );
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(
            ID,
            "no GPU is visible: neither a node in /dev nor a display device on the PCI bus",
        ));
    }
    checks
}

fn denied(node: &Path, why: &str, groups: &str) -> Check {
    let check = Check::warn(ID, format!("{} cannot be opened for reading and writing", node.display()));
    let Ok(metadata) = fs::metadata(node) else { return check.because(why) };
    let group = group_name(groups, metadata.gid());
    let mode = metadata.mode() & 0o777;
    check.because(format!("{why}; owner {}, group {group}, mode {mode:o}", metadata.uid())).remedy(format!(
        "sudo usermod -aG {group} $USER, and log in again; in a container: --group-add {group}"
    ))
}

fn group_name(groups: &str, gid: u32) -> String {
    let lines = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?))
    });
    let found = lines.into_iter().find(|(_, number)| number.parse() == Ok(gid));
    found.map_or_else(|| gid.to_string(), |(name, _)| name.to_owned())
}

fn remedy(vendor: Vendor) -> &'static str {
    let contained = !signs().is_empty();
    match (vendor, contained) {
        (Vendor::Nvidia, true) => {
            "give the container the GPU: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
        }
        (Vendor::Nvidia, false) => "install NVIDIA's driver, and load its module: sudo modprobe nvidia",
        (_, true) => "give the container the GPU: docker run --device /dev/dri",
        (_, false) => "install the GPU's firmware and a kernel that knows it; see `dmesg | grep -i drm`",
    }
}

/// The nodes that Vulkan and CUDA drivers open.
fn nodes(dev: &Path) -> Vec<PathBuf> {
    let names = |folder: PathBuf, wanted: fn(&str) -> bool| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.filter(move |entry| entry.file_name().to_str().is_some_and(wanted));
        let devices = named.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_char_device()));
        devices.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut all = names(dev.join("dri"), |name| name.starts_with("renderD"));
    all.extend(names(dev.to_owned(), |name| {
        let numbered = |prefix: &str| {
            name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        numbered("nvidia") || numbered("mali") || matches!(name, "nvidiactl" | "nvidia-uvm" | "kfd" | "dxg")
    }));
    all.sort();
    all
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    Nvidia,
    Amd,
    Intel,
    Other,
}

impl Vendor {
    fn name(self) -> &'static str {
        match self {
            Vendor::Nvidia => "an NVIDIA GPU",
            Vendor::Amd => "an AMD GPU",
            Vendor::Intel => "an Intel GPU",
            Vendor::Other => "a display device",
        }
    }
}

struct Card {
    address: String,
    vendor: Vendor,
    driver: Option<String>,
}

/// Display controllers on the PCI bus.
fn hardware(devices: &Path) -> Vec<Card> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let mut cards: Vec<Card> = entries
        .filter_map(|entry| {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            // Class 03: display controllers; 0x0302 is a GPU without a display.
            if !read("class").trim().starts_with("0x03") {
                return None;
            }
            let vendor = match read("vendor").trim() {
                "0x10de" => Vendor::Nvidia,
                "0x1002" => Vendor::Amd,
                "0x8086" => Vendor::Intel,
                _ => Vendor::Other,
            };
            let driver = fs::read_link(entry.path().join("driver")).ok();
            let driver = driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
            Some(Card { address: entry.file_name().to_string_lossy().into_owned(), vendor, driver })
        })
        .collect();
    cards.sort_by(|a, b| a.address.cmp(&b.address));
    cards
}

/// An NVIDIA GPU is in the machine, whether or not its driver is.
pub(super) fn has_nvidia() -> bool {
    nodes(Path::new("/dev")).iter().any(|node| node.to_string_lossy().contains("nvidia"))
        || hardware(Path::new("/sys/bus/pci/devices")).iter().any(|card| card.vendor == Vendor::Nvidia)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_controllers_are_found_on_the_bus() {
        let bus = tempfile::tempdir().unwrap();
        for (address, class, vendor) in [
            ("0000:00:02.0", "0x030000\n", "0x8086\n"),
            ("0000:01:00.0", "0x030200\n", "0x10de\n"),
            ("0000:02:00.0", "0x020000\n", "0x10de\n"),
        ] {
            let device = bus.path().join(address);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("class"), class).unwrap();
            fs::write(device.join("vendor"), vendor).unwrap();
        }
        std::os::unix::fs::symlink("../drivers/i915", bus.path().join("0000:00:02.0/driver")).unwrap();
        let cards = hardware(bus.path());
        assert_eq!(cards.iter().map(|card| card.vendor).collect::<Vec<_>>(), [Vendor::Intel, Vendor::Nvidia]);
        assert_eq!(cards[0].driver.as_deref(), Some("i915"));
        assert_eq!(cards[1].driver, None);
        assert!(hardware(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_group_has_its_name() {
        let groups = "root:x:0:\nvideo:x:44:me\nrender:x:105:\nbroken\n";
        assert_eq!(group_name(groups, 105), "render");
        assert_eq!(group_name(groups, 7), "7");
    }

    #[test]
    fn a_file_that_is_no_device_is_no_node() {
        let dev = tempfile::tempdir().unwrap();
        fs::write(dev.path().join("nvidia0"), "").unwrap();
        assert!(nodes(dev.path()).is_empty());
    }
}
