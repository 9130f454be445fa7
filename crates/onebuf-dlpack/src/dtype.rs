//! Element types.

use crate::abi::RawDataType;
use crate::{Error, Result};

/// An element type whose elements are whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataType(RawDataType);

/// Values of `DLDataTypeCode`.
mod code {
    pub(super) const INT: u8 = 0;
    pub(super) const UINT: u8 = 1;
    pub(super) const FLOAT: u8 = 2;
    pub(super) const BFLOAT: u8 = 4;
    pub(super) const COMPLEX: u8 = 5;
    pub(super) const BOOL: u8 = 6;
    /// The highest that the standard has given out (`kDLFloat4_e2m1fn`).
    pub(super) const LAST: u8 = 17;
}

/// Rust types that have a DLPack element type.
pub trait Element: Send + Sync + 'static {
    /// It.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($ty:ty: $code:ident $bits:literal,)*) => {$(
        impl Element for $ty {
            const DATA_TYPE: DataType = DataType(RawDataType { code: code::$code, bits: $bits, lanes: 1 });
        }
    )*};
}

elements! {
    i8: INT 8,
    i16: INT 16,
    i32: INT 32,
    i64: INT 64,
    u8: UINT 8,
    u16: UINT 16,
    u32: UINT 32,
    u64: UINT 64,
    f32: FLOAT 32,
    f64: FLOAT 64,
    half::f16: FLOAT 16,
    half::bf16: BFLOAT 16,
    bool: BOOL 8,
}

impl DataType {
    /// The type of a Rust type's values.
    pub const fn of<T: Element>() -> DataType {
        T::DATA_TYPE
    }

    /// Complex numbers of two floats: `complex(64)` has two `f32`.
    pub const fn complex(bits: u8) -> DataType {
        DataType(RawDataType { code: code::COMPLEX, bits, lanes: 1 })
    }

    /// The same scalar, so many to an element.
    pub const fn with_lanes(self, lanes: u16) -> DataType {
        DataType(RawDataType { lanes, ..self.0 })
    }

    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        self.0.bits as u64 * self.0.lanes as u64 / 8
    }

    /// As C has it.
    pub const fn raw(self) -> RawDataType {
        self.0
    }

    /// Checks a type that came from outside.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for codes that are not known and elements that are no whole bytes; [`Error::Malformed`] for
    /// elements without bits.
    pub fn check(raw: RawDataType) -> Result<DataType> {
        let RawDataType { code, bits, lanes } = raw;
        if code > code::LAST {
            return Err(Error::Unsupported(format!(
                "element type code {code}; 0 to {} are known",
                code::LAST
            )));
        }
        if bits == 0 || lanes == 0 {
            return Err(Error::Malformed(format!("its elements have {lanes} lane(s) of {bits} bit(s)")));
        }
        if !(u32::from(bits) * u32::from(lanes)).is_multiple_of(8) {
            return Err(Error::Unsupported(format!(
                "elements of {lanes} lane(s) of {bits} bit(s), no whole bytes"
            )));
        }
        Ok(DataType(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_size_of_their_values() {
        fn same<T: Element>() {
            assert_eq!(DataType::of::<T>().size_bytes(), size_of::<T>() as u64);
            assert_eq!(DataType::check(DataType::of::<T>().raw()), Ok(DataType::of::<T>()));
        }
        same::<i8>();
        same::<u16>();
        same::<i32>();
        same::<u64>();
        same::<f32>();
        same::<f64>();
        same::<half::f16>();
        same::<half::bf16>();
        same::<bool>();
        assert_eq!(DataType::complex(128).size_bytes(), 16);
        assert_eq!(DataType::of::<f32>().with_lanes(4).size_bytes(), 16);
    }

    #[test]
    fn what_is_no_type_is_refused() {
        let check = |code, bits, lanes| DataType::check(RawDataType { code, bits, lanes });
        assert!(matches!(check(18, 32, 1), Err(Error::Unsupported(_))));
        assert!(matches!(check(2, 0, 1), Err(Error::Malformed(_))));
        assert!(matches!(check(2, 32, 0), Err(Error::Malformed(_))));
        assert!(matches!(check(17, 4, 1), Err(Error::Unsupported(_))));
        assert_eq!(check(17, 4, 2).unwrap().size_bytes(), 1);
        assert_eq!(check(0, 255, u16::MAX - 7).unwrap().size_bytes(), 255 * (65_535 - 7) / 8);
    }
}
