//! `onebuf run`: a kernel on array files. Their elements are read straight into memory that the device uses, and
//! written straight from it.

mod args;
mod file;
mod npy;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use onebuf::core::error::human_bytes;
use onebuf::core::kernel::Override;
use onebuf::{Arg, Binding, Buffer, Device, HostAccess, Kernel, KernelInterface, Placement, Stream};
use serde::Serialize;

pub(crate) use self::args::parse_override;
use self::args::{All, Given, Groups, InOut, Input, Output};
use self::file::{ArrayFile, ArrayPath};
use self::npy::{DType, Shape};
use crate::error::{Error, Result};
use crate::output::{note, print, print_json, progress};
use crate::source;

/// Options of `onebuf run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
G:B is a binding's place, @group(G) @binding(B). FILE is a NumPy .npy (little-endian f2 f4 i4 u4 i8 u8 u1, C order), or a
.bin of bare elements. DTYPE is one of those types, and SHAPE is as 1024 or 480,640. Bytes (u1 and .bin) fit any binding.
All launches use the same buffers: with --repeat N an --inout buffer is changed N times.

  onebuf run saxpy.wgsl --groups 16 --in 0:0=x.npy --inout 0:1=y.npy:out.npy --immediate a.npy")]
pub(crate) struct Options {
    /// The kernel's source
    #[arg(value_name = "FILE.wgsl")]
    source: PathBuf,
    /// Run on this device: an id (vulkan:0), a UUID, a kind (software) or a backend (vulkan)
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// The entry point, where the source has several
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Workgroups along x, y and z
    #[arg(long, value_name = "X[,Y[,Z]]")]
    groups: Groups,
    /// Read a storage buffer from a file
    #[arg(long = "in", value_name = "G:B=FILE")]
    inputs: Vec<Input>,
    /// Write a storage buffer, zeros at first, to a file
    #[arg(long = "out", value_name = "G:B=FILE:DTYPE:SHAPE")]
    outputs: Vec<Output>,
    /// Read a storage buffer from a file, and write it to another one
    #[arg(long = "inout", value_name = "G:B=IN:OUT")]
    both: Vec<InOut>,
    /// Read a uniform buffer from a file
    #[arg(long = "uniform", value_name = "G:B=FILE")]
    uniforms: Vec<Input>,
    /// Read the `var<immediate>` from a file
    #[arg(long, value_name = "FILE", value_parser = ArrayPath::new)]
    immediate: Option<ArrayPath>,
    /// Give an override a value
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_override)]
    overrides: Vec<Override>,
    /// Launch so many times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Leave out the checks of accesses out of range. Unsafe: a wrong index may read or write anything of this process
    #[arg(long)]
    unchecked: bool,
    /// Print JSON (schema onebuf.run/1)
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(options: &Options) -> Result<()> {
    // Everything that can be wrong without a device is found before one is opened.
    let specialized = source::specialize(&options.source, options.entry.as_deref(), &options.overrides)?;
    let interface = specialized.interface();
    let all = All::new(&options.inputs, &options.outputs, &options.both, &options.uniforms);
    let given = all.assign(interface)?;
    let immediates = immediates(interface, options.immediate.as_ref())?;
    let arrays: Vec<Array> = interface
        .bindings
        .iter()
        .zip(given)
        .map(|(binding, given)| Array::open(binding, given))
        .collect::<Result<_>>()?;
    file::check_apart(arrays.iter().filter_map(|array| array.to.as_ref()))?;

    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    };
    let kernel = compile(&device, specialized.source(), options)?;
    let loaded: Vec<Loaded<'_>> =
        arrays.into_iter().map(|array| array.load(&device)).collect::<Result<_>>()?;
    let times = launch(&device, &kernel, options, &loaded, &immediates)?;
    for array in &loaded {
        array.store()?;
    }

    let summary = Summary {
        schema: "onebuf.run/1",
        device: About {
            id: device.info().id.to_string(),
            name: device.info().name.clone(),
            kind: device.info().kind.name(),
            chosen_because: device.chosen_because().to_owned(),
        },
        entry: kernel.interface().entry.clone(),
        workgroup_size: kernel.workgroup_size(),
        groups: options.groups.0,
        checked: !options.unchecked,
        buffers: loaded.iter().map(Loaded::about).collect(),
        copied_bytes: device.copied_bytes(),
        repeat: options.repeat,
        host_ms: Times::of(&times.host),
        device_ms: times.device.as_deref().map(Times::of),
    };
    if options.json { print_json(&summary) } else { print(&summary.text()) }
}

/// The bytes of the kernel's `var<immediate>`.
fn immediates(interface: &KernelInterface, from: Option<&ArrayPath>) -> Result<Vec<u8>> {
    let wanted = u64::from(interface.immediate_bytes);
    let Some(from) = from else {
        if wanted > 0 {
            return Err(Error::usage(format!(
                "the kernel's `var<immediate>` of {wanted} bytes is not given; give --immediate FILE.npy"
            )));
        }
        return Ok(Vec::new());
    };
    if wanted == 0 {
        let entry = &interface.entry;
        return Err(Error::usage(format!("--immediate: entry point `{entry}` uses no `var<immediate>`")));
    }
    let mut file = ArrayFile::open(from)?;
    if file.bytes != wanted {
        let (path, has) = (from.path.display(), file.bytes);
        return Err(Error::usage(format!(
            "--immediate: the kernel's `var<immediate>` has {wanted} bytes, and {path} has {has}"
        )));
    }
    let mut bytes = vec![0; wanted as usize];
    file.read_into(&mut bytes)?;
    Ok(bytes)
}

#[allow(unsafe_code)]
fn compile(device: &Device, source: &str, options: &Options) -> Result<Kernel> {
    let mut builder = device.kernel(source)?;
    if let Some(entry) = &options.entry {
        builder = builder.entry(entry);
    }
    for Override { name, value } in &options.overrides {
        builder = builder.set(name, *value);
    }
    if options.unchecked {
        // SAFETY: whoever gives `--unchecked` vouches for every index of the kernel, as its help says.
        builder = unsafe { builder.unchecked() };
    }
    Ok(builder.build()?)
}

/// What a binding is given, opened and checked.
struct Array<'a> {
    binding: &'a Binding,
    option: &'static str,
    from: Option<ArrayFile>,
    to: Option<ArrayPath>,
    dtype: DType,
    shape: Shape,
    bytes: usize,
    host: HostAccess,
}

impl<'a> Array<'a> {
    fn open(binding: &'a Binding, given: Given) -> Result<Array<'a>> {
        let option = given.option();
        let (from, to, host) = match given {
            Given::In(from) | Given::Uniform(from) => (Some(from), None, HostAccess::Write),
            Given::InOut(from, to) => (Some(from), Some(to), HostAccess::ReadWrite),
            Given::Out(to, dtype, shape) => {
                file::check_writable(&to)?;
                let (from, to) = (None, Some(to));
                return Array::new(binding, option, from, to, dtype, shape, HostAccess::Read);
            }
        };
        if option == "--in" && binding.access.writes() {
            let what = args::describe(binding);
            note(format_args!("{what}: what the kernel writes there is dropped; keep it with --inout"));
        }
        if let Some(to) = &to {
            file::check_writable(to)?;
        }
        let from = from.map(|from| ArrayFile::open(&from)).transpose()?;
        let (dtype, shape) = match &from {
            Some(file) => (file.dtype, file.shape.clone()),
            None => (DType::U1, Shape(vec![0])),
        };
        Array::new(binding, option, from, to, dtype, shape, host)
    }

    fn new(
        binding: &'a Binding,
        option: &'static str,
        from: Option<ArrayFile>,
        to: Option<ArrayPath>,
        dtype: DType,
        shape: Shape,
        host: HostAccess,
    ) -> Result<Array<'a>> {
        args::check_elements(binding, dtype)?;
        let bytes = shape.bytes(dtype).and_then(|bytes| usize::try_from(bytes).ok());
        let what = args::describe(binding);
        match bytes {
            Some(0) => Err(Error::usage(format!("{what}: an array without elements cannot be bound"))),
            Some(bytes) => Ok(Array { binding, option, from, to, dtype, shape, bytes, host }),
            None => {
                Err(Error::usage(format!("{what}: {shape} elements of {dtype} are past 64 bits of bytes")))
            }
        }
    }

    /// Makes the buffer, and reads the file into its memory.
    fn load(self, device: &Device) -> Result<Loaded<'a>> {
        let builder = device.buffer::<u8>(self.bytes).host(self.host).label(&self.binding.name);
        let Array { binding, option, from, to, dtype, shape, .. } = self;
        let path = from.as_ref().map(|file| file.path().display().to_string());
        let buffer = match from {
            None => builder.zeroed().build()?,
            Some(mut file) => {
                let buffer = builder.build()?;
                let mut guard = buffer.overwrite()?;
                file.read_into(&mut guard)?;
                guard.finish()?;
                buffer
            }
        };
        Ok(Loaded { binding, option, from: path, to, dtype, shape, buffer })
    }
}

/// An array in memory that CPU and device share.
struct Loaded<'a> {
    binding: &'a Binding,
    option: &'static str,
    from: Option<String>,
    to: Option<ArrayPath>,
    dtype: DType,
    shape: Shape,
    buffer: Buffer<u8>,
}

impl Loaded<'_> {
    /// Writes the file from the buffer's memory.
    fn store(&self) -> Result<()> {
        let Some(to) = &self.to else { return Ok(()) };
        file::write(to, self.dtype, &self.shape, &self.buffer.read()?)
    }

    fn about(&self) -> AboutBuffer {
        AboutBuffer {
            group: self.binding.slot.group,
            binding: self.binding.slot.binding,
            name: self.binding.name.clone(),
            r#type: self.binding.ty.clone(),
            option: self.option,
            from: self.from.clone(),
            to: self.to.as_ref().map(|to| to.path.display().to_string()),
            dtype: self.dtype.name(),
            shape: self.shape.0.clone(),
            bytes: self.buffer.size_bytes(),
            placement: self.buffer.placement().clone(),
        }
    }
}

/// How long each launch took.
struct Taken {
    host: Vec<Duration>,
    /// None where the device has no clock.
    device: Option<Vec<Duration>>,
}

fn launch(
    device: &Device,
    kernel: &Kernel,
    options: &Options,
    arrays: &[Loaded<'_>],
    immediates: &[u8],
) -> Result<Taken> {
    let mut arguments: Vec<Arg<'_>> = arrays.iter().map(|array| Arg::buffer(&array.buffer)).collect();
    if !immediates.is_empty() {
        arguments.push(Arg::immediates(immediates));
    }
    let stream = device.stream()?;
    let mut taken = Taken { host: Vec::new(), device: Some(Vec::new()) };
    let bar = progress(options.repeat.into());
    for _ in 0..options.repeat {
        let (host, by_device) = once(&stream, kernel, options.groups.0, &arguments)?;
        taken.host.push(host);
        match (&mut taken.device, by_device) {
            (Some(all), Some(time)) => all.push(time),
            _ => taken.device = None,
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(taken)
}

/// One launch: the time until it is known to be done, and the time by the device's clock.
fn once(
    stream: &Stream,
    kernel: &Kernel,
    groups: [u32; 3],
    arguments: &[Arg<'_>],
) -> Result<(Duration, Option<Duration>)> {
    let start = Instant::now();
    let before = stream.event().ok();
    stream.launch(kernel, groups, arguments)?;
    let after = stream.event().ok();
    stream.wait()?;
    let host = start.elapsed();
    let by_device = match (before, after) {
        (Some(before), Some(after)) => Some(after.elapsed_since(&before)?),
        _ => None,
    };
    Ok((host, by_device))
}

/// What was done, for JSON and for people.
#[derive(Serialize)]
struct Summary {
    schema: &'static str,
    device: About,
    entry: String,
    workgroup_size: [u32; 3],
    groups: [u32; 3],
    checked: bool,
    buffers: Vec<AboutBuffer>,
    copied_bytes: u64,
    repeat: u32,
    host_ms: Times,
    device_ms: Option<Times>,
}

#[derive(Serialize)]
struct About {
    id: String,
    name: String,
    kind: &'static str,
    chosen_because: String,
}

#[derive(Serialize)]
struct AboutBuffer {
    group: u32,
    binding: u32,
    name: String,
    r#type: String,
    option: &'static str,
    from: Option<String>,
    to: Option<String>,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    placement: Placement,
}

#[derive(Serialize)]
struct Times {
    min: f64,
    median: f64,
}

impl Times {
    fn of(all: &[Duration]) -> Times {
        let mut ms: Vec<f64> = all.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let (low, high) = (ms.len().saturating_sub(1) / 2, ms.len() / 2);
        let at = |index: usize| ms.get(index).copied().unwrap_or_default();
        Times { min: at(0), median: (at(low) + at(high)) / 2.0 }
    }
}

impl Summary {
    fn text(&self) -> String {
        let About { id, name, kind, chosen_because } = &self.device;
        let by = |[x, y, z]: [u32; 3]| format!("{x} x {y} x {z}");
        let mut text = format!("device   {id}: {name} ({kind}); {chosen_because}\n");
        text.push_str(&format!(
            "kernel   `{}`: {} workgroups of {}{}\n",
            self.entry,
            by(self.groups),
            by(self.workgroup_size),
            if self.checked { "" } else { ", accesses unchecked" }
        ));
        for buffer in &self.buffers {
            let files: Vec<&str> =
                [&buffer.from, &buffer.to].into_iter().flatten().map(String::as_str).collect();
            text.push_str(&format!(
                "buffer   {}:{} `{}` {}: {} {} {}, {}, {}\n",
                buffer.group,
                buffer.binding,
                buffer.name,
                buffer.r#type,
                &buffer.option[2..],
                buffer.dtype,
                Shape(buffer.shape.clone()),
                human_bytes(buffer.bytes),
                files.join(" to "),
            ));
            let placement = buffer.placement.to_string();
            text.push_str(&format!("         {}\n", placement.lines().next().unwrap_or_default()));
        }
        text.push_str(&format!(
            "copied   {} between the device's memory and the CPU's\n",
            human_bytes(self.copied_bytes)
        ));
        text.push_str(&format!("time     {}", times(&self.host_ms, self.repeat, "until the CPU knew")));
        if let Some(device) = &self.device_ms {
            text.push_str(&format!("; {}", times(device, self.repeat, "by the device's clock")));
        }
        text.push('\n');
        text
    }
}

fn times(times: &Times, repeat: u32, what: &str) -> String {
    if repeat == 1 {
        return format!("{:.3} ms {what}", times.min);
    }
    format!("{:.3} ms at least, {:.3} ms median of {repeat} {what}", times.min, times.median)
}
