//! The same kernels on a device, through onebuf.

use anyhow::{Context as _, Result};
use onebuf::{Arg, Buffer, Device, HostAccess, Stream};
use onebuf_wgsl::SpirvOptions;

use crate::{
    case::{Case, Outcome},
    required,
};

/// The bytes of a word, whatever the kernel takes them for.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct Word(u32);

/// A device with a stream.
#[derive(Debug)]
pub struct Runner {
    device: Device,
    stream: Stream,
}

impl Runner {
    /// Opens the device that onebuf takes by itself; `ONEBUF_DEVICE` names another. `None` where there is none, which is
    /// printed.
    ///
    /// # Errors
    /// Where there is none and `ONEBUF_REQUIRE` names `vulkan`.
    pub fn open() -> Result<Option<Runner>> {
        let device = match Device::open_default() {
            Ok(device) => device,
            Err(error) if required("vulkan") => return Err(error).context("ONEBUF_REQUIRE names vulkan"),
            Err(error) => {
                println!("not compared with a device: {error}");
                return Ok(None);
            }
        };
        let stream = device.stream()?;
        Ok(Some(Runner { device, stream }))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Runs every case. `None` for one that asks for what the device has not, which is printed.
    ///
    /// # Errors
    /// What the compiler or the driver says.
    pub fn run(&self, cases: &[&Case]) -> Result<Vec<Option<Outcome>>> {
        // One dispatch at a time: with fifty different pipelines in one submission, lavapipe (Mesa 22.3) reads a stale address
        // of a uniform buffer and dies of it.
        cases.iter().map(|case| self.run_one(case).with_context(|| case.name.clone())).collect()
    }

    fn run_one(&self, case: &Case) -> Result<Option<Outcome>> {
        let missing = case.kernel.interface().features.missing_from(self.device.info().features);
        if !missing.is_empty() {
            println!("{} is not run on {}, which has no {}", case.name, self.name(), missing.join(", "));
            return Ok(None);
        }
        // With the translation's own checks everywhere: where the driver keeps accesses inside of a buffer, onebuf leaves that to
        // it, and an index beyond an array may then find what lies behind it in the buffer.
        let spirv = case.kernel.to_spirv(&SpirvOptions::default())?;
        let builder = self.device.kernel(&case.source)?;
        // SAFETY: the words and the interface come from one translation, which checks every access.
        let mut builder = unsafe { builder.spirv(&spirv.words, case.kernel.interface())? };
        for value in &case.overrides {
            builder = builder.set(&value.name, value.value);
        }
        let kernel = builder.build()?;
        let make = |bytes: &Vec<u8>| {
            let mut words = vec![Word(0); bytes.len().div_ceil(4)];
            bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
            self.device.buffer::<Word>(words.len()).host(HostAccess::ReadWrite).init(&words)
        };
        let buffers = case.buffers.iter().map(make).collect::<onebuf::Result<Vec<Buffer<Word>>>>()?;
        let mut args: Vec<Arg<'_>> = buffers.iter().map(Arg::buffer).collect();
        if kernel.interface().immediate_bytes > 0 {
            args.push(Arg::immediates(&case.immediates));
        }
        self.stream.launch(&kernel, case.grid, &args)?;
        let read = |(buffer, bytes): (&Buffer<Word>, &Vec<u8>)| {
            let words = buffer.read_to_vec()?;
            Ok(bytemuck::cast_slice(&words)[..bytes.len()].to_vec())
        };
        buffers.iter().zip(&case.buffers).map(read).collect::<Result<Outcome>>().map(Some)
    }
}
