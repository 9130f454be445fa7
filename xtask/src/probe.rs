//! Which Vulkan devices are there? Asked in a child process, since a driver that is broken may take its process down.

use crate::process;
use anyhow::{Context, Result, bail};
use ash::vk;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The Khronos validation layer's name.
pub(crate) const VALIDATION: &str = "VK_LAYER_KHRONOS_validation";

/// How long a driver may take to list its devices.
const LIMIT: Duration = Duration::from_secs(60);

/// What the Vulkan loader found.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// Whether the loader, `libvulkan.so.1`, can be opened.
    pub(crate) loader: bool,
    /// Names of the layers that can be asked for.
    pub(crate) layers: Vec<String>,
    pub(crate) devices: Vec<Device>,
    /// Why the devices could not be listed, where they could not.
    pub(crate) problem: Option<String>,
}

/// A Vulkan device, as its driver names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// The driver's name and version in its own words, such as `llvmpipe, Mesa 22.3.6 (LLVM 15.0.6)`.
    pub(crate) driver: String,
    /// The Vulkan version, such as `1.3.230`.
    pub(crate) version: String,
}

impl Probe {
    /// Asks with this process's environment, changed by `environment`.
    pub(crate) fn ask<K: AsRef<std::ffi::OsStr>, V: AsRef<std::ffi::OsStr>>(
        environment: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self> {
        let this = std::env::current_exe().context("this program has no path")?;
        let mut command = Command::new(this);
        command.arg("probe").envs(environment);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("could not start `{}`", process::line(&command)))?;
        // The answer is far smaller than a pipe's buffer, so the child never waits for a reader.
        let start = Instant::now();
        while child.try_wait()?.is_none() {
            if start.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                bail!("the Vulkan driver did not list its devices within {} s", LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("listing the Vulkan devices ended with {}: a driver is broken", output.status);
        }
        serde_json::from_slice(&output.stdout).context("the probe's answer is no JSON")
    }

    /// Asks with this process's environment as it is.
    pub(crate) fn here() -> Result<Self> {
        Self::ask::<&str, &str>([])
    }

    /// Whether the Khronos validation layer is installed.
    pub(crate) fn has_validation(&self) -> bool {
        self.layers.iter().any(|layer| layer == VALIDATION)
    }
}

/// Prints the answer as JSON, for [`Probe::ask`] to read.
pub(crate) fn print_here() -> Result<()> {
    println!("{}", serde_json::to_string(&probe())?);
    Ok(())
}

fn probe() -> Probe {
    // SAFETY: opening the loader runs its initialisers, which do nothing but set up its own state.
    let entry = match unsafe { ash::Entry::load() } {
        Ok(entry) => entry,
        Err(error) => return Probe { problem: Some(error.to_string()), ..Probe::default() },
    };
    // SAFETY: the call needs nothing but a loaded loader.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    let layers = layers.iter().map(|layer| text(layer.layer_name_as_c_str())).collect();
    let (devices, problem) = match list_devices(&entry) {
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Probe { loader: true, layers, devices, problem }
}

fn list_devices(entry: &ash::Entry) -> Result<Vec<Device>, vk::Result> {
    let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
    let create = vk::InstanceCreateInfo::default().application_info(&application);
    // SAFETY: `create` and what it points to live until the call returns; the instance is destroyed below.
    let instance = unsafe { entry.create_instance(&create, None) }?;
    // SAFETY: the instance is alive.
    let devices = unsafe { instance.enumerate_physical_devices() };
    let devices = devices.map(|devices| devices.iter().map(|&device| describe(&instance, device)).collect());
    // SAFETY: nothing made from the instance is left; physical devices end with it.
    unsafe { instance.destroy_instance(None) };
    devices
}

fn describe(instance: &ash::Instance, device: vk::PhysicalDevice) -> Device {
    // SAFETY: the device was listed by this instance, which is alive.
    let plain = unsafe { instance.get_physical_device_properties(device) };
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    if plain.api_version >= vk::API_VERSION_1_2 {
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
        // SAFETY: as above; a device of version 1.2 knows both structures.
        unsafe { instance.get_physical_device_properties2(device, &mut properties) };
    }
    let words = [text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str())];
    let version = plain.api_version;
    Device {
        name: text(plain.device_name_as_c_str()),
        driver: words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", "),
        version: format!(
            "{}.{}.{}",
            vk::api_version_major(version),
            vk::api_version_minor(version),
            vk::api_version_patch(version)
        ),
    }
}

fn text<E>(name: Result<&CStr, E>) -> String {
    name.map(|name| name.to_string_lossy().trim().to_string()).unwrap_or_default()
}
