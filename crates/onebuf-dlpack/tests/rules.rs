//! Every rule that an import checks, broken one at a time; numbers at random; deleters counted.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use onebuf_dlpack::abi::{self, Legacy, RawDataType, RawTensor, Version, Versioned};
use onebuf_dlpack::{DataType, Device, Error, Form, Managed, Tensor};
use proptest::prelude::*;

/// A structure of a producer in C, with what it points to.
struct Producer {
    shape: Vec<i64>,
    strides: Vec<i64>,
    raw: Versioned,
    _data: Vec<u8>,
}

/// Counts in the context how often it is called.
unsafe extern "C" fn count(raw: *mut Versioned) {
    // SAFETY: the context is a counter that outlives the structure.
    unsafe { (*(*raw).context.cast::<AtomicU32>()).fetch_add(1, Ordering::SeqCst) };
}

unsafe extern "C" fn count_legacy(raw: *mut Legacy) {
    // SAFETY: as above.
    unsafe { (*(*raw).context.cast::<AtomicU32>()).fetch_add(1, Ordering::SeqCst) };
}

impl Producer {
    fn new(deleted: &AtomicU32) -> Box<Producer> {
        let mut data = vec![0u8; 24];
        let tensor = RawTensor {
            data: data.as_mut_ptr().cast(),
            device: Device::CPU,
            ndim: 2,
            dtype: DataType::of::<f32>().raw(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let raw = Versioned {
            version: Version { major: 1, minor: 1 },
            context: std::ptr::from_ref(deleted).cast_mut().cast(),
            deleter: Some(count),
            flags: 0,
            tensor,
        };
        let mut producer = Box::new(Producer { shape: vec![2, 3], strides: vec![3, 1], raw, _data: data });
        producer.raw.tensor.shape = producer.shape.as_mut_ptr();
        producer.raw.tensor.strides = producer.strides.as_mut_ptr();
        producer
    }

    fn import(&mut self) -> Result<Managed, Error> {
        // SAFETY: the structure is this producer's, and lives as long.
        unsafe { Managed::import_versioned(&mut self.raw) }
    }
}

#[test]
fn each_broken_rule_is_named_and_leaves_the_tensor_with_its_producer() {
    type Break = (&'static str, fn(&mut Producer));
    let broken: [Break; 17] = [
        ("2.0", |p| p.raw.version = Version { major: 2, minor: 0 }),
        ("0.8", |p| p.raw.version = Version { major: 0, minor: 8 }),
        ("null", |p| p.raw.tensor.data = std::ptr::null_mut()),
        ("-1 dimensions", |p| p.raw.tensor.ndim = -1),
        ("65 dimensions", |p| p.raw.tensor.ndim = 65),
        ("no shape", |p| p.raw.tensor.shape = std::ptr::null_mut()),
        ("not aligned", |p| p.raw.tensor.shape = p.raw.tensor.shape.wrapping_byte_add(1)),
        ("not aligned", |p| p.raw.tensor.strides = p.raw.tensor.strides.wrapping_byte_add(4)),
        ("-2 elements", |p| p.shape[0] = -2),
        ("63 bits", |p| (p.shape[0], p.shape[1]) = (i64::MAX, 2)),
        ("64 bits", |p| (p.strides[0], p.strides[1]) = (i64::MAX, i64::MAX)),
        ("64 bits", |p| p.strides[0] = i64::MIN),
        ("no addresses", |p| p.raw.tensor.byte_offset = u64::MAX),
        ("device type 99", |p| p.raw.tensor.device.kind = 99),
        ("device number -1", |p| p.raw.tensor.device.id = -1),
        ("type code 99", |p| p.raw.tensor.dtype.code = 99),
        ("less than a byte", |p| p.raw.flags = abi::SUB_BYTE_PADDED),
    ];
    for (named, break_it) in broken {
        let deleted = AtomicU32::new(0);
        let mut producer = Producer::new(&deleted);
        break_it(&mut producer);
        let error = producer.import().expect_err(named).to_string();
        assert!(error.contains(named), "`{named}` is not in: {error}");
        assert_eq!(deleted.load(Ordering::SeqCst), 0, "{named}");
    }
    // SAFETY: null and misaligned pointers are not looked behind.
    unsafe {
        assert!(Managed::import_versioned(std::ptr::null_mut()).is_err());
        assert!(Managed::import_legacy(std::ptr::null_mut()).is_err());
        assert!(Managed::import_versioned(std::ptr::without_provenance_mut(0x1001)).is_err());
    }
}

#[test]
fn what_is_allowed_is_taken() {
    type Change = (&'static str, fn(&mut Producer), [i64; 2]);
    let allowed: [Change; 5] = [
        ("a newer minor version", |p| p.raw.version.minor = 99, [3, 1]),
        ("strides of C by omission", |p| p.raw.tensor.strides = std::ptr::null_mut(), [3, 1]),
        ("one element for all", |p| p.strides.fill(0), [0, 0]),
        ("nothing at no address", |p| (p.shape[0], p.raw.tensor.data) = (0, std::ptr::null_mut()), [3, 1]),
        ("no deleter", |p| p.raw.deleter = None, [3, 1]),
    ];
    for (what, change, strides) in allowed {
        let deleted = AtomicU32::new(0);
        let mut producer = Producer::new(&deleted);
        change(&mut producer);
        let deletes = producer.raw.deleter.is_some();
        let taken = producer.import().expect(what);
        assert_eq!(taken.strides(), strides, "{what}");
        assert_eq!(taken.form(), Some(Form::Versioned));
        drop(taken);
        assert_eq!(deleted.load(Ordering::SeqCst), u32::from(deletes), "{what}");
    }
    let deleted = AtomicU32::new(0);
    let mut producer = Producer::new(&deleted);
    producer.raw.flags = abi::READ_ONLY | abi::IS_COPIED;
    let taken = producer.import().unwrap();
    assert!(taken.is_read_only() && taken.is_copied());
    // The refusal drops it, which is its one deletion.
    assert_eq!(taken.into_legacy().unwrap_err(), Error::ReadOnly);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn deleters_run_once_on_any_thread_in_any_form() {
    let deleted = Arc::new(AtomicU32::new(0));
    for round in 0..200u32 {
        let mut producer = Producer::new(&deleted);
        let mut legacy = Legacy {
            tensor: producer.raw.tensor,
            context: producer.raw.context,
            deleter: Some(count_legacy),
        };
        // SAFETY: both structures outlive what is taken of them.
        let taken = unsafe {
            match round % 2 {
                0 => Managed::import_versioned(&mut producer.raw),
                _ => Managed::import_legacy(&mut legacy),
            }
        };
        let taken = taken.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || match round % 5 {
                0 => drop(taken),
                1 | 2 => {
                    let raw = taken.into_versioned();
                    // SAFETY: the structure is whole, and its deleter is called once.
                    unsafe { raw.as_ref().deleter.unwrap()(raw.as_ptr()) };
                }
                _ => {
                    let raw = taken.into_legacy().unwrap();
                    // SAFETY: as above.
                    unsafe { raw.as_ref().deleter.unwrap()(raw.as_ptr()) };
                }
            });
        });
        assert_eq!(deleted.load(Ordering::SeqCst), round + 1);
    }
    // SAFETY: a deleter that is given nothing does nothing.
    unsafe {
        let (managed, drops) = owned();
        let raw = managed.into_versioned();
        let delete = raw.as_ref().deleter.unwrap();
        delete(std::ptr::null_mut());
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        delete(raw.as_ptr());
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("an owner that panics must not unwind into C");
    }
}

fn owned() -> (Managed, Arc<AtomicU32>) {
    let drops = Arc::<AtomicU32>::default();
    let tensor =
        Tensor::contiguous(std::ptr::null_mut(), Device::cuda(1), DataType::of::<u8>(), &[0]).unwrap();
    // SAFETY: there are no elements.
    (unsafe { Managed::export(tensor, Box::new(Counted(drops.clone()))) }, drops)
}

fn shapes() -> impl Strategy<Value = (Vec<i64>, Vec<i64>)> {
    (0usize..5)
        .prop_flat_map(|n| (proptest::collection::vec(0i64..5, n), proptest::collection::vec(-7i64..8, n)))
}

/// Every offset in elements, the slow way.
fn offsets(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    shape.iter().zip(strides).fold(vec![0], |all, (&size, &stride)| {
        all.iter().flat_map(|&base| (0..size).map(move |i| base + i * stride)).collect()
    })
}

proptest! {
    #[test]
    fn extents_and_orders_are_those_of_the_elements((shape, strides) in shapes(), offset in 0u64..64) {
        let base = 1 << 20;
        let data = std::ptr::without_provenance_mut::<c_void>(base);
        let dtype = DataType::of::<u32>();
        let tensor = Tensor::strided(data, Device::CPU, dtype, &shape, &strides, offset).unwrap();
        let all = offsets(&shape, &strides);
        prop_assert_eq!(tensor.len(), all.len() as u64);
        let extent = tensor.extent();
        match (all.iter().min(), all.iter().max()) {
            (Some(&first), Some(&last)) => {
                let address = base as i64 + offset as i64 + 4 * first;
                prop_assert_eq!(extent.address as i64, address);
                prop_assert_eq!(extent.size_bytes as i64, 4 * (last - first + 1));
            }
            _ => prop_assert_eq!(extent.size_bytes, 0),
        }
        let in_order = all.iter().copied().eq(0..all.len() as i64);
        prop_assert_eq!(tensor.is_contiguous(), in_order);
    }

    #[test]
    fn the_order_of_c_is_contiguous_and_survives_the_way_through_c(shape in proptest::collection::vec(0i64..6, 0..6)) {
        let data = vec![0u16; shape.iter().product::<i64>() as usize];
        let pointer = data.as_ptr().cast_mut().cast::<c_void>();
        let tensor = Tensor::contiguous(pointer, Device::CUDA_HOST, DataType::of::<u16>(), &shape).unwrap();
        prop_assert!(tensor.is_contiguous());
        // SAFETY: the elements are the owner's.
        let raw = unsafe { Managed::export(tensor.clone(), Box::new(data)) }.into_versioned();
        // SAFETY: the structure is ours, and is taken once.
        let taken = unsafe { Managed::import_versioned(raw.as_ptr()) }.unwrap();
        prop_assert_eq!(taken.shape(), tensor.shape());
        prop_assert_eq!(taken.strides(), tensor.strides());
        prop_assert_eq!((taken.device(), taken.dtype()), (tensor.device(), tensor.dtype()));
        prop_assert!(taken.is_empty() || taken.data() == tensor.data());
    }

    #[test]
    fn no_numbers_make_an_import_panic(
        ndim in -2i32..6, shape in proptest::collection::vec(any::<i64>(), 6),
        strides in proptest::option::of(proptest::collection::vec(any::<i64>(), 6)),
        code in any::<u8>(), bits in any::<u8>(), lanes in any::<u16>(),
        device in any::<(i32, i32)>(), offset in any::<u64>(), data in any::<usize>(), flags in any::<u64>(),
    ) {
        let (mut shape, mut strides) = (shape, strides);
        let tensor = RawTensor {
            data: std::ptr::without_provenance_mut(data),
            device: Device { kind: device.0 % 20, id: device.1 },
            ndim,
            dtype: RawDataType { code: code % 20, bits, lanes },
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut().map_or(std::ptr::null_mut(), |strides| strides.as_mut_ptr()),
            byte_offset: offset,
        };
        let version = Version { major: 1, minor: 0 };
        let mut raw =
            Versioned { version, context: std::ptr::null_mut(), deleter: None, flags, tensor };
        // SAFETY: the structure is whole, with six sizes and strides.
        if let Ok(taken) = unsafe { Managed::import_versioned(&mut raw) } {
            let extent = taken.extent();
            prop_assert!(extent.address.checked_add(extent.size_bytes).is_some());
            prop_assert!(taken.is_empty() || extent.size_bytes >= taken.dtype().size_bytes());
        }
    }
}
