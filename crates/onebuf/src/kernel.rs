//! Kernels: WGSL, an entry point, values for its overrides.

use std::fmt;
use std::sync::Arc;

use onebuf_core::args::check_interface;
use onebuf_core::backend::{self, Bounds, KernelRequest, KernelSource};
use onebuf_core::{Error, KernelInterface, Override, Result};

use crate::device::Device;

/// A compiled kernel. Clones are handles to the same one.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) device: Device,
    pub(crate) raw: Arc<dyn backend::Kernel>,
}

impl Kernel {
    /// What it takes: bindings, immediates, workgroup size.
    pub fn interface(&self) -> &KernelInterface {
        self.raw.interface()
    }

    /// Invocations in a workgroup along x, y, z, after overrides.
    pub fn workgroup_size(&self) -> [u32; 3] {
        self.interface().workgroup_size
    }

    /// Workgroups that cover a grid of this many invocations.
    pub fn groups_for(&self, invocations: [u32; 3]) -> [u32; 3] {
        let size = self.workgroup_size();
        std::array::from_fn(|axis| invocations[axis].div_ceil(size[axis].max(1)))
    }

    /// The device that it was compiled for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether a cache on disk spared the driver's compilation; `None` where nobody can tell.
    pub fn was_cached(&self) -> Option<bool> {
        self.raw.was_cached()
    }

    /// The backend's kernel, for interoperation.
    ///
    /// # Safety
    /// The traits of [`onebuf_core::backend`] check nothing and order nothing: what is done through them keeps their
    /// contract, and stays clear of what onebuf does with the same memory.
    pub unsafe fn raw(&self) -> &Arc<dyn backend::Kernel> {
        &self.raw
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("entry", &self.interface().entry).finish_non_exhaustive()
    }
}

/// A kernel to be built. [`Device::kernel`] makes it.
#[must_use = "a builder does nothing until `build`"]
pub struct KernelBuilder<'a> {
    device: &'a Device,
    wgsl: Option<&'a str>,
    /// Sources for one backend each, which it takes before the WGSL.
    native: Vec<KernelSource<'a>>,
    entry: Option<&'a str>,
    overrides: Vec<Override>,
    bounds: Bounds,
}

impl<'a> KernelBuilder<'a> {
    pub(crate) fn wgsl(device: &'a Device, wgsl: &'a str) -> Result<KernelBuilder<'a>> {
        if wgsl.trim().is_empty() {
            let message =
                "the source is empty; a kernel is a WGSL module with an `@compute` entry point".into();
            return Err(Error::InvalidKernel { message, line: None });
        }
        Ok(KernelBuilder::new(device, Some(wgsl), Vec::new()))
    }

    pub(crate) fn spirv_only(
        device: &'a Device,
        words: &'a [u32],
        interface: &'a KernelInterface,
    ) -> Result<KernelBuilder<'a>> {
        check_words(words)?;
        Ok(KernelBuilder::new(device, None, vec![KernelSource::SpirV(words, interface)]))
    }

    pub(crate) fn native_only(device: &'a Device, source: KernelSource<'a>) -> KernelBuilder<'a> {
        KernelBuilder::new(device, None, vec![source])
    }

    fn new(device: &'a Device, wgsl: Option<&'a str>, native: Vec<KernelSource<'a>>) -> KernelBuilder<'a> {
        KernelBuilder { device, wgsl, native, entry: None, overrides: Vec::new(), bounds: Bounds::Checked }
    }

    /// The entry point. It need not be named where there is only one.
    pub fn entry(mut self, name: &'a str) -> Self {
        self.entry = Some(name);
        self
    }

    /// The value of an `override`, by name or by `@id`. The last value for a name counts.
    pub fn set(mut self, name: &str, value: impl OverrideValue) -> Self {
        self.overrides.retain(|known| known.name != name);
        self.overrides.push(Override { name: name.to_owned(), value: value.to_f64() });
        self
    }

    /// Leaves out the checks that keep accesses within what is bound.
    ///
    /// # Safety
    /// No invocation reads or writes outside of the buffers that are bound to it, whatever they hold.
    pub unsafe fn unchecked(mut self) -> Self {
        self.bounds = Bounds::Unchecked;
        self
    }

    /// SPIR-V that a Vulkan device takes in place of the WGSL, with the interface that the WGSL has. Overrides are not
    /// applied to it.
    ///
    /// # Safety
    /// The words are valid SPIR-V for the device, the interface describes the entry point truly, and the kernel stays
    /// inside of what is bound to it.
    pub unsafe fn spirv(mut self, words: &'a [u32], interface: &'a KernelInterface) -> Result<Self> {
        check_words(words)?;
        self.native.push(KernelSource::SpirV(words, interface));
        Ok(self)
    }

    /// CUDA C++ that a CUDA device takes in place of the WGSL, with the interface that the WGSL has;
    /// [`KernelSource::CudaC`] says what its parameters are. Overrides are not applied to it.
    ///
    /// # Safety
    /// The interface describes the function truly, and the kernel stays inside of what is bound to it.
    pub unsafe fn cuda(mut self, source: &'a str, interface: &'a KernelInterface) -> Self {
        self.native.push(KernelSource::CudaC(source, interface));
        self
    }

    /// [`KernelBuilder::cuda`], from PTX.
    ///
    /// # Safety
    /// That of [`KernelBuilder::cuda`].
    pub unsafe fn ptx(mut self, source: &'a str, interface: &'a KernelInterface) -> Self {
        self.native.push(KernelSource::Ptx(source, interface));
        self
    }

    /// Compiles it.
    ///
    /// # Errors
    /// - [`Error::InvalidKernel`] with the line marked, or naming the entry point or override that is wrong.
    /// - [`Error::LimitExceeded`] and [`Error::Unsupported`] where the kernel needs more than the device has.
    pub fn build(self) -> Result<Kernel> {
        let sources: Vec<KernelSource<'_>> =
            self.native.iter().copied().chain(self.wgsl.map(KernelSource::Wgsl)).collect();
        let info = self.device.info();
        for source in &sources {
            if let KernelSource::SpirV(_, interface)
            | KernelSource::CudaC(_, interface)
            | KernelSource::Ptx(_, interface) = source
            {
                check_interface(interface, &info.limits, info.features)?;
            }
        }
        let request = KernelRequest {
            sources: &sources,
            entry: self.entry,
            overrides: &self.overrides,
            bounds: self.bounds,
        };
        // SAFETY: native sources and `unchecked` came through unsafe functions, whose callers vouch for them.
        let raw = unsafe { self.device.shared.raw.compile(&request)? };
        check_interface(raw.interface(), &info.limits, info.features)?;
        Ok(Kernel { device: self.device.clone(), raw })
    }
}

fn check_words(words: &[u32]) -> Result<()> {
    const MAGIC: u32 = 0x0723_0203;
    if words.first() == Some(&MAGIC) {
        return Ok(());
    }
    let message =
        format!("these are no SPIR-V words: the first must be {MAGIC:#010x}, in the CPU's byte order");
    Err(Error::InvalidKernel { message, line: None })
}

/// A value for an `override`.
pub trait OverrideValue {
    /// The value as a number; a boolean is 0 or 1.
    fn to_f64(self) -> f64;
}

impl OverrideValue for bool {
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl OverrideValue for $number {
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        })*
    };
}
numbers!(i32, u32, f32, f64);
