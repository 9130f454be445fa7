//! What a launch passes to a kernel: pointers, lengths, immediates, and where a part of a grid lies.

use std::ffi::c_void;

use onebuf_core::backend::{Launch, Part};
use onebuf_core::error::BindingRef;
use onebuf_core::{Binding, BindingKind, Error, KernelInterface, Result};
use onebuf_wgsl::CudaParam;
use smallvec::SmallVec;

use crate::memory::{self, CudaMemory};
use crate::program::Param;

/// The values of a kernel's parameters. Each starts at a word, and none is on the heap for kernels of common size.
#[derive(Default)]
pub(crate) struct Values {
    words: SmallVec<[u64; 40]>,
    /// The word at which each parameter starts.
    starts: SmallVec<[u32; 24]>,
    /// The word at which the base of the grid starts, where the kernel takes one.
    base: Option<usize>,
    /// Some of the buffers are unified memory.
    pub(crate) has_unified: bool,
}

impl Values {
    /// Takes the values of a launch, into a value that is empty.
    ///
    /// # Errors
    /// [`Error::BindingMismatch`] where a binding is not aligned as its type wants, or may not be written;
    /// [`Error::LimitExceeded`] where an array is longer than a kernel can count.
    pub(crate) fn fill(
        &mut self,
        interface: &KernelInterface,
        params: &[Param],
        launch: &Launch<'_>,
    ) -> Result<()> {
        for param in params {
            self.starts.push(self.words.len() as u32);
            match *param {
                Param::Pointer { binding, alignment_bytes } => {
                    let (described, part) = bound(interface, launch, binding)?;
                    let memory = memory::of(part)?;
                    self.has_unified |= memory.is_unified();
                    self.words.push(address(interface, described, part, memory, alignment_bytes)?);
                }
                Param::Length { binding, offset_bytes, stride_bytes } => {
                    let (described, part) = bound(interface, launch, binding)?;
                    let length = part.size_bytes.saturating_sub(offset_bytes) / stride_bytes.max(1);
                    if u32::try_from(length).is_err() {
                        return Err(Error::LimitExceeded {
                            what: format!(
                                "kernel `{}`, {}: elements of an array; bind slices",
                                interface.entry,
                                reference(described)
                            ),
                            required: length,
                            available: u64::from(u32::MAX),
                        });
                    }
                    self.words.push(length);
                }
                Param::Immediates { size_bytes } => self.push_bytes(launch.immediates, size_bytes),
                Param::GridBase => {
                    self.base = Some(self.words.len());
                    self.words.extend([0; 2]);
                }
                Param::GridGroups => self.words.extend(grid_words(launch.groups)),
            }
        }
        Ok(())
    }

    /// Bytes, filled up with zeros: the driver reads as many as the parameter has.
    fn push_bytes(&mut self, bytes: &[u8], size_bytes: u32) {
        let start = self.words.len();
        let count = (size_bytes as usize).max(bytes.len()).div_ceil(8).max(1);
        self.words.resize(start + count, 0);
        for (word, chunk) in self.words[start..].iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(whole);
        }
    }

    /// Says where a part of the grid begins.
    pub(crate) fn set_base(&mut self, base: [u32; 3]) {
        if let Some(start) = self.base
            && let Some(words) = self.words.get_mut(start..start + 2)
        {
            words.copy_from_slice(&grid_words(base));
        }
    }

    /// A pointer to each value, as the driver takes them. They are valid while this is borrowed.
    pub(crate) fn pointers(&mut self) -> SmallVec<[*mut c_void; 24]> {
        let words = self.words.as_mut_ptr();
        // `wrapping_add` needs no promise that the words are there; they are, by construction.
        self.starts.iter().map(|&start| words.wrapping_add(start as usize).cast()).collect()
    }
}

/// Three `u32` in two words, as memory has them.
fn grid_words([x, y, z]: [u32; 3]) -> [u64; 2] {
    let mut bytes = [0; 16];
    for (slot, value) in bytes.chunks_exact_mut(4).zip([x, y, z]) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    let [low, high] = [&bytes[..8], &bytes[8..]].map(|half| {
        let mut word = [0; 8];
        word.copy_from_slice(half);
        u64::from_ne_bytes(word)
    });
    [low, high]
}

fn bound<'a, 'b>(
    interface: &'b KernelInterface,
    launch: &'b Launch<'a>,
    binding: usize,
) -> Result<(&'b Binding, &'b Part<'a>)> {
    let both = interface.bindings.get(binding).zip(launch.bindings.get(binding));
    both.ok_or_else(|| Error::BindingMismatch {
        kernel: interface.entry.clone(),
        binding: BindingRef::List,
        problem: format!("{} buffer(s) given, {} wanted", launch.bindings.len(), interface.bindings.len()),
    })
}

fn address(
    interface: &KernelInterface,
    binding: &Binding,
    part: &Part<'_>,
    memory: &CudaMemory,
    alignment_bytes: u64,
) -> Result<u64> {
    let address = memory.pointer.wrapping_add(part.offset_bytes);
    let fail = |problem: String| {
        let (kernel, binding) = (interface.entry.clone(), reference(binding));
        Err(Error::BindingMismatch { kernel, binding, problem })
    };
    if address & (alignment_bytes - 1) != 0 {
        // One misaligned load would end the context, and all work of the process on the device.
        return fail(format!(
            "its first byte is at address {address:#x}, and `{}` wants a multiple of {alignment_bytes}; import memory that is aligned so, or bind a slice that begins there",
            binding.ty
        ));
    }
    if memory.read_only && binding.access.writes() {
        return fail("the kernel writes it, and the imported pages may only be read".into());
    }
    Ok(address)
}

fn reference(binding: &Binding) -> BindingRef {
    BindingRef::Slot { name: binding.name.clone(), slot: binding.slot }
}

/// The parameters of a kernel that was printed from WGSL.
pub(crate) fn from_wgsl(interface: &KernelInterface, params: &[CudaParam]) -> Vec<Param> {
    let binding = |index: usize| interface.bindings.get(index);
    let one = |param: &CudaParam| match *param {
        CudaParam::Buffer { binding: index } => Param::Pointer {
            binding: index,
            alignment_bytes: binding(index).map_or(16, |b| alignment(interface, b)),
        },
        CudaParam::Length { binding: index } => {
            let stride = binding(index).and_then(|b| b.stride_bytes).map_or(1, u64::from).max(1);
            let offset = binding(index).map_or(0, |b| b.min_bytes.saturating_sub(stride));
            Param::Length { binding: index, offset_bytes: offset, stride_bytes: stride }
        }
        CudaParam::Immediates { size_bytes } => Param::Immediates { size_bytes },
        CudaParam::GridBase => Param::GridBase,
        CudaParam::GridGroups => Param::GridGroups,
    };
    params.iter().map(one).collect()
}

/// The parameters of a kernel in CUDA C++ or PTX, as [`onebuf_core::backend::KernelSource::CudaC`] has them.
pub(crate) fn of_native(interface: &KernelInterface) -> Vec<Param> {
    let pointers = (0..interface.bindings.len()).map(|index| Param::Pointer {
        binding: index,
        alignment_bytes: alignment(interface, &interface.bindings[index]),
    });
    let immediates = (interface.immediate_bytes > 0)
        .then_some(Param::Immediates { size_bytes: interface.immediate_bytes });
    pointers.chain(immediates).collect()
}

/// What the address of a binding must be a multiple of. The interface names sizes, not alignments: a type's alignment
/// divides its size, and no type of WGSL is aligned to more than a vec4 of its widest scalars.
fn alignment(interface: &KernelInterface, binding: &Binding) -> u64 {
    let wide = interface.features.f64 || interface.features.i64 || interface.features.i64_atomics;
    let most = if wide { 32 } else { 16 };
    let size = match (binding.kind, binding.stride_bytes.map(u64::from)) {
        // An array alone: its elements decide.
        (_, Some(stride)) if binding.min_bytes == stride => stride,
        // A struct that ends with an array: what stands before it may be aligned to more than the elements.
        (BindingKind::Storage, Some(_)) => most,
        _ => binding.min_bytes,
    };
    if size == 0 { most } else { (1 << size.trailing_zeros().min(5)).min(most) }
}

#[cfg(test)]
mod tests {
    use onebuf_core::{Access, Features, Scalar, Slot};

    use super::*;

    fn binding(ty: &str, min_bytes: u64, stride_bytes: Option<u32>) -> Binding {
        Binding {
            slot: Slot { group: 0, binding: 0 },
            name: "x".into(),
            ty: ty.into(),
            kind: BindingKind::Storage,
            access: Access::ReadWrite,
            min_bytes,
            stride_bytes,
            scalar: Some(Scalar::F32),
        }
    }

    fn interface(bindings: Vec<Binding>, features: Features) -> KernelInterface {
        KernelInterface {
            entry: "k".into(),
            workgroup_size: [1; 3],
            bindings,
            immediate_bytes: 12,
            workgroup_bytes: 0,
            features,
        }
    }

    #[test]
    fn alignments_follow_from_sizes() {
        let plain = interface(Vec::new(), Features::default());
        let wide = interface(Vec::new(), Features { f64: true, ..Features::default() });
        let cases = [
            ("array<f16>", 2, Some(2), 2, 2),
            ("array<f32>", 4, Some(4), 4, 4),
            ("array<vec2<f32>>", 8, Some(8), 8, 8),
            ("array<vec4<f32>>", 16, Some(16), 16, 16),
            ("array<vec4<f64>>", 32, Some(32), 16, 32),
            ("Header", 20, Some(4), 16, 32),
            ("u32", 4, None, 4, 4),
            ("mat4x4<f32>", 64, None, 16, 32),
            ("Pair", 12, None, 4, 4),
        ];
        for (ty, min, stride, small, large) in cases {
            assert_eq!(alignment(&plain, &binding(ty, min, stride)), small, "{ty}");
            assert_eq!(alignment(&wide, &binding(ty, min, stride)), large, "{ty} with 64-bit scalars");
        }
    }

    #[test]
    fn arrays_are_counted_from_where_they_begin() {
        let header = interface(vec![binding("Header", 20, Some(4))], Features::default());
        let params =
            [CudaParam::Buffer { binding: 0 }, CudaParam::Length { binding: 0 }, CudaParam::GridBase];
        let expected = [
            Param::Pointer { binding: 0, alignment_bytes: 16 },
            Param::Length { binding: 0, offset_bytes: 16, stride_bytes: 4 },
            Param::GridBase,
        ];
        assert_eq!(from_wgsl(&header, &params), expected);
        let native = of_native(&header);
        assert_eq!(native, [expected[0], Param::Immediates { size_bytes: 12 }]);
    }

    #[test]
    fn immediates_are_filled_up_and_grids_lie_as_in_memory() {
        let mut values = Values::default();
        values.push_bytes(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 16);
        assert_eq!(values.words.len(), 2);
        assert_eq!(values.words[1].to_ne_bytes(), [9, 10, 11, 12, 0, 0, 0, 0]);
        let mut empty = Values::default();
        empty.push_bytes(&[], 0);
        assert_eq!(empty.words.len(), 1, "a pointer to a value is never past the end");

        let (interface, memory_free) =
            (interface(Vec::new(), Features::default()), [Param::GridGroups, Param::GridBase]);
        let kernel = NoKernel;
        let kernel: std::sync::Arc<dyn onebuf_core::backend::Kernel> = std::sync::Arc::new(kernel);
        let launch = Launch { kernel: &kernel, bindings: &[], immediates: &[], groups: [70_000, 2, 3] };
        let mut values = Values::default();
        values.fill(&interface, &memory_free, &launch).unwrap();
        values.set_base([65_535, 0, 1]);
        let bytes: Vec<u8> = values.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        assert_eq!([word(0), word(4), word(8)], [70_000, 2, 3]);
        assert_eq!([word(16), word(20), word(24)], [65_535, 0, 1]);
        let pointers = values.pointers();
        assert_eq!(pointers.len(), 2);
        assert_eq!(pointers[1].addr() - pointers[0].addr(), 16);
    }

    #[test]
    fn missing_buffers_are_an_error() {
        let interface = interface(vec![binding("array<f32>", 4, Some(4))], Features::default());
        let kernel: std::sync::Arc<dyn onebuf_core::backend::Kernel> = std::sync::Arc::new(NoKernel);
        let launch = Launch { kernel: &kernel, bindings: &[], immediates: &[], groups: [1; 3] };
        let result = Values::default().fill(&interface, &of_native(&interface), &launch);
        assert!(matches!(result, Err(Error::BindingMismatch { .. })));
    }

    struct NoKernel;

    impl onebuf_core::backend::Kernel for NoKernel {
        fn interface(&self) -> &KernelInterface {
            static INTERFACE: std::sync::OnceLock<KernelInterface> = std::sync::OnceLock::new();
            INTERFACE.get_or_init(|| interface(Vec::new(), Features::default()))
        }

        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }
}
