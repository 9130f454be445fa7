//! Tensors with an owner, as they go from library to library.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::abi::{
    self, IS_COPIED, Legacy, READ_ONLY, RawTensor, SUB_BYTE_PADDED, VERSION, Version, Versioned,
};
use crate::layout::c_order;
use crate::{DataType, Error, Result, Tensor};

/// The name of a Python capsule with a [`Versioned`] tensor that nobody took yet.
pub const CAPSULE_VERSIONED: &CStr = c"dltensor_versioned";
/// Its name once somebody took it: whoever renames it calls the deleter, and the capsule's destructor no longer does.
pub const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
/// The name of a Python capsule with a [`Legacy`] tensor that nobody took yet.
pub const CAPSULE_LEGACY: &CStr = c"dltensor";
/// Its name once somebody took it.
pub const USED_LEGACY: &CStr = c"used_dltensor";

/// A tensor and the duty to call its deleter, which dropping it does.
#[derive(Debug)]
pub struct Managed {
    tensor: Tensor,
    owner: Owner,
}

/// Which of DLPack's two structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With a version and flags.
    Versioned,
    /// Without.
    Legacy,
}

enum Owner {
    /// Of this process, and in no structure yet.
    Ours {
        _keep: Box<dyn Any + Send>,
    },
    Versioned(NonNull<Versioned>),
    Legacy(NonNull<Legacy>),
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Owner::Ours { .. } => "ours",
            Owner::Versioned(_) => "versioned",
            Owner::Legacy(_) => "legacy",
        })
    }
}

// SAFETY: the structures are read when they are taken and by their deleter; DLPack lets that be called on any thread.
// What the tensor points to is touched by nobody here.
unsafe impl Send for Managed {}
// SAFETY: a shared tensor gives its numbers alone.
unsafe impl Sync for Managed {}

impl Deref for Managed {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Managed {
    /// A tensor of memory that `owner` keeps, to be given away. Dropping it instead drops the owner.
    ///
    /// # Safety
    /// The tensor's elements are valid on its device until the owner is dropped, and takers may touch them until then, for
    /// writing too unless the tensor is [read-only](Tensor::read_only).
    pub unsafe fn export(tensor: Tensor, owner: Box<dyn Any + Send>) -> Managed {
        Managed { tensor, owner: Owner::Ours { _keep: owner } }
    }

    /// Takes a tensor of the versioned form.
    ///
    /// # Errors
    /// [`Error::Malformed`] and [`Error::Unsupported`], for whatever can be seen to be wrong. The tensor then still is the
    /// caller's, deleter and all.
    ///
    /// # Safety
    /// The pointer is null, or to a structure that a producer gave and nobody else took, with as many sizes and strides
    /// as it says it has dimensions.
    pub unsafe fn import_versioned(raw: *mut Versioned) -> Result<Managed> {
        let pointer = checked(raw)?;
        // The version comes first in every version; of another, nothing else may be looked at.
        // SAFETY: the pointer is not null and aligned, and the caller says that it is such a structure.
        let version = unsafe { (&raw const (*raw).version).read() };
        if version.major != VERSION.major {
            let Version { major, minor } = version;
            return Err(Error::Unsupported(format!(
                "DLPack version {major}.{minor}; {}.x is known here",
                VERSION.major
            )));
        }
        // SAFETY: as above, now of a known layout.
        let managed = unsafe { pointer.as_ref() };
        let mut tensor = read(&managed.tensor)?;
        if managed.flags & SUB_BYTE_PADDED != 0 {
            return Err(Error::Unsupported("elements of less than a byte".into()));
        }
        if managed.flags & READ_ONLY != 0 {
            tensor = tensor.read_only();
        }
        if managed.flags & IS_COPIED != 0 {
            tensor = tensor.copied();
        }
        Ok(Managed { tensor, owner: Owner::Versioned(pointer) })
    }

    /// Takes a tensor of the legacy form.
    ///
    /// # Errors
    /// As for [`Managed::import_versioned`].
    ///
    /// # Safety
    /// As for [`Managed::import_versioned`].
    pub unsafe fn import_legacy(raw: *mut Legacy) -> Result<Managed> {
        let pointer = checked(raw)?;
        // SAFETY: the pointer is not null and aligned, and the caller says that it is such a structure.
        let managed = unsafe { pointer.as_ref() };
        Ok(Managed { tensor: read(&managed.tensor)?, owner: Owner::Legacy(pointer) })
    }

    /// The form that it came in; `None` for one that was made here.
    pub fn form(&self) -> Option<Form> {
        match self.owner {
            Owner::Ours { .. } => None,
            Owner::Versioned(_) => Some(Form::Versioned),
            Owner::Legacy(_) => Some(Form::Legacy),
        }
    }

    /// The versioned form, for another library. Whoever has the pointer calls its deleter, once.
    pub fn into_versioned(self) -> NonNull<Versioned> {
        Holder::leak(self, |holder| Versioned {
            version: VERSION,
            context: holder.cast(),
            deleter: Some(delete_versioned),
            flags: 0,
            tensor: EMPTY,
        })
    }

    /// The legacy form, for another library. Whoever has the pointer calls its deleter, once.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], since the form cannot say so.
    pub fn into_legacy(self) -> Result<NonNull<Legacy>> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        Ok(Holder::leak(self, |holder| Legacy {
            tensor: EMPTY,
            context: holder.cast(),
            deleter: Some(delete_legacy),
        }))
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the structure was taken over from its producer, nobody else has it, and this is the only call. A tensor
        // without a deleter stays its producer's.
        unsafe {
            match self.owner {
                Owner::Ours { .. } => {}
                Owner::Versioned(raw) => {
                    if let Some(delete) = raw.as_ref().deleter {
                        delete(raw.as_ptr());
                    }
                }
                Owner::Legacy(raw) => {
                    if let Some(delete) = raw.as_ref().deleter {
                        delete(raw.as_ptr());
                    }
                }
            }
        }
    }
}

/// What an exported structure points to.
struct Holder<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// The tensor as it was, with its owner.
    _keep: Managed,
}

/// A tensor to be filled in.
const EMPTY: RawTensor = RawTensor {
    data: std::ptr::null_mut(),
    device: abi::Device::CPU,
    ndim: 0,
    dtype: abi::RawDataType { code: 0, bits: 8, lanes: 1 },
    shape: std::ptr::null_mut(),
    strides: std::ptr::null_mut(),
    byte_offset: 0,
};

/// The two structures, where they are alike.
trait Structure {
    fn tensor(&mut self) -> &mut RawTensor;
    fn set_flags(&mut self, flags: u64);
}

impl Structure for Versioned {
    fn tensor(&mut self) -> &mut RawTensor {
        &mut self.tensor
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }
}

impl Structure for Legacy {
    fn tensor(&mut self) -> &mut RawTensor {
        &mut self.tensor
    }

    fn set_flags(&mut self, _: u64) {}
}

impl<M: Structure> Holder<M> {
    fn leak(keep: Managed, make: impl Fn(*mut Holder<M>) -> M) -> NonNull<M> {
        let tensor = &keep.tensor;
        let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
        let flags = if tensor.is_read_only() { READ_ONLY } else { 0 }
            | if tensor.is_copied() { IS_COPIED } else { 0 };
        let raw = RawTensor {
            // "If the tensor is of size zero, the data pointer should be null."
            data: if tensor.is_empty() { std::ptr::null_mut() } else { tensor.data() },
            device: tensor.device(),
            ndim: shape.len() as i32,
            dtype: tensor.dtype().raw(),
            byte_offset: if tensor.is_empty() { 0 } else { tensor.byte_offset() },
            ..EMPTY
        };
        let managed = make(std::ptr::null_mut());
        let holder = Box::into_raw(Box::new(Holder { managed, shape, strides, _keep: keep }));
        // SAFETY: the holder was made just now, and nobody else has it. What the structure points to is on the heap, at
        // addresses that stay.
        unsafe {
            (*holder).managed = make(holder);
            (*holder).managed.set_flags(flags);
            let (shape, strides) = ((*holder).shape.as_mut_ptr(), (*holder).strides.as_mut_ptr());
            *(*holder).managed.tensor() = RawTensor { shape, strides, ..raw };
            NonNull::new_unchecked(&raw mut (*holder).managed)
        }
    }
}

/// Drops a holder. A panic of the owner's ends here: it may not unwind into C.
///
/// # Safety
/// The pointer is what [`Holder::leak`] wrote as the context, and this is its only call.
unsafe fn release<M>(context: *mut c_void) {
    // SAFETY: the caller's promise.
    let holder = unsafe { Box::from_raw(context.cast::<Holder<M>>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(holder)));
}

unsafe extern "C" fn delete_versioned(raw: *mut Versioned) {
    if let Some(raw) = NonNull::new(raw) {
        // SAFETY: whoever has the structure calls this once, by the rules of DLPack.
        unsafe { release::<Versioned>(raw.as_ref().context) };
    }
}

unsafe extern "C" fn delete_legacy(raw: *mut Legacy) {
    if let Some(raw) = NonNull::new(raw) {
        // SAFETY: as above.
        unsafe { release::<Legacy>(raw.as_ref().context) };
    }
}

fn checked<M>(raw: *mut M) -> Result<NonNull<M>> {
    let pointer = NonNull::new(raw).ok_or_else(|| Error::Malformed("the pointer to it is null".into()))?;
    if !pointer.is_aligned() {
        return Err(Error::Malformed(format!("the pointer to it, {raw:p}, is not aligned")));
    }
    Ok(pointer)
}

/// The numbers of a tensor that came from outside, copied and checked.
fn read(raw: &RawTensor) -> Result<Tensor> {
    let ndim =
        usize::try_from(raw.ndim).map_err(|_| Error::Malformed(format!("it has {} dimensions", raw.ndim)))?;
    if ndim > 64 {
        return Err(Error::Malformed(format!("it has {ndim} dimensions, and 64 are allowed")));
    }
    let shape = numbers(raw.shape, ndim, "shape")?.unwrap_or_default();
    if shape.len() != ndim {
        return Err(Error::Malformed(format!("it has {ndim} dimension(s) and no shape")));
    }
    let strides = match numbers(raw.strides, ndim, "strides")? {
        Some(strides) => strides,
        None => c_order(&shape)?,
    };
    let dtype = DataType::check(raw.dtype)?;
    Tensor::strided(raw.data, raw.device, dtype, &shape, &strides, raw.byte_offset)
}

/// `None` for a null pointer.
fn numbers(pointer: *mut i64, count: usize, what: &str) -> Result<Option<Vec<i64>>> {
    if pointer.is_null() {
        return Ok((count == 0).then(Vec::new));
    }
    if !pointer.is_aligned() {
        return Err(Error::Malformed(format!("the pointer to its {what} is not aligned")));
    }
    // SAFETY: the pointer is aligned and not null, and the one who took the tensor says that it is to `count` numbers.
    Ok(Some(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec()))
}
