//! Which devices there are, and which one is taken when nobody names one.

use std::sync::{Arc, OnceLock};

use onebuf_core::backend::Backend;
use onebuf_core::{Adapter, DeviceId, DeviceKind, DeviceUuid, Error, Result};

use crate::device::Device;

/// The environment variable that names the default device: an id (`vulkan:0`), a UUID, a kind (`integrated`,
/// `software`) or a backend (`vulkan`).
pub const DEVICE_VARIABLE: &str = "ONEBUF_DEVICE";

/// The backends of a program, and the devices that they find.
#[derive(Clone)]
pub struct Registry {
    backends: Arc<[Arc<dyn Backend>]>,
}

/// Every device of every backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// The devices, in the order of backends and drivers, those that cannot be used with the reason.
    pub adapters: Vec<Adapter>,
    /// The backends that could not start, each with its [`Error::BackendUnavailable`].
    pub unavailable: Vec<(&'static str, Error)>,
}

/// The device that is taken when nobody names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultChoice {
    /// The device.
    pub id: DeviceId,
    /// Why this one.
    pub why: String,
}

impl Registry {
    /// The backends that are compiled in.
    pub fn system() -> &'static Registry {
        static SYSTEM: OnceLock<Registry> = OnceLock::new();
        SYSTEM.get_or_init(|| Registry::with(compiled_in()))
    }

    /// These backends, the most wanted first.
    pub fn with(backends: Vec<Arc<dyn Backend>>) -> Registry {
        Registry { backends: backends.into() }
    }

    /// Every device of every backend.
    pub fn adapters(&self) -> Listing {
        let mut listing = Listing::default();
        for backend in self.backends.iter() {
            match backend.adapters() {
                Ok(adapters) => listing.adapters.extend(adapters),
                Err(error) => listing.unavailable.push((backend.name(), error)),
            }
        }
        listing
    }

    /// The device that [`Registry::open_default`] takes: the one that `ONEBUF_DEVICE` names; else a discrete GPU, an
    /// integrated one, a virtual one, an unknown one, and only where there is nothing else a software device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with every device and backend that cannot be used, and why.
    pub fn default_choice(&self) -> Result<DefaultChoice> {
        // What is no text names no device, and is told so; the default never takes the place of one that was named.
        let wanted = std::env::var_os(DEVICE_VARIABLE).map(|name| name.to_string_lossy().into_owned());
        let wanted = wanted.filter(|name| !name.trim().is_empty());
        choose(&self.adapters(), wanted.as_deref())
    }

    /// Opens the device of [`Registry::default_choice`].
    ///
    /// # Errors
    /// Those of [`Registry::default_choice`], and the driver's.
    pub fn open_default(&self) -> Result<Device> {
        let choice = self.default_choice()?;
        self.open_id(&choice.id, choice.why)
    }

    /// Opens a device by id (`vulkan:0`), UUID, kind (`discrete`, `software`) or backend (`vulkan`).
    ///
    /// # Errors
    /// [`Error::NoDevice`] where no usable device has the name; the message lists those there are.
    pub fn open(&self, name: &str) -> Result<Device> {
        let choice = named(&self.adapters(), name, "asked for by")?;
        self.open_id(&choice.id, choice.why)
    }

    fn open_id(&self, id: &DeviceId, why: String) -> Result<Device> {
        let backend = self.backends.iter().find(|backend| backend.name() == id.backend);
        let Some(backend) = backend else {
            return Err(Error::NoDevice(format!("there is no backend `{}`", id.backend)));
        };
        Ok(Device::from_backend(backend.open(id.ordinal)?, why))
    }
}

/// CUDA comes before Vulkan, which serves the same GPUs.
fn compiled_in() -> Vec<Arc<dyn Backend>> {
    vec![
        #[cfg(feature = "cuda")]
        absent::or("cuda", onebuf_cuda::Cuda::new(onebuf_cuda::CudaOptions::from_env())),
        #[cfg(feature = "vulkan")]
        absent::or("vulkan", onebuf_vulkan::Vulkan::new(onebuf_vulkan::VulkanOptions::from_env())),
    ]
}

#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod absent {
    use std::sync::Arc;

    use onebuf_core::backend::{Backend, Device};
    use onebuf_core::{Adapter, Error, Result};

    /// A backend that cannot start: it answers everything with the reason.
    struct Absent {
        name: &'static str,
        why: Error,
    }

    /// A backend as it started, or the reason in its place.
    pub(super) fn or(name: &'static str, started: Result<impl Backend + 'static>) -> Arc<dyn Backend> {
        match started {
            Ok(backend) => Arc::new(backend),
            Err(why) => Arc::new(Absent { name, why }),
        }
    }

    impl Backend for Absent {
        fn name(&self) -> &'static str {
            self.name
        }

        fn adapters(&self) -> Result<Vec<Adapter>> {
            Err(self.why.clone())
        }

        fn open(&self, _: u32) -> Result<Arc<dyn Device>> {
            Err(self.why.clone())
        }
    }
}

/// The default device of a listing; `wanted` is what `ONEBUF_DEVICE` says.
fn choose(listing: &Listing, wanted: Option<&str>) -> Result<DefaultChoice> {
    if let Some(wanted) = wanted {
        let wanted = wanted.trim();
        return named(listing, wanted, "named by ONEBUF_DEVICE =").map_err(|error| match error {
            Error::NoDevice(why) => Error::NoDevice(format!("{DEVICE_VARIABLE} is `{wanted}`: {why}")),
            other => other,
        });
    }
    let ranked = usable_by_rank(listing);
    let Some(best) = ranked.first() else {
        return Err(Error::NoDevice(format!("no usable device:{}", inventory(listing))));
    };
    let mut why = match best.info.kind {
        DeviceKind::Software => "no GPU was found, so this driver computes on the CPU".to_owned(),
        kind if ranked.len() == 1 => format!("the only usable device ({kind})"),
        kind => format!("{kind}, the first of that kind"),
    };
    let others: Vec<String> = ranked[1..]
        .iter()
        .filter(|other| !same_hardware(best, other))
        .map(|other| format!("{} ({})", other.info.id, other.info.kind))
        .collect();
    if !others.is_empty() {
        why.push_str(&format!("; ahead of {}", others.join(", ")));
    }
    why.push_str(&also_known_as(best, &ranked));
    Ok(DefaultChoice { id: best.info.id.clone(), why })
}

/// The device of a listing that `name` means.
fn named(listing: &Listing, name: &str, by: &str) -> Result<DefaultChoice> {
    let id = name.parse::<DeviceId>().ok();
    let uuid = name.parse::<DeviceUuid>().ok();
    let fits = |adapter: &&Adapter| match (&id, &uuid) {
        (Some(id), _) => adapter.info.id == *id,
        (_, Some(uuid)) => adapter.info.uuid == Some(*uuid),
        _ => adapter.info.kind.name() == name || adapter.info.id.backend == name,
    };
    let ranked = usable_by_rank(listing);
    if let Some(adapter) = ranked.iter().copied().find(|adapter| fits(adapter)) {
        let why = format!("{by} `{name}`{}", also_known_as(adapter, &ranked));
        return Ok(DefaultChoice { id: adapter.info.id.clone(), why });
    }
    let problem = match listing.adapters.iter().find(|adapter| fits(adapter)) {
        Some(adapter) => {
            let reason = adapter.rejected.as_deref().unwrap_or("the driver says no");
            format!("`{name}` ({}) cannot be used: {reason}", adapter.info.name)
        }
        None => format!("no device is `{name}`"),
    };
    Err(Error::NoDevice(format!(
        "{problem}; a device is named by id, UUID, kind or backend:{}",
        inventory(listing)
    )))
}

/// Usable devices, the most wanted kind first; within a kind the order of backends and drivers stays.
fn usable_by_rank(listing: &Listing) -> Vec<&Adapter> {
    let mut usable: Vec<&Adapter> = listing.adapters.iter().filter(|a| a.rejected.is_none()).collect();
    usable.sort_by_key(|adapter| match adapter.info.kind {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Other => 3,
        DeviceKind::Software => 4,
    });
    usable
}

fn same_hardware(a: &Adapter, b: &Adapter) -> bool {
    a.info.uuid.is_some() && a.info.uuid == b.info.uuid
}

/// One piece of hardware may be a device of several backends: its UUID tells.
fn also_known_as(adapter: &Adapter, all: &[&Adapter]) -> String {
    let twins: Vec<String> = all
        .iter()
        .filter(|other| other.info.id != adapter.info.id && same_hardware(adapter, other))
        .map(|other| other.info.id.to_string())
        .collect();
    if twins.is_empty() { String::new() } else { format!("; the same hardware is {}", twins.join(", ")) }
}

/// Everything that was found, a line each.
fn inventory(listing: &Listing) -> String {
    let mut text = String::new();
    for adapter in &listing.adapters {
        let info = &adapter.info;
        text.push_str(&format!("\n  {}: {}, {}", info.id, info.kind, info.name));
        if let Some(uuid) = info.uuid {
            text.push_str(&format!(", {uuid}"));
        }
        if let Some(reason) = &adapter.rejected {
            text.push_str(&format!("; rejected: {reason}"));
        }
    }
    for (_, error) in &listing.unavailable {
        text.push_str(&format!("\n  {error}"));
    }
    if text.is_empty() {
        text.push_str("\n  there is none; `onebuf doctor` says what is missing");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_in_the_environment_is_not_passed_over() {
        let Err(Error::NoDevice(message)) = choose(&Listing::default(), Some(" vulkan:0 ")) else { panic!() };
        assert!(message.starts_with("ONEBUF_DEVICE is `vulkan:0`: no device is `vulkan:0`"), "{message}");
        assert!(matches!(choose(&Listing::default(), None), Err(Error::NoDevice(_))));
    }
}
