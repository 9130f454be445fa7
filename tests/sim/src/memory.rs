//! Memory of another device, in memory of the real one.
//!
//! Non-coherent memory is simulated by a shadow: the CPU works on a copy, a flush puts whole atoms of it into the real
//! memory, an invalidation fetches whole atoms. What was never fetched reads as [`POISON`].

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use onebuf_core::backend::{Export, Memory};
use onebuf_core::{Error, HandleKind, Result};
use parking_lot::Mutex;

use crate::control::{Call, Control};

/// What the CPU reads from non-coherent memory that it did not invalidate.
pub(crate) const POISON: u8 = 0xa5;

pub(crate) struct SimMemory {
    pub(crate) inner: Arc<dyn Memory>,
    pub(crate) control: Arc<Control>,
    /// False for memory that the CPU cannot see.
    pub(crate) visible: bool,
    pub(crate) shadow: Option<Shadow>,
    /// The rest of its heap, and what it took from it.
    pub(crate) heap: Option<(Arc<HeapRest>, u64)>,
}

/// Bytes that a heap still has.
pub(crate) struct HeapRest(pub(crate) Mutex<u64>);

/// The CPU's view of non-coherent memory.
pub(crate) struct Shadow {
    /// Never looked at but through `pointer`, which users hold.
    _bytes: Box<[Line]>,
    pointer: NonNull<u8>,
    atom: usize,
}

/// A cache line, for its alignment.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

// SAFETY: the pointer is to `_bytes`, which the shadow owns; who reads and writes it is decided by those who hold the
// memory's host pointer, as for any memory.
unsafe impl Send for Shadow {}
// SAFETY: as above.
unsafe impl Sync for Shadow {}

impl Shadow {
    pub(crate) fn new(size_bytes: u64, atom_bytes: u64) -> Shadow {
        let lines = (size_bytes as usize).div_ceil(64);
        let mut bytes = vec![Line([POISON; 64]); lines].into_boxed_slice();
        let pointer = NonNull::from(&mut *bytes).cast();
        Shadow { _bytes: bytes, pointer, atom: atom_bytes.max(1) as usize }
    }
}

impl SimMemory {
    /// The shadow, the real bytes and the whole atoms of a range, up to the end of the memory.
    fn atoms(&self, offset_bytes: u64, size_bytes: u64) -> Option<(NonNull<u8>, NonNull<u8>, usize, usize)> {
        let shadow = self.shadow.as_ref()?;
        let Some(real) = self.inner.host_pointer() else {
            self.control.violation("non-coherent memory without a pointer to the real one".into());
            return None;
        };
        let size = self.inner.size_bytes() as usize;
        let start = offset_bytes as usize / shadow.atom * shadow.atom;
        let end = ((offset_bytes + size_bytes) as usize).next_multiple_of(shadow.atom).min(size);
        Some((shadow.pointer, real, start, end))
    }

    fn check_range(&self, what: &str, offset_bytes: u64, size_bytes: u64) {
        let size = self.inner.size_bytes();
        if offset_bytes.checked_add(size_bytes).is_none_or(|end| end > size) {
            self.control.violation(format!("{what} of {size_bytes} bytes from {offset_bytes} of {size}"));
        }
        if !self.visible {
            self.control.violation(format!("{what} of memory that the CPU cannot see"));
        }
    }
}

impl Memory for SimMemory {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        match &self.shadow {
            _ if !self.visible => None,
            Some(shadow) => Some(shadow.pointer),
            None => self.inner.host_pointer(),
        }
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn flush(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        self.control.enter(Call::Flush)?;
        self.check_range("a flush", offset_bytes, size_bytes);
        if let Some((shadow, real, start, end)) = self.atoms(offset_bytes, size_bytes) {
            // SAFETY: both are mapped for the memory's size. The caller has the CPU's turn on the range, and what else is
            // in its atoms is what the simulation is about.
            unsafe { shadow.add(start).copy_to_nonoverlapping(real.add(start), end - start) };
        }
        self.inner.flush(offset_bytes, size_bytes)
    }

    fn invalidate(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        self.control.enter(Call::Invalidate)?;
        self.check_range("an invalidation", offset_bytes, size_bytes);
        self.inner.invalidate(offset_bytes, size_bytes)?;
        if let Some((shadow, real, start, end)) = self.atoms(offset_bytes, size_bytes) {
            for at in start..end {
                // SAFETY: as in `flush`. A byte that is the same already is left alone, since another reader's guard may be
                // looking at it.
                unsafe {
                    let fresh = real.add(at).read();
                    if shadow.add(at).read() != fresh {
                        shadow.add(at).write(fresh);
                    }
                }
            }
        }
        Ok(())
    }

    fn export(&self, handle: HandleKind) -> Result<Export> {
        self.control.enter(Call::Export)?;
        self.inner.export(handle)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        if let Some((heap, bytes)) = &self.heap {
            *heap.0.lock() += *bytes;
        }
    }
}

/// The real memory behind a simulated one.
pub(crate) fn real(memory: &Arc<dyn Memory>) -> Result<&Arc<dyn Memory>> {
    let simulated: Option<&SimMemory> = memory.as_any().downcast_ref();
    simulated.map(|memory| &memory.inner).ok_or_else(|| {
        Error::InvalidArgument("memory of another backend was given to a simulated device".into())
    })
}
