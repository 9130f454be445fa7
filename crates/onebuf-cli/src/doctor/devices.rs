//! The devices that onebuf finds, listed in a second process: a driver that crashes must not end the doctor.

use std::time::Duration;

use onebuf::{DeviceKind, Registry};
use serde::{Deserialize, Serialize};

use super::sharing::Party;
use super::{Check, Status, nodes};
use crate::child::{self, Ended};

const LIMIT: Duration = Duration::from_secs(60);
const ID: &str = "device";

/// What the second process found.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    devices: Vec<Device>,
    /// The backends that could not start, each with the reason.
    unavailable: Vec<(String, String)>,
    /// The device that is taken when nobody names one, with the reason; or why there is none.
    default: Option<Result<String, String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Device {
    /// Id and name.
    title: String,
    kind: DeviceKind,
    driver: String,
    api: String,
    /// Why it is not taken, or why it cannot be opened.
    refused: Option<String>,
    id: String,
    uuid: Option<String>,
    /// By which ways its memory leaves a process.
    ways: Vec<String>,
    /// It takes the program's own pages.
    imports: bool,
}

/// The devices, or how the attempt to list them ended.
pub(super) struct Listed {
    found: Result<Found, String>,
    /// What the loader said.
    loader: Vec<String>,
}

/// Lists the devices in a second process.
pub(super) fn list() -> Listed {
    match child::run_with(&["__child", "devices"], &[("VK_LOADER_DEBUG", "error,warn")], LIMIT) {
        Ok(ended) => Listed { found: ended.value().ok_or_else(|| ended.why()), loader: complaints(&ended) },
        Err(error) => Listed { found: Err(error.to_string()), loader: Vec::new() },
    }
}

/// What the loader complained of. It says everything several times, for each driver that fits another machine.
fn complaints(ended: &Ended) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in ended.stderr.lines().map(str::trim).filter(|line| line.contains("ERROR")) {
        if !lines.iter().any(|known| known == line) {
            lines.push(line.to_owned());
        }
    }
    lines.truncate(8);
    lines
}

/// In the second process: lists and opens the devices, and reports.
pub(crate) fn here() -> crate::error::Result<()> {
    let registry = Registry::system();
    let listing = registry.adapters();
    let devices = listing.adapters.iter().map(|adapter| {
        let info = &adapter.info;
        let opened = match &adapter.rejected {
            Some(reason) => Err(reason.clone()),
            None => registry.open(&info.id.to_string()).map_err(|error| error.to_string()),
        };
        let mut ways: Vec<String> = Vec::new();
        for kind in opened.iter().flat_map(|device| device.profile().memory) {
            ways.extend(kind.export.iter().map(|way| way.name().to_owned()));
        }
        ways.sort();
        ways.dedup();
        Device {
            title: format!("{}: {}", info.id, info.name),
            kind: info.kind,
            driver: info.driver.clone(),
            api: info.api.clone(),
            refused: opened.err(),
            id: info.id.to_string(),
            uuid: info.uuid.map(|uuid| uuid.to_string()),
            ways,
            imports: info.limits.host_import_alignment_bytes > 0,
        }
    });
    let default = registry.default_choice();
    let default = default.map(|choice| format!("{}: {}", choice.id, choice.why)).map_err(|e| e.to_string());
    child::report(&Found {
        devices: devices.collect(),
        unavailable: listing
            .unavailable
            .iter()
            .map(|(backend, error)| ((*backend).to_owned(), error.to_string()))
            .collect(),
        default: Some(default),
    })
}

impl Listed {
    /// Some device can run kernels.
    pub(super) fn usable(&self) -> bool {
        self.found.as_ref().is_ok_and(|found| found.devices.iter().any(|device| device.refused.is_none()))
    }

    /// The usable devices, as those see them who share their memory.
    pub(super) fn parties(&self) -> Vec<Party> {
        let devices = self.found.iter().flat_map(|found| &found.devices);
        let usable = devices.filter(|device| device.refused.is_none());
        let party = |device: &Device| Party {
            id: device.id.clone(),
            kind: device.kind,
            driver: device.driver.clone(),
            uuid: device.uuid.clone(),
            ways: device.ways.clone(),
            imports: device.imports,
        };
        usable.map(party).collect()
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let found = match &self.found {
            Ok(found) => found,
            Err(why) => {
                let check = Check::fail(ID, format!("a driver ended the process that lists devices: {why}"));
                return vec![
                    self.loader
                        .iter()
                        .fold(check, |check, line| check.because(line.as_str()))
                        .remedy("name one driver at a time in VK_DRIVER_FILES to find which; then replace or remove it"),
                ];
            }
        };
        let bad = if self.usable() { Status::Warn } else { Status::Fail };
        let mut checks: Vec<Check> = found.devices.iter().map(|device| device_check(device, bad)).collect();
        // Without NVIDIA's hardware CUDA is missed by nobody.
        let missed = |backend: &str| backend != "cuda" || nodes::has_nvidia();
        let mut unavailable = found.unavailable.iter().filter(|(backend, _)| missed(backend)).peekable();
        if found.devices.is_empty() && unavailable.peek().is_none() {
            let check = Check::fail(ID, "the drivers that loaded show no device")
                .remedy("look at device-nodes below; for a driver that needs no GPU: apt-get install mesa-vulkan-drivers");
            checks.push(self.loader.iter().fold(check, |check, line| check.because(line.as_str())));
        }
        for (_, why) in unavailable {
            let check = Check::new(ID, bad, why.as_str());
            checks.push(self.loader.iter().fold(check, |check, line| check.because(line.as_str())));
        }
        match &found.default {
            Some(Err(why)) if self.usable() => checks.push(
                Check::warn(ID, "ONEBUF_DEVICE names no usable device")
                    .because(why.as_str())
                    .remedy("correct ONEBUF_DEVICE, or unset it"),
            ),
            Some(Ok(why)) => {
                let usable = found.devices.iter().filter(|device| device.refused.is_none());
                if usable.clone().all(|device| device.kind == DeviceKind::Software) {
                    checks.push(
                        Check::warn(ID, "there is no GPU: kernels run on the CPU")
                            .because(format!("default {why}"))
                            .remedy(
                                "if the machine has a GPU, install its driver, and see device-nodes below",
                            ),
                    );
                } else {
                    checks.push(Check::ok(ID, format!("default {why}")));
                }
            }
            _ => {}
        }
        checks
    }
}

fn device_check(device: &Device, bad: Status) -> Check {
    let Device { title, kind, driver, api, refused, .. } = device;
    let about = format!("{driver}, {api}");
    match refused {
        None => Check::ok(ID, format!("{title} ({kind})")).because(about),
        Some(why) => {
            let check = Check::new(ID, bad, format!("{title} ({kind}) cannot be used: {why}")).because(about);
            // What CUDA refuses says itself what would help.
            match api.starts_with("CUDA") {
                true => check,
                false => check.remedy(
                    "install a newer driver for it; onebuf needs Vulkan 1.2 with timeline semaphores",
                ),
            }
        }
    }
}
