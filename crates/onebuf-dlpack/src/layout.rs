//! Shapes and strides, and the bytes that they reach.

use std::ffi::c_void;

use crate::abi::{Device, kind};
use crate::{DataType, Error, Result};

/// More dimensions than any array library has.
const MOST_DIMENSIONS: usize = 64;

/// A tensor without an owner: where its elements are, of what type, in what order. Its numbers have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    data: *mut c_void,
    device: Device,
    dtype: DataType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    byte_offset: u64,
    read_only: bool,
    copied: bool,
}

/// The bytes that a tensor's elements lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The lowest address.
    pub address: u64,
    /// Length in bytes; 0 where there are no elements.
    pub size_bytes: u64,
}

impl Tensor {
    /// A tensor in the order of C: the last index is the fastest.
    ///
    /// # Errors
    /// Those of [`Tensor::strided`].
    pub fn contiguous(data: *mut c_void, device: Device, dtype: DataType, shape: &[i64]) -> Result<Tensor> {
        let strides = c_order(shape)?;
        Tensor::strided(data, device, dtype, shape, &strides, 0)
    }

    /// A tensor with any strides, in elements, whose first element is `byte_offset` bytes behind `data`.
    ///
    /// # Errors
    /// [`Error::Malformed`] for negative sizes, a null pointer where there are elements, more than 64 dimensions, strides
    /// of another number, an address that does not fit 64 bits; [`Error::Unsupported`] for a device that is not known.
    pub fn strided(
        data: *mut c_void,
        device: Device,
        dtype: DataType,
        shape: &[i64],
        strides: &[i64],
        byte_offset: u64,
    ) -> Result<Tensor> {
        check_device(device)?;
        if shape.len() > MOST_DIMENSIONS {
            return bad(format!("it has {} dimensions, and {MOST_DIMENSIONS} are allowed", shape.len()));
        }
        if shape.len() != strides.len() {
            return bad(format!("it has {} dimension(s) and {} stride(s)", shape.len(), strides.len()));
        }
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        let tensor =
            Tensor { data, device, dtype, shape, strides, byte_offset, read_only: false, copied: false };
        let extent = tensor.find_extent()?;
        if extent.size_bytes > 0 && data.is_null() {
            return bad("its pointer is null, and it has elements".into());
        }
        Ok(tensor)
    }

    /// The same, for takers that may only read it.
    pub fn read_only(self) -> Tensor {
        Tensor { read_only: true, ..self }
    }

    /// The same, marked as a copy that was made for the taker.
    pub fn copied(self) -> Tensor {
        Tensor { copied: true, ..self }
    }

    /// The memory; the first element is [`Tensor::byte_offset`] behind it.
    pub fn data(&self) -> *mut c_void {
        self.data
    }

    /// Where the memory lies.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The element type.
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Elements from one index to the next, for each dimension. They may be 0 or negative.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Bytes from [`Tensor::data`] to the first element.
    pub fn byte_offset(&self) -> u64 {
        self.byte_offset
    }

    /// Whether the taker may only read it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether it is a copy that was made for the taker.
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        // Checked to fit when the tensor was made.
        self.shape.iter().map(|&size| size as u64).product()
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// True where the elements lie one behind the other in the order of C. The stride of a dimension of one index says
    /// nothing.
    pub fn is_contiguous(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut expected = 1i64;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            fits
        })
    }

    /// The bytes that the elements lie in.
    pub fn extent(&self) -> Extent {
        // Checked when the tensor was made.
        self.find_extent().unwrap_or(Extent { address: 0, size_bytes: 0 })
    }

    fn find_extent(&self) -> Result<Extent> {
        if let Some(size) = self.shape.iter().find(|&&size| size < 0) {
            return bad(format!("a dimension has {size} elements"));
        }
        let address = (self.data.addr() as u64).checked_add(self.byte_offset);
        let Some(address) = address else {
            return bad(format!("{} bytes behind its pointer there are no addresses", self.byte_offset));
        };
        if self.is_empty() {
            return Ok(Extent { address, size_bytes: 0 });
        }
        let elements = self.shape.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(self.dtype.size_bytes() as i64));
        if bytes.is_none() {
            return bad(format!("the shape {:?} has more bytes than 63 bits count", self.shape));
        }
        // Sums of 64 products of 63 bits each fit 128.
        let (mut lowest, mut highest) = (0i128, 0i128);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = i128::from(size - 1) * i128::from(stride);
            if reach < 0 { lowest += reach } else { highest += reach }
        }
        let element = i128::from(self.dtype.size_bytes());
        let scaled = |elements: i128| elements.checked_mul(element);
        let first = scaled(lowest).and_then(|bytes| bytes.checked_add(i128::from(address)));
        let size = (highest - lowest).checked_add(1).and_then(scaled);
        let end = first.zip(size).and_then(|(first, size)| first.checked_add(size));
        match (first.map(u64::try_from), size.map(u64::try_from), end.map(u64::try_from)) {
            (Some(Ok(address)), Some(Ok(size_bytes)), Some(Ok(_))) => Ok(Extent { address, size_bytes }),
            _ => bad(format!(
                "the strides {:?} of the shape {:?} reach past the addresses of 64 bits",
                self.strides, self.shape
            )),
        }
    }
}

/// The strides of a shape in the order of C. Dimensions without elements count as one, so that all are positive.
///
/// # Errors
/// [`Error::Malformed`] where one does not fit 64 bits.
pub(crate) fn c_order(shape: &[i64]) -> Result<Vec<i64>> {
    let mut strides = vec![1i64; shape.len()];
    for place in (1..shape.len()).rev() {
        let next = strides[place].checked_mul(shape[place].max(1));
        strides[place - 1] = next.ok_or_else(|| {
            Error::Malformed(format!("the shape {shape:?} has more elements than 63 bits count"))
        })?;
    }
    Ok(strides)
}

fn check_device(device: Device) -> Result<()> {
    if !(kind::CPU..=kind::LAST).contains(&device.kind) || matches!(device.kind, 5 | 6) {
        return Err(Error::Unsupported(format!("memory of device type {}", device.kind)));
    }
    if device.id < 0 {
        return bad(format!("it is of device number {}", device.id));
    }
    Ok(())
}

fn bad<T>(what: String) -> Result<T> {
    Err(Error::Malformed(what))
}
