//! The check of a launch's arguments against a kernel's interface, before any driver sees them.

use crate::device::Limits;
use crate::error::{BindingRef, Error, Result};
use crate::kernel::{Binding, BindingKind, KernelInterface, Scalar};

/// A part of a buffer, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferArg {
    /// Tells one memory object from another.
    pub memory: usize,
    /// Where the part begins, in bytes from the start of the buffer.
    pub offset_bytes: u64,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The scalar that the buffer's elements are made of, where the caller's type has one.
    pub scalar: Option<Scalar>,
    /// Whether the memory may be written at all.
    pub writable: bool,
}

/// Checks buffers, in the order of [`KernelInterface::bindings`], and the immediate data.
///
/// # Errors
/// [`Error::BindingMismatch`], which names the binding and what it wants; [`Error::LimitExceeded`] where the device
/// allows less.
pub fn check(
    interface: &KernelInterface,
    limits: &Limits,
    buffers: &[BufferArg],
    immediates: &[u8],
) -> Result<()> {
    let wanted = interface.bindings.len();
    if buffers.len() != wanted {
        let names: Vec<&str> = interface.bindings.iter().map(|b| b.name.as_str()).collect();
        let problem = format!("{} buffer(s) given, {wanted} wanted: {}", buffers.len(), names.join(", "));
        return Err(mismatch(interface, BindingRef::List, problem));
    }
    if immediates.len() != interface.immediate_bytes as usize {
        let problem = match interface.immediate_bytes {
            0 => format!("{} byte(s) of immediate data given, the kernel has none", immediates.len()),
            bytes => format!("{} byte(s) given, {bytes} wanted", immediates.len()),
        };
        return Err(mismatch(interface, BindingRef::Immediate, problem));
    }
    for (binding, buffer) in interface.bindings.iter().zip(buffers) {
        check_one(interface, limits, binding, buffer)?;
    }
    check_aliases(interface, buffers)
}

/// The highest `@binding`, as in WebGPU. Drivers keep tables by it, and some die of a number like 4294967295.
const MAX_BINDING_NUMBER: u64 = 999;

/// Checks what a kernel needs against what a device has: once, when the kernel is made.
///
/// # Errors
/// [`Error::LimitExceeded`] or [`Error::Unsupported`], naming the quantity or the feature.
pub fn check_interface(
    interface: &KernelInterface,
    limits: &Limits,
    features: crate::kernel::Features,
) -> Result<()> {
    let missing = interface.features.missing_from(features);
    if !missing.is_empty() {
        return Err(Error::unsupported(
            format!("kernel `{}`", interface.entry),
            format!("it uses {}, which the device does not have", missing.join(", ")),
        ));
    }
    let kernel = &interface.entry;
    for axis in 0..3 {
        let what = format!("kernel `{kernel}`: workgroup size along {}", ["x", "y", "z"][axis]);
        let (size, most) = (interface.workgroup_size[axis], limits.max_workgroup_size[axis]);
        Error::check_limit(&what, u64::from(size), u64::from(most))?;
    }
    for binding in &interface.bindings {
        let what = format!("kernel `{kernel}`: number of {}", reference(binding));
        Error::check_limit(&what, u64::from(binding.slot.binding), MAX_BINDING_NUMBER)?;
    }
    let count = |kind: BindingKind| interface.bindings.iter().filter(|b| b.kind == kind).count() as u64;
    let groups = interface.bindings.iter().map(|b| u64::from(b.slot.group) + 1).max().unwrap_or(0);
    let checks: [(&str, u64, u64); 6] = [
        ("invocations in a workgroup", interface.invocations(), u64::from(limits.max_workgroup_invocations)),
        ("bytes of workgroup memory", interface.workgroup_bytes, limits.max_workgroup_bytes),
        (
            "bytes of immediate data",
            u64::from(interface.immediate_bytes),
            u64::from(limits.max_immediate_bytes),
        ),
        ("bind groups", groups, u64::from(limits.max_bind_groups)),
        ("storage bindings", count(BindingKind::Storage), u64::from(limits.max_storage_bindings)),
        ("uniform bindings", count(BindingKind::Uniform), u64::from(limits.max_uniform_bindings)),
    ];
    for (what, required, available) in checks {
        Error::check_limit(&format!("kernel `{kernel}`: {what}"), required, available)?;
    }
    Ok(())
}

fn check_one(
    interface: &KernelInterface,
    limits: &Limits,
    binding: &Binding,
    buffer: &BufferArg,
) -> Result<()> {
    let fail = |problem: String| Err(mismatch(interface, reference(binding), problem));
    let size = buffer.size_bytes;
    let least = binding.min_bytes.max(1);
    if size < least {
        return fail(format!("{size} byte(s) given, `{}` takes at least {least}", binding.ty));
    }
    if let (Some(wants), Some(has)) = (binding.scalar, buffer.scalar) {
        // Bytes are untyped data: an image, a file. Everything else must be what the kernel takes it for.
        if wants != has && has != Scalar::U8 {
            return fail(format!("the buffer holds {has}, `{}` wants {wants}", binding.ty));
        }
    }
    if binding.access.writes() && !buffer.writable {
        return fail("the kernel writes it, and the buffer lies on pages that may only be read".into());
    }
    let (alignment, most, what) = match binding.kind {
        BindingKind::Storage => (
            limits.storage_offset_alignment_bytes,
            limits.max_storage_binding_bytes,
            "size of a storage binding in bytes",
        ),
        BindingKind::Uniform => (
            limits.uniform_offset_alignment_bytes,
            limits.max_uniform_binding_bytes,
            "size of a uniform binding in bytes",
        ),
    };
    // A device may ask for less than an element does.
    let alignment = alignment.max(u64::from(binding.scalar.map_or(4, Scalar::size_bytes)));
    if !buffer.offset_bytes.is_multiple_of(alignment) {
        let offset = buffer.offset_bytes;
        return fail(format!("it starts at byte {offset}; the device wants a multiple of {alignment}"));
    }
    if size > most {
        let what = format!("kernel `{}`, {}: {what} (bind a slice)", interface.entry, reference(binding));
        return Err(Error::LimitExceeded { what, required: size, available: most });
    }
    Ok(())
}

/// Two bindings may overlap only where both are read.
fn check_aliases(interface: &KernelInterface, buffers: &[BufferArg]) -> Result<()> {
    for (i, a) in buffers.iter().enumerate() {
        for (j, b) in buffers.iter().enumerate().skip(i + 1) {
            let (first, second) = (&interface.bindings[i], &interface.bindings[j]);
            if overlap(a, b) && (first.access.writes() || second.access.writes()) {
                let problem = format!(
                    "it overlaps {} ({}) and is itself {}; a buffer that is written may be bound once",
                    reference(second),
                    second.access,
                    first.access
                );
                return Err(mismatch(interface, reference(first), problem));
            }
        }
    }
    Ok(())
}

/// Whether two parts have a byte in common. Ends are never added up: offset and size may be anything.
fn overlap(a: &BufferArg, b: &BufferArg) -> bool {
    let (first, second) = if a.offset_bytes <= b.offset_bytes { (a, b) } else { (b, a) };
    a.memory == b.memory
        && second.offset_bytes - first.offset_bytes < first.size_bytes
        && second.size_bytes > 0
}

fn reference(binding: &Binding) -> BindingRef {
    BindingRef::Slot { name: binding.name.clone(), slot: binding.slot }
}

fn mismatch(interface: &KernelInterface, binding: BindingRef, problem: String) -> Error {
    Error::BindingMismatch { kernel: interface.entry.clone(), binding, problem }
}
