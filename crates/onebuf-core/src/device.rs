//! Who a device is and what it allows: identity, kind, limits.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::kernel::Features;

/// The short name of a device: backend and ordinal, `vulkan:0`. It is valid for this process only:
/// ordinals move when the environment or the drivers change. [`DeviceUuid`] names a device for longer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceId {
    /// Name of the backend, `vulkan`.
    pub backend: Cow<'static, str>,
    /// Number of the device within the backend.
    pub ordinal: u32,
}

impl DeviceId {
    /// The device `backend:ordinal`.
    pub fn new(backend: &'static str, ordinal: u32) -> DeviceId {
        DeviceId { backend: Cow::Borrowed(backend), ordinal }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.backend, self.ordinal))
    }
}

impl From<DeviceId> for String {
    fn from(id: DeviceId) -> String {
        id.to_string()
    }
}

/// A text that is no device id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device id; an id is a backend and a number, as in `vulkan:0`")]
pub struct BadDeviceId(pub String);

impl TryFrom<String> for DeviceId {
    type Error = BadDeviceId;

    fn try_from(text: String) -> Result<DeviceId, BadDeviceId> {
        text.parse()
    }
}

impl FromStr for DeviceId {
    type Err = BadDeviceId;

    fn from_str(text: &str) -> Result<DeviceId, BadDeviceId> {
        let bad = || BadDeviceId(text.to_owned());
        let (backend, ordinal) = text.split_once(':').ok_or_else(bad)?;
        let digits = !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit());
        if backend.is_empty() || !backend.bytes().all(|b| b.is_ascii_lowercase()) || !digits {
            return Err(bad());
        }
        let ordinal = ordinal.parse().map_err(|_| bad())?;
        Ok(DeviceId { backend: Cow::Owned(backend.to_owned()), ordinal })
    }
}

/// The sixteen bytes by which CUDA and Vulkan name one piece of hardware alike.
///
/// Software drivers do not give an identity here: lavapipe's is its version text, the same on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<DeviceUuid> for String {
    fn from(uuid: DeviceUuid) -> String {
        uuid.to_string()
    }
}

/// A text that is no UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no UUID; a UUID is 32 hexadecimal digits, with or without dashes")]
pub struct BadUuid(pub String);

impl TryFrom<String> for DeviceUuid {
    type Error = BadUuid;

    fn try_from(text: String) -> Result<DeviceUuid, BadUuid> {
        text.parse()
    }
}

impl FromStr for DeviceUuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<DeviceUuid, BadUuid> {
        let bad = || BadUuid(text.to_owned());
        let digits: Vec<u8> = text.bytes().filter(|&b| b != b'-').collect();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(DeviceUuid(bytes))
    }
}

/// What sort of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that uses the CPU's memory.
    Integrated,
    /// A GPU that a virtual machine shows.
    Virtual,
    /// A driver that computes on the CPU.
    Software,
    /// None of these, or the driver does not say.
    Other,
}

impl DeviceKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Software => "software",
            DeviceKind::Other => "other",
        }
    }

    /// True when CPU and device share one physical memory, so that no bus lies between them.
    pub fn shares_host_memory(self) -> bool {
        matches!(self, DeviceKind::Integrated | DeviceKind::Software)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a device allows. Drivers do not enforce all of these (lavapipe enforces none), so onebuf does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Largest single allocation of device memory, in bytes.
    pub max_allocation_bytes: u64,
    /// Largest range that one storage binding may cover, in bytes.
    pub max_storage_binding_bytes: u64,
    /// Largest range that one uniform binding may cover, in bytes.
    pub max_uniform_binding_bytes: u64,
    /// The offset of a storage binding is a multiple of this many bytes.
    pub storage_offset_alignment_bytes: u64,
    /// The offset of a uniform binding is a multiple of this many bytes.
    pub uniform_offset_alignment_bytes: u64,
    /// Host writes to non-coherent memory are flushed in units of this many bytes.
    pub non_coherent_atom_bytes: u64,
    /// Pointer and size of imported host memory are multiples of this many bytes; 0 where nothing can be imported.
    pub host_import_alignment_bytes: u64,
    /// Workgroups of one dispatch along x, y, z. onebuf splits larger grids.
    pub max_groups: [u32; 3],
    /// Invocations of a workgroup along x, y, z.
    pub max_workgroup_size: [u32; 3],
    /// Invocations of a workgroup in all.
    pub max_workgroup_invocations: u32,
    /// Workgroup memory, in bytes.
    pub max_workgroup_bytes: u64,
    /// Immediate data, in bytes.
    pub max_immediate_bytes: u32,
    /// Bind groups.
    pub max_bind_groups: u32,
    /// Storage bindings that one kernel may use.
    pub max_storage_bindings: u32,
    /// Uniform bindings that one kernel may use.
    pub max_uniform_bindings: u32,
    /// Smallest and largest number of invocations in a subgroup.
    pub subgroup_size: [u32; 2],
}

/// Who a device is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Backend and ordinal.
    pub id: DeviceId,
    /// The name the driver gives.
    pub name: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// The hardware's identity, where the driver has one.
    pub uuid: Option<DeviceUuid>,
    /// Name and version of the driver.
    pub driver: String,
    /// Version of the API the device offers.
    pub api: String,
    /// Memory of the device in bytes: its own, or the part of the CPU's that it may use.
    pub memory_bytes: u64,
    /// What it allows.
    pub limits: Limits,
    /// The optional features of the language it has.
    pub features: Features,
}

/// A device that a backend found, usable or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Who it is.
    pub info: DeviceInfo,
    /// Why onebuf cannot use it, if it cannot.
    pub rejected: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        let id: DeviceId = "vulkan:12".parse().unwrap();
        assert_eq!(id, DeviceId::new("vulkan", 12));
        assert_eq!(id.to_string(), "vulkan:12");
        for bad in [
            "",
            "vulkan",
            "vulkan:",
            ":0",
            "vulkan:-1",
            "vulkan:+1",
            "vulkan:99999999999",
            "Vulkan:0",
            "a:b:0",
        ] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn uuids_round_trip() {
        let text = "6d657361-3232-2e33-2e36-0000000000ff";
        let uuid: DeviceUuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(text.replace('-', "").parse::<DeviceUuid>().unwrap(), uuid);
        for bad in ["", "6d65", "6d657361-3232-2e33-2e36-0000000000fg", "ééééééééééééééééé"]
        {
            assert!(bad.parse::<DeviceUuid>().is_err(), "{bad}");
        }
    }
}
