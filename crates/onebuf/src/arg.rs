//! Arguments of a launch: buffers in the order of the kernel's bindings, and one value for its `var<immediate>`.

use std::any::TypeId;
use std::sync::Arc;

use bytemuck::{NoUninit, Pod};
use onebuf_core::Scalar;

use crate::buffer::{Buffer, BufferSlice};
use crate::storage::Storage;

/// One argument. [`args!`](crate::args) makes them; [`Arg::buffer`] and [`Arg::immediates`] are for lists made at run time.
#[derive(Clone, Copy)]
pub struct Arg<'a>(pub(crate) ArgKind<'a>);

#[derive(Clone, Copy)]
pub(crate) enum ArgKind<'a> {
    Buffer(Span<'a>),
    Immediates(&'a [u8]),
}

/// Bytes of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) storage: &'a Arc<Storage>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) scalar: Option<Scalar>,
}

impl<'a> Span<'a> {
    /// The size that is bound: up to the next whole word where the span ends with the buffer.
    pub(crate) fn bound_size(&self) -> u64 {
        if self.size > 0 && self.offset + self.size == self.storage.bytes {
            self.storage.padded - self.offset
        } else {
            self.size
        }
    }
}

impl<'a> Arg<'a> {
    /// A buffer or a slice of one.
    pub fn buffer<T: Pod>(part: impl Into<BufferSlice<'a, T>>) -> Arg<'a> {
        Arg(ArgKind::Buffer(part.into().span))
    }

    /// The bytes of the kernel's `var<immediate>`.
    pub fn immediates(bytes: &'a [u8]) -> Arg<'a> {
        Arg(ArgKind::Immediates(bytes))
    }
}

/// What can stand in [`args!`](crate::args): `&Buffer`, [`BufferSlice`], and plain values, which become the kernel's
/// `var<immediate>`.
pub trait AsArg {
    /// The argument.
    fn as_arg(&self) -> Arg<'_>;
}

impl<T: Pod> AsArg for Buffer<T> {
    fn as_arg(&self) -> Arg<'_> {
        Arg(ArgKind::Buffer(self.span()))
    }
}

impl<T: Pod> AsArg for &Buffer<T> {
    fn as_arg(&self) -> Arg<'_> {
        Arg(ArgKind::Buffer(self.span()))
    }
}

impl<T: Pod> AsArg for BufferSlice<'_, T> {
    fn as_arg(&self) -> Arg<'_> {
        Arg(ArgKind::Buffer(self.span))
    }
}

impl<T: NoUninit> AsArg for T {
    fn as_arg(&self) -> Arg<'_> {
        Arg(ArgKind::Immediates(bytemuck::bytes_of(self)))
    }
}

/// The arguments of a launch, on the stack: buffers in the order of the kernel's bindings (sorted by group and
/// binding), and among them, usually last, the value of its `var<immediate>`.
///
/// ```no_run
/// # use onebuf::{args, Buffer, Kernel, Stream};
/// # fn launch(stream: &Stream, blur: &Kernel, image: &Buffer<u32>, output: &Buffer<u32>) -> onebuf::Result<()> {
/// #[derive(Clone, Copy, bytemuck::NoUninit)]
/// #[repr(C)]
/// struct Params {
///     width: u32,
///     radius: f32,
/// }
/// let params = Params { width: 640, radius: 1.5 };
/// stream.launch(blur, [40, 30, 1], args![image, output, params])?;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        &[$($crate::AsArg::as_arg(&$arg)),*] as &[$crate::Arg<'_>]
    };
}

/// The scalar that a type is made of, where that is known: what kernels declare as the element of an array.
pub(crate) fn scalar_of<T: 'static>() -> Option<Scalar> {
    macro_rules! table {
        ($($scalar:ident: $t:ty),*) => {
            $(if is::<T, $t>() || is_array::<T, $t>() { return Some(Scalar::$scalar); })*
        };
    }
    table!(F32: f32, U32: u32, I32: i32, U8: u8, F16: half::f16, I8: i8, U16: u16, I16: i16, U64: u64, I64: i64, F64: f64);
    None
}

fn is<T: 'static, U: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<U>()
}

/// Vectors and matrices are written as arrays of these lengths.
fn is_array<T: 'static, U: 'static>() -> bool {
    is::<T, [U; 2]>()
        || is::<T, [U; 3]>()
        || is::<T, [U; 4]>()
        || is::<T, [U; 1]>()
        || is::<T, [U; 8]>()
        || is::<T, [U; 16]>()
        || is::<T, [[U; 2]; 2]>()
        || is::<T, [[U; 3]; 3]>()
        || is::<T, [[U; 4]; 4]>()
}
