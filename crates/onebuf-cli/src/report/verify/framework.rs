//! `framework`: memory goes out as a DLPack tensor and comes in as one, through the structures of C, in both of their forms.
//!
//! The other library is played by this program: it has the tensor alone, its pointer and its label. Each side writes
//! a pattern, by kernel or by CPU, and the other one looks at every word; at the end the tensor's deleter is called, and the memory
//! must have stayed until then and be gone after.

#![allow(unsafe_code)]

use std::sync::Arc;

use onebuf::dlpack::{DataType, Label, Managed, Tensor, View, abi};
use onebuf::{Buffer, Device, DeviceUse, Error, HostAccess, HostPath, Kernel, Semantic, Share, Stream, args};

use super::{Problem, TestResult, WORK_LIMIT, compare};

/// 64 KiB, as a tensor of two dimensions.
const WORDS: usize = 1 << 14;
const SHAPE: [usize; 2] = [64, WORDS / 64];

/// Both forms: with a version, and without.
const FORMS: [bool; 2] = [true, false];

pub(super) fn test(device: &Device) -> TestResult {
    let mut bench = Bench::new(device)?;
    let mut told: Vec<String> = Vec::new();
    let mut back = 0;
    for kind in Kind::ALL {
        for view in [View::Placement, View::Device, View::Host] {
            for versioned in FORMS {
                let Some(buffer) = kind.build(device)? else { continue };
                let place = format!("{} as {view:?}", buffer.placement().kind);
                let seen = bench.goes_out(buffer, view, versioned);
                let Some((label, again)) = seen.map_err(|problem| of(problem, &place, versioned))? else {
                    continue;
                };
                back += usize::from(again);
                let line = format!("{} as {}", kind.name(), name_of(label));
                if !told.contains(&line) {
                    told.push(line);
                }
            }
        }
    }
    bench.guards().map_err(|problem| of(problem, "a guard", true))?;
    told.push("any memory through guards".into());
    let foreign = bench.comes_in()?;
    Ok(format!(
        "in both forms, each side saw what the other wrote, and the deleter was called: {}; {back} of them came back as buffers; {foreign}",
        told.join(", ")
    ))
}

/// A problem, with where it was.
fn of(problem: Problem, place: &str, versioned: bool) -> Problem {
    let form = if versioned { "versioned" } else { "legacy" };
    match problem {
        Problem::Failed(why) => Problem::Failed(format!("{place}, {form}: {why}")),
        skipped @ Problem::Skipped(_) => skipped,
    }
}

/// What a buffer is built for.
#[derive(Clone, Copy)]
enum Kind {
    Device,
    InPlace,
    HostMapped,
    Unified,
    Shared,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Device, Kind::InPlace, Kind::HostMapped, Kind::Unified, Kind::Shared];

    fn name(self) -> &'static str {
        match self {
            Kind::Device => "device memory",
            Kind::InPlace => "memory of CPU and device",
            Kind::HostMapped => "host-mapped memory",
            Kind::Unified => "unified memory",
            Kind::Shared => "memory to be shared",
        }
    }

    /// `None` where the device has no such memory.
    fn build(self, device: &Device) -> Result<Option<Buffer<u32>>, Problem> {
        let builder = device.buffer::<u32>(WORDS).zeroed();
        let in_place = HostAccess::ReadWrite;
        let builder = match self {
            Kind::Device => builder.device_use(DeviceUse::Heavy),
            Kind::InPlace => builder.host(in_place),
            Kind::HostMapped => builder.host(in_place).require(Semantic::HostMapped),
            Kind::Unified => builder.host(in_place).require(Semantic::Unified),
            Kind::Shared => builder.share(Share::Process),
        };
        match builder.build() {
            Ok(buffer) => Ok(Some(buffer)),
            Err(Error::NoPlacement { .. } | Error::Unsupported { .. }) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }
}

fn name_of(label: Label) -> &'static str {
    match label.kind {
        abi::kind::CPU => "kDLCPU",
        abi::kind::CUDA => "kDLCUDA",
        abi::kind::CUDA_HOST => "kDLCUDAHost",
        abi::kind::CUDA_MANAGED => "kDLCUDAManaged",
        _ => "an unknown label",
    }
}

/// The label that memory must have: by what it is, or by who will use it.
fn right_label(buffer: &Buffer<u32>, view: View) -> Label {
    let id = &buffer.device().info().id;
    let ordinal = id.ordinal as i32;
    match (view, buffer.placement().path) {
        _ if id.backend != "cuda" => Label::CPU,
        (View::Host, _) => Label::CPU,
        (View::Device, _) => Label::cuda(ordinal),
        (View::Placement, HostPath::Unified) => Label::cuda_managed(ordinal),
        (View::Placement, HostPath::HostMemory) => Label::CUDA_HOST,
        (View::Placement, _) => Label::cuda(ordinal),
    }
}

/// Hands a tensor over in C, to the same program.
fn through_c(tensor: Managed, versioned: bool) -> Result<Managed, Problem> {
    let problem = |what: &str, why: onebuf::dlpack::TensorError| Problem::Failed(format!("{what}: {why}"));
    // SAFETY: the structure is whole, of the form that is said, and is taken once.
    let taken = unsafe {
        if versioned {
            Managed::import_versioned(tensor.into_versioned().as_ptr())
        } else {
            Managed::import_legacy(
                tensor.into_legacy().map_err(|why| problem("the legacy form", why))?.as_ptr(),
            )
        }
    };
    taken.map_err(|why| problem("what was exported is refused", why))
}

/// The words of a tensor of the CPU.
///
/// # Safety
/// Nobody writes them meanwhile.
unsafe fn words(tensor: &Managed) -> &[u32] {
    // SAFETY: the label is the CPU's, the type and the shape were looked at, and the tensor keeps the memory.
    unsafe { std::slice::from_raw_parts(tensor.data().cast::<u32>(), WORDS) }
}

/// Who plays both libraries.
struct Bench<'a> {
    device: &'a Device,
    stream: Stream,
    kernel: Kernel,
    /// What the memory at hand must hold.
    model: Vec<u32>,
    random: fastrand::Rng,
}

impl<'a> Bench<'a> {
    fn new(device: &'a Device) -> Result<Bench<'a>, Problem> {
        let kernel = device.kernel(include_str!("transform.wgsl"))?.build()?;
        let random = fastrand::Rng::new();
        Ok(Bench { device, stream: device.stream()?, kernel, model: vec![0; WORDS], random })
    }

    /// A kernel changes all of a buffer, and is done.
    fn device_changes(&mut self, buffer: &Buffer<u32>) -> Result<(), Problem> {
        let salt = self.random.u32(..);
        for (i, word) in self.model.iter_mut().enumerate() {
            *word = word.wrapping_mul(2_654_435_761).wrapping_add(i as u32 ^ salt);
        }
        let groups = [(WORDS as u32).div_ceil(64), 1, 1];
        self.stream.launch(&self.kernel, groups, args![buffer, [WORDS as u32, salt]])?;
        self.stream.wait_timeout(WORK_LIMIT)?;
        Ok(())
    }

    /// New words for the CPU to write.
    fn new_words(&mut self) -> &[u32] {
        let salt = self.random.u32(..);
        for (i, word) in self.model.iter_mut().enumerate() {
            *word = salt.wrapping_mul(i as u32 | 1) ^ 0x5A5A_0000;
        }
        &self.model
    }

    /// The tensor's user, who is of the CPU, writes new words.
    fn user_writes(&mut self, tensor: &Managed) {
        let words = self.new_words();
        // SAFETY: as in `words`; the tensor may be written, and nobody else uses the memory now.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), tensor.data().cast::<u32>(), WORDS) };
    }

    /// A buffer as a tensor, and that as a buffer again: the label, and whether it came back. `None` where such memory has
    /// no such view.
    fn goes_out(
        &mut self,
        buffer: Buffer<u32>,
        view: View,
        versioned: bool,
    ) -> Result<Option<(Label, bool)>, Problem> {
        let live = || {
            self.device.trim();
            self.device.memory().buffers
        };
        // With this buffer.
        let before = live();
        let expected = right_label(&buffer, view);
        buffer.copy_from_slice(self.new_words())?;
        self.device_changes(&buffer)?;
        // SAFETY: what follows waits for each side before the other one touches the memory.
        let tensor = match unsafe { buffer.to_dlpack(view, &SHAPE, false) } {
            Ok(tensor) => through_c(tensor, versioned)?,
            Err(Error::Unsupported { .. }) => return Ok(None),
            Err(other) => return Err(other.into()),
        };
        check_structure(&tensor, expected, false)?;
        if expected == Label::CPU {
            // SAFETY: the device's work is done.
            compare(unsafe { words(&tensor) }, &self.model, "what the device wrote, in the tensor")?;
            self.user_writes(&tensor);
            compare(&buffer.read_to_vec()?, &self.model, "what the tensor's user wrote, in the buffer")?;
            self.device_changes(&buffer)?;
            // SAFETY: as above.
            let seen = unsafe { words(&tensor) };
            compare(seen, &self.model, "what the device wrote after that, in the tensor")?;
        }
        // SAFETY: as above.
        let again = match unsafe { self.device.import_dlpack::<u32>(tensor) } {
            Ok(again) => Some(again),
            Err(lost @ Error::DeviceLost(_)) => return Err(lost.into()),
            Err(error) if expected.is_cuda_visible() => {
                return Err(Problem::Failed(format!("its own tensor is refused: {error}")));
            }
            // Drivers have many words for a second import of their own memory.
            Err(_) => None,
        };
        if let Some(again) = &again {
            self.device_changes(again)?;
            compare(
                &buffer.read_to_vec()?,
                &self.model,
                "what was written through the tensor, in the buffer",
            )?;
            self.device_changes(&buffer)?;
            compare(
                &again.read_to_vec()?,
                &self.model,
                "what was written to the buffer, through the tensor",
            )?;
            // The tensor alone keeps the memory.
            drop(buffer);
            self.device.wait_idle()?;
            compare(&again.read_to_vec()?, &self.model, "after its maker let go, through the tensor")?;
        } else {
            drop(buffer);
        }
        let came_back = again.is_some();
        drop(again);
        self.device.wait_idle()?;
        let after = live();
        if after + 1 != before && before > 0 {
            return Err(Problem::Failed(format!(
                "{after} buffers live after the deleter was called, {} expected",
                before - 1
            )));
        }
        Ok(Some((expected, came_back)))
    }

    /// Guards as tensors of the CPU, of memory that need not be seen by it.
    fn guards(&mut self) -> Result<(), Problem> {
        let Some(buffer) = Kind::InPlace.build(self.device)? else { return Ok(()) };
        buffer.copy_from_slice(self.new_words())?;
        self.device_changes(&buffer)?;
        let tensor = through_c(buffer.read()?.into_dlpack(&SHAPE)?, true)?;
        check_structure(&tensor, Label::CPU, true)?;
        // SAFETY: the guard behind the tensor keeps others from writing.
        compare(unsafe { words(&tensor) }, &self.model, "what the device wrote, in a guard's tensor")?;
        if self.stream.launch(&self.kernel, [1, 1, 1], args![&buffer, [1u32, 1]]).is_ok() {
            return Err(Problem::Failed("work that writes was taken beside a tensor that reads".into()));
        }
        drop(tensor);
        for versioned in FORMS {
            let tensor = through_c(buffer.write()?.into_dlpack(&SHAPE)?, versioned)?;
            check_structure(&tensor, Label::CPU, false)?;
            self.user_writes(&tensor);
            drop(tensor);
            self.device_changes(&buffer)?;
            compare(
                &buffer.read_to_vec()?,
                &self.model,
                "what the user of a guard's tensor wrote, and then the device",
            )?;
        }
        if buffer.read()?.into_dlpack(&SHAPE)?.into_legacy().is_ok() {
            return Err(Problem::Failed(
                "a tensor that may only be read went out in the form that cannot say so".into(),
            ));
        }
        Ok(())
    }

    /// A tensor of somebody else's pages as a buffer.
    fn comes_in(&mut self) -> Result<String, Problem> {
        for versioned in FORMS {
            let mut pages = self.device.page_vec::<u32>(WORDS)?;
            pages.copy_from_slice(self.new_words());
            let (data, kept) = (pages.as_mut_ptr(), Arc::new(()));
            let watch = Arc::downgrade(&kept);
            let shape = SHAPE.map(|size| size as i64);
            let tensor = Tensor::contiguous(data.cast(), Label::CPU, DataType::of::<u32>(), &shape)
                .map_err(|why| Problem::Failed(why.to_string()))?;
            // SAFETY: the words are the pages', which are kept with the tensor, and nothing else looks at them.
            let tensor = through_c(unsafe { Managed::export(tensor, Box::new((pages, kept))) }, versioned)?;
            // SAFETY: nobody else has the pages.
            let buffer = match unsafe { self.device.import_dlpack::<u32>(tensor) } {
                Ok(buffer) => buffer,
                Err(Error::Unsupported { reason, .. }) if watch.strong_count() == 0 => {
                    return Ok(format!("no tensor of the CPU comes in: {reason}"));
                }
                Err(other) => return Err(other.into()),
            };
            self.device_changes(&buffer)?;
            let seen = buffer.read()?;
            if seen.as_ptr() != data.cast_const() {
                return Err(Problem::Failed("another program's tensor was copied".into()));
            }
            compare(&seen, &self.model, "what the device wrote, in another program's tensor")?;
            drop(seen);
            drop(buffer);
            self.device.wait_idle()?;
            self.device.trim();
            if watch.strong_count() != 0 {
                return Err(Problem::Failed("the deleter of another program's tensor was not called".into()));
            }
        }
        Ok("another program's tensor came in".into())
    }
}

/// What a taker looks at before it believes the pointer.
fn check_structure(tensor: &Managed, label: Label, read_only: bool) -> Result<(), Problem> {
    let shape = SHAPE.map(|size| size as i64);
    let seen = (tensor.device(), tensor.dtype(), tensor.is_read_only(), tensor.byte_offset());
    let expected = (label, DataType::of::<u32>(), read_only, 0);
    let right = seen == expected && tensor.shape() == shape && tensor.strides() == [shape[1], 1];
    if !right || !tensor.data().addr().is_multiple_of(64) {
        return Err(Problem::Failed(format!(
            "the tensor says {seen:?}, shape {:?}, strides {:?}, at {:p}; expected are {expected:?}, {shape:?}, and a multiple of 64 bytes",
            tensor.shape(),
            tensor.strides(),
            tensor.data()
        )));
    }
    Ok(())
}
