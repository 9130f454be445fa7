//! Against `dlpark`, another library for the same structures: each takes what the other gives.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlpark::allocation::dynamic;
use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use dlpark::{DlpackFlags, legacy, versioned};
use ndarray::{Array, ArrayViewD};
use onebuf_dlpack::abi::{Legacy, Versioned};
use onebuf_dlpack::{DataType, Device, Managed, Tensor};

/// Counts its drops.
struct Owner {
    words: Vec<u32>,
    drops: Arc<AtomicU32>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

fn exported(shape: &[i64], read_only: bool) -> (Managed, Arc<AtomicU32>) {
    let count: i64 = shape.iter().product();
    let drops = Arc::<AtomicU32>::default();
    let owner = Box::new(Owner { words: (0..count as u32).map(|i| i * 7).collect(), drops: drops.clone() });
    let data = owner.words.as_ptr().cast_mut().cast::<c_void>();
    let tensor = Tensor::contiguous(data, Device::CPU, DataType::of::<u32>(), shape).unwrap();
    let tensor = if read_only { tensor.read_only() } else { tensor };
    // SAFETY: the elements are the owner's, and its vector does not move.
    (unsafe { Managed::export(tensor, owner) }, drops)
}

#[test]
fn dlpark_takes_our_tensors() {
    for shape in [&[6i64][..], &[2, 3], &[1, 6, 1], &[3, 0, 2], &[]] {
        for read_only in [false, true] {
            let (managed, drops) = exported(shape, read_only);
            let raw = managed.into_versioned().cast::<DLManagedTensorVersioned>();
            // SAFETY: the structure is ours to give, and has DLPack's layout.
            let taken = unsafe { versioned::Dlpack::from_raw(raw.as_ptr()) }.unwrap();
            assert_eq!(taken.flags().contains(DlpackFlags::READ_ONLY), read_only);
            let tensor = taken.validate_export().unwrap();
            assert_eq!((tensor.shape(), tensor.byte_offset()), (shape, 0));
            assert!(tensor.strides().is_some() || shape.is_empty(), "strides are always there");
            assert_eq!((tensor.device().device_type.0, tensor.device().device_id), (1, 0));
            // SAFETY: the tensor lives, and nobody writes it.
            let words: Vec<u32> = unsafe { tensor.cpu_slice::<u32>() }.unwrap().to_vec();
            let count: i64 = shape.iter().product();
            assert_eq!(words, (0..count as u32).map(|i| i * 7).collect::<Vec<_>>(), "{shape:?}");
            assert_eq!(drops.load(Ordering::SeqCst), 0);
            // Another thread may let go of it.
            std::thread::spawn(move || drop(taken)).join().unwrap();
            assert_eq!(drops.load(Ordering::SeqCst), 1, "{shape:?}");
        }
        let (managed, drops) = exported(shape, false);
        let raw = managed.into_legacy().unwrap().cast::<DLManagedTensor>();
        // SAFETY: as above.
        let taken = unsafe { legacy::Dlpack::from_raw(raw.as_ptr()) }.unwrap();
        assert_eq!(taken.validate().unwrap().shape(), shape);
        drop(taken);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn an_array_of_another_library_is_the_same_memory() {
    let (managed, drops) = exported(&[2, 3], false);
    let raw = managed.into_versioned().cast::<DLManagedTensorVersioned>();
    // SAFETY: as above.
    let taken = unsafe { versioned::Dlpack::from_raw(raw.as_ptr()) }.unwrap();
    // SAFETY: the tensor lives, and nobody writes it.
    let view: ArrayViewD<'_, u32> = unsafe { dlpark::TryFromDlpack::try_from_dlpack(&taken, ()) }.unwrap();
    assert_eq!(view[[1, 2]], 35);
    // SAFETY: the structure lives, and is read alone.
    assert_eq!(view.as_ptr().cast::<c_void>(), unsafe { raw.as_ref() }.dl_tensor.data.cast_const());
    drop(taken);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn we_take_dlparks_tensors() {
    let array = || Box::new(Array::from_shape_vec((2, 3), vec![1.5f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap());
    let mut made: dynamic::Initialized<DLManagedTensorVersioned> = array().try_into().unwrap();
    made.set_flags(DlpackFlags::READ_ONLY).unwrap();
    // SAFETY: the array is made, and of the CPU.
    let given: versioned::Dlpack = unsafe { made.finish() };
    let raw = given.into_raw().cast::<Versioned>();
    // SAFETY: the structure is what dlpark gave, and nobody else has it.
    let taken = unsafe { Managed::import_versioned(raw) }.unwrap();
    assert_eq!((taken.shape(), taken.strides()), (&[2, 3][..], &[3, 1][..]));
    assert!(taken.is_read_only() && taken.is_contiguous() && taken.device() == Device::CPU);
    assert_eq!((taken.dtype(), taken.extent().size_bytes), (DataType::of::<f32>(), 24));
    // SAFETY: the tensor lives and has six floats.
    let floats = unsafe { std::slice::from_raw_parts(taken.data().cast::<f32>(), 6) };
    assert_eq!(floats[0] + floats[5], 7.5);
    drop(taken);

    let made: dynamic::Initialized<DLManagedTensor> = array().try_into().unwrap();
    // SAFETY: as above.
    let given: legacy::Dlpack = unsafe { made.finish() };
    let raw = given.into_raw().cast::<Legacy>();
    // SAFETY: as above.
    let taken = unsafe { Managed::import_legacy(raw) }.unwrap();
    assert!(!taken.is_read_only() && taken.len() == 6);
    // It goes on to a third library, in the other form.
    let on = taken.into_versioned().cast::<DLManagedTensorVersioned>();
    // SAFETY: as above.
    let third = unsafe { versioned::Dlpack::from_raw(on.as_ptr()) }.unwrap();
    // SAFETY: the tensor lives, and nobody writes it.
    assert_eq!(unsafe { third.validate().unwrap().cpu_slice::<f32>() }.unwrap()[2], 3.0);
}
