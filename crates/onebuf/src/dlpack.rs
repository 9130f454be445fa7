//! Buffers as tensors of other libraries, and their tensors as buffers: DLPack.
//!
//! There are two ways out:
//!
//! - **A guard becomes a tensor**, [`ReadGuard::into_dlpack`] and [`WriteGuard::into_dlpack`]: the CPU's view of any buffer.
//!   While the tensor lives, so does the guard, and work that conflicts is refused.
//! - **A buffer becomes a tensor**, [`Buffer::to_dlpack`]: its very memory, labelled by what it is or by who will use it.
//!   Nothing orders its user and onebuf, so this is `unsafe`.
//!
//! What libraries take differs: PyTorch refuses managed and page-locked memory by their names, CuPy the CPU's. All of
//! them take such memory as [`View::Device`] or [`View::Host`], which are as true.
//!
//! ```
//! use onebuf::dlpack::Managed;
//! use onebuf::{Device, HostAccess};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if onebuf::no_device_here()? { return Ok(()) }
//! let device = Device::open_default()?;
//! let numbers = device.buffer::<f32>(6).host(HostAccess::ReadWrite).init(&[0., 1., 2., 3., 4., 5.])?;
//! let tensor: Managed = numbers.read()?.into_dlpack(&[2, 3])?;
//! assert!(tensor.is_read_only() && tensor.strides() == [3, 1]);
//! let for_c = tensor.into_versioned(); // for a capsule, or a library in C
//! # // SAFETY: the structure is whole, and is taken once.
//! # drop(unsafe { Managed::import_versioned(for_c.as_ptr()) }?);
//! # Ok(())
//! # }
//! ```

use std::any::Any;
use std::ffi::c_void;

use bytemuck::Pod;
use onebuf_core::backend::PageAccess;
use onebuf_core::{
    CostClass, Error, HostAccess, HostPath, Intent, Placement, Result, Semantic, Ticket, Tickets,
};
pub use onebuf_dlpack::{
    ConsumerStream, DataType, Device as Label, Element, Error as TensorError, Form, Managed, Tensor, abi,
};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::guard::{ReadGuard, WriteGuard};
use crate::storage::Route;

/// Whose view of a buffer a tensor is, which decides its label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// What the memory is: the CPU's, CUDA's, page-locked, managed.
    #[default]
    Placement,
    /// The device's: any memory of CUDA, as `kDLCUDA`.
    Device,
    /// The CPU's: any memory that the CPU uses in place, as `kDLCPU`.
    Host,
}

impl<T: Pod + Element> ReadGuard<T> {
    /// The elements as a tensor of the CPU that may only be read, in the order of C. The guard lives as long as the tensor.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the shape is not that of so many elements.
    pub fn into_dlpack(self, shape: &[usize]) -> Result<Managed> {
        let tensor = of_host(self.as_ptr().cast_mut(), self.len(), shape)?.read_only();
        // SAFETY: the elements are those of the guard, which is the owner: they stay and do not change while it lives.
        Ok(unsafe { Managed::export(tensor, Box::new(self)) })
    }
}

impl<T: Pod + Element> WriteGuard<T> {
    /// The elements as a tensor of the CPU, in the order of C. What is written to it is the device's when it is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the shape is not that of so many elements.
    pub fn into_dlpack(mut self, shape: &[usize]) -> Result<Managed> {
        let tensor = of_host(self.as_mut_ptr(), self.len(), shape)?;
        // SAFETY: as above, and a write guard excludes everybody else.
        Ok(unsafe { Managed::export(tensor, Box::new(self)) })
    }
}

fn of_host<T: Element>(elements: *mut T, len: usize, shape: &[usize]) -> Result<Tensor> {
    let shape = checked_shape(shape, len)?;
    Tensor::contiguous(elements.cast(), Label::CPU, DataType::of::<T>(), &shape).map_err(refused)
}

impl<T: Pod + Element> Buffer<T> {
    /// The buffer's memory as a tensor in the order of C, with no copy. The work on it so far is waited for, and the tensor
    /// keeps the memory alive.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] where the shape is not that of so many elements.
    /// - [`Error::Unsupported`] where the memory cannot be seen so: a [`View::Device`] of memory that is not CUDA's, a
    ///   [`View::Host`] of memory that the CPU does not use in place or must flush.
    /// - [`Error::Busy`] while a guard lives that conflicts; [`Error::DeviceLost`].
    ///
    /// # Safety
    /// Hazards order what goes through onebuf alone. While work of onebuf writes the buffer, or a write guard lives, the
    /// tensor's user does not touch it; while its user writes it (never where it is `read_only`), onebuf does not use it.
    pub unsafe fn to_dlpack(&self, view: View, shape: &[usize], read_only: bool) -> Result<Managed> {
        // SAFETY: the caller's promise; nobody's stream is used.
        unsafe { self.to_dlpack_with(view, shape, read_only, Waits::Host) }
    }

    /// As [`Buffer::to_dlpack`], for a consumer that says on which stream it uses the tensor: Python's
    /// `__dlpack__(stream=..)`.
    ///
    /// | memory and its label | who waits for the work so far |
    /// |---|---|
    /// | CUDA's own, whatever is said | that stream, on the device: this call returns at once |
    /// | page-locked or managed, by those labels, with a stream said | the same |
    /// | the same, nothing said: the consumer may be of the CPU, as NumPy is | this call |
    /// | the CPU's, and all memory of other devices | this call |
    /// | any, with [`ConsumerStream::Unordered`] | nobody |
    ///
    /// # Errors
    /// Those of [`Buffer::to_dlpack`]; [`Error::InvalidArgument`] where CUDA knows no such stream.
    ///
    /// # Safety
    /// As for [`Buffer::to_dlpack`], and a [`ConsumerStream::Raw`] is a live stream of CUDA in this process. With
    /// [`ConsumerStream::Unordered`] the tensor's user waits by its own means for work of onebuf that writes the buffer. The
    /// deleter is called when the consumer's work is done.
    pub unsafe fn to_dlpack_on(
        &self,
        view: View,
        shape: &[usize],
        read_only: bool,
        stream: ConsumerStream,
    ) -> Result<Managed> {
        // SAFETY: the caller's promise.
        unsafe { self.to_dlpack_with(view, shape, read_only, Waits::Stream(stream)) }
    }

    /// # Safety
    /// As for [`Buffer::to_dlpack_on`].
    unsafe fn to_dlpack_with(
        &self,
        view: View,
        shape: &[usize],
        read_only: bool,
        waits: Waits,
    ) -> Result<Managed> {
        let shape = checked_shape(shape, self.len())?;
        let (memory, label) = self.seen_as(view)?;
        // A buffer of a share of a part begins within its memory.
        let address = memory.wrapping_byte_add(self.offset_bytes() as usize);
        let mut before = Tickets::new();
        let state = self.storage.state.lock();
        state.hazards.before_device(!read_only, &mut before)?;
        let partners = state.partners.clone();
        drop(state);
        partners.bring(&self.device().shared, &mut before)?;
        match waits {
            Waits::Stream(ConsumerStream::Unordered) => {}
            Waits::Stream(stream) if is_devices_affair(label, stream) => {
                // SAFETY: the caller's promise.
                unsafe { make_wait(self.device(), stream, before.as_slice())? };
            }
            _ => self.device().shared.raw.wait(before.as_slice(), None)?,
        }
        if label.is_host_visible() {
            self.storage.memory.invalidate(0, self.storage.bytes)?;
        }
        let tensor = Tensor::contiguous(address, label, DataType::of::<T>(), &shape).map_err(refused)?;
        let tensor = if read_only { tensor.read_only() } else { tensor };
        // SAFETY: the memory is the buffer's, of which the owner is a handle; the rest is the caller's promise.
        Ok(unsafe { Managed::export(tensor, Box::new(self.clone())) })
    }

    /// Where a user finds the bytes, and what the place is called.
    fn seen_as(&self, view: View) -> Result<(*mut c_void, Label)> {
        let on_cuda = cuda_place(self);
        match (view, on_cuda) {
            (View::Placement, Some((address, label))) => Ok((address, label)),
            (View::Device, Some((address, _))) => {
                Ok((address, Label::cuda(self.device().info().id.ordinal as i32)))
            }
            (View::Device, None) => Err(Error::unsupported(
                "a tensor of the device's memory",
                format!(
                    "{} is not CUDA's, and no library has a name for its memory",
                    self.device().info().id
                ),
            )),
            (View::Host | View::Placement, _) => self.seen_by_host(),
        }
    }

    fn seen_by_host(&self) -> Result<(*mut c_void, Label)> {
        let what = || format!("a tensor of the CPU over {}", self.storage.describe());
        match self.storage.route(false)? {
            Route::Direct(_) if !self.placement().coherent => Err(Error::unsupported(
                what(),
                "its memory needs flushes, which another library does not make; use `read()?.into_dlpack(..)`",
            )),
            Route::Direct(pointer) => Ok((pointer.as_ptr().cast(), Label::CPU)),
            Route::Staged(_) => Err(Error::unsupported(
                what(),
                "the CPU does not use it in place; `read()?.into_dlpack(..)` makes a copy",
            )),
        }
    }
}

impl Device {
    /// A buffer over the tensor of another library, with no copy. The tensor's deleter is called when no work uses the
    /// memory any more.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] where the tensor is not of this element type, not in the order of C, or another device's.
    /// - [`Error::Unsupported`] where this device cannot use such memory in place, or it is memory of the device that may
    ///   only be read. The CPU's may: the buffer then refuses guards and work that would write it.
    ///
    /// In each case the tensor is given back to its library: copy it.
    ///
    /// # Safety
    /// The tensor's bytes are as its producer says, and the work that writes them is done, or the caller has made this
    /// device's streams wait for it. From then on its other holders touch it only as for [`Buffer::to_dlpack`].
    pub unsafe fn import_dlpack<T: Pod + Element>(&self, tensor: Managed) -> Result<Buffer<T>> {
        let expected = DataType::of::<T>();
        if tensor.dtype() != expected {
            let (has, ty) = (tensor.dtype().raw(), std::any::type_name::<T>());
            return Err(Error::InvalidArgument(format!("the tensor's elements are {has:?}, and not `{ty}`")));
        }
        if !tensor.is_contiguous() {
            return Err(Error::InvalidArgument(format!(
                "the tensor's strides are {:?} for the shape {:?}; make it contiguous first",
                tensor.strides(),
                tensor.shape()
            )));
        }
        let len = usize::try_from(tensor.len())
            .map_err(|_| Error::InvalidArgument(format!("{} elements", tensor.len())))?;
        if len == 0 {
            return self.buffer(0).build();
        }
        let label = tensor.device();
        #[cfg(feature = "cuda")]
        if label.is_cuda_visible() {
            if tensor.is_read_only() {
                return Err(Error::unsupported(
                    "a buffer over device memory that may only be read",
                    "nothing guards it against kernels that write; copy it",
                ));
            }
            // SAFETY: the caller's promise.
            return unsafe { on_cuda::import(self, tensor, len) };
        }
        if !label.is_host_visible() {
            return Err(Error::unsupported(
                format!("a tensor of device type {}, number {}", label.kind, label.id),
                format!("{} takes tensors of the CPU, and CUDA's devices those of CUDA", self.info().id),
            ));
        }
        let address = tensor.extent().address as usize;
        let elements =
            std::ptr::slice_from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<T>(address), len);
        let access = if tensor.is_read_only() { PageAccess::Read } else { PageAccess::ReadWrite };
        // SAFETY: the caller's promise; the tensor outlives the import, as its owner.
        unsafe { self.import_pages(elements, access, Some(Box::new(tensor))) }
    }
}

/// Who waits for the work on a buffer that becomes a tensor.
enum Waits {
    Host,
    Stream(ConsumerStream),
}

/// Whether a consumer's work on memory of this label runs on a stream, so that the stream is what must wait.
fn is_devices_affair(label: Label, stream: ConsumerStream) -> bool {
    label.kind == abi::kind::CUDA || (label.is_cuda_visible() && stream != ConsumerStream::Unsaid)
}

/// Makes a consumer's stream wait for work of this device, or else this thread.
///
/// # Safety
/// As for [`Buffer::to_dlpack_on`].
unsafe fn make_wait(device: &Device, stream: ConsumerStream, work: &[Ticket]) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Some(cuda) = device.shared.raw.as_any().downcast_ref::<onebuf_cuda::CudaDevice>()
        && let Some(stream) = stream.cuda()
    {
        // SAFETY: the caller's promise.
        return unsafe { cuda.make_wait(stream, work) };
    }
    let _ = stream;
    device.shared.raw.wait(work, None)
}

/// What CUDA's name for a buffer's memory is.
fn cuda_place<T: Pod>(buffer: &Buffer<T>) -> Option<(*mut c_void, Label)> {
    #[cfg(feature = "cuda")]
    return on_cuda::place(buffer);
    #[cfg(not(feature = "cuda"))]
    return {
        let _ = buffer;
        None
    };
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use onebuf_cuda::{CudaDevice, Place};

    use super::*;
    use crate::storage::{Origin, Storage, Wish};

    pub(super) fn place<T: Pod>(buffer: &Buffer<T>) -> Option<(*mut c_void, Label)> {
        let device = &buffer.device().shared;
        let cuda: &CudaDevice = device.raw.as_any().downcast_ref()?;
        let (address, place) = cuda.locate(&buffer.storage.memory)?;
        let ordinal = device.info.id.ordinal as i32;
        let label = match place {
            Place::Device => Label::cuda(ordinal),
            Place::Managed => Label::cuda_managed(ordinal),
            Place::Host => Label::CUDA_HOST,
        };
        Some((std::ptr::with_exposed_provenance_mut(address as usize), label))
    }

    /// # Safety
    /// As for [`Device::import_dlpack`].
    pub(super) unsafe fn import<T: Pod + Element>(
        device: &Device,
        tensor: Managed,
        len: usize,
    ) -> Result<Buffer<T>> {
        let shared = &device.shared;
        let (label, extent) = (tensor.device(), tensor.extent());
        let Some(cuda) = shared.raw.as_any().downcast_ref::<CudaDevice>() else {
            return Err(Error::unsupported(
                format!("a tensor of CUDA on {}", shared.info.id),
                "open the same GPU as a CUDA device",
            ));
        };
        let on_device = matches!(label.kind, abi::kind::CUDA | abi::kind::CUDA_MANAGED);
        if on_device && label.id as u32 != shared.info.id.ordinal {
            return Err(Error::InvalidArgument(format!(
                "the tensor is on cuda:{}, and this is {}",
                label.id, shared.info.id
            )));
        }
        let alignment = shared.info.limits.storage_offset_alignment_bytes.max(4);
        if !extent.address.is_multiple_of(alignment) || !extent.size_bytes.is_multiple_of(4) {
            return Err(Error::unsupported(
                format!("{} bytes at {:#x}, in place", extent.size_bytes, extent.address),
                format!(
                    "a buffer begins at a multiple of {alignment} bytes and has whole words; copy the tensor"
                ),
            ));
        }
        let (place, path) = match label.kind {
            abi::kind::CUDA_HOST => (Place::Host, HostPath::HostMemory),
            abi::kind::CUDA_MANAGED => (Place::Managed, HostPath::Unified),
            _ => (Place::Device, HostPath::DeviceOnly),
        };
        let keep: Box<dyn Any + Send + Sync> = Box::new(tensor);
        // SAFETY: the caller's promise; the tensor is what is kept.
        let memory = unsafe { cuda.adopt(extent.address, extent.size_bytes, place, keep)? };
        let visible = place != Place::Device;
        let wish = Wish { host: HostAccess::ReadWrite, ..Wish::default() };
        let placement = Placement {
            asked: Intent { size_bytes: extent.size_bytes, host: HostAccess::ReadWrite, ..Intent::default() },
            kind: "another library's tensor".into(),
            path,
            semantic: Some(Semantic::Framework),
            cached: true,
            coherent: true,
            exportable: false,
            way: None,
            staged: !visible,
            host_cost: Some(if place == Place::Managed { CostClass::Migrating } else { CostClass::Cached }),
            device_cost: if place == Place::Host { CostClass::OverBus } else { CostClass::Cached },
            fell_back_from: None,
            lost: Vec::new(),
        };
        let storage = Storage::given(device, memory, Origin::Own, extent.size_bytes, wish, None, placement);
        debug_assert_eq!(storage.bytes, (len * size_of::<T>()) as u64);
        Ok(Buffer::new(storage))
    }
}

fn checked_shape(shape: &[usize], len: usize) -> Result<Vec<i64>> {
    let product = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    let signed: Option<Vec<i64>> = shape.iter().map(|&size| i64::try_from(size).ok()).collect();
    match signed {
        Some(signed) if product == Some(len) => Ok(signed),
        _ => Err(Error::InvalidArgument(format!("the shape {shape:?} is not that of {len} element(s)"))),
    }
}

fn refused(error: onebuf_dlpack::Error) -> Error {
    match error {
        onebuf_dlpack::Error::Unsupported(what) => Error::unsupported(what, "DLPack has no such tensor"),
        other => Error::InvalidArgument(other.to_string()),
    }
}
