//! Whose work must wait for the producer's: the argument `stream` of Python's `__dlpack__`.

use std::num::NonZeroUsize;

use crate::{Error, Result};

/// The stream on which a consumer is going to use a tensor, as its `__dlpack__(stream=..)` says. The producer makes that
/// stream wait for the work that it still has on the memory.
///
/// The numbers are those of CUDA in the [array API standard](https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html);
/// for the CPU's memory no stream is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConsumerStream {
    /// `None`: nothing was said. It is the legacy default stream for memory that only a device uses; a library of the CPU, as
    /// NumPy is, says nothing either.
    #[default]
    Unsaid,
    /// `-1`: nobody waits. The consumer knows that the work is done, or orders itself.
    Unordered,
    /// `1`: CUDA's legacy default stream.
    Legacy,
    /// `2`: the default stream of the calling thread.
    PerThread,
    /// A stream of the driver by its address (`CUstream`), above 2.
    Raw(NonZeroUsize),
}

impl ConsumerStream {
    /// What an argument of Python says: `None`, or an integer.
    ///
    /// A [`ConsumerStream::Raw`] is a number until somebody uses it: who does so promises that it is a live stream.
    ///
    /// # Errors
    /// [`Error::Stream`] for 0, which could be any of the default streams, and for what is no address.
    pub fn from_python(stream: Option<i128>) -> Result<ConsumerStream> {
        let Some(stream) = stream else { return Ok(ConsumerStream::Unsaid) };
        match stream {
            -1 => Ok(ConsumerStream::Unordered),
            1 => Ok(ConsumerStream::Legacy),
            2 => Ok(ConsumerStream::PerThread),
            3.. => usize::try_from(stream)
                .ok()
                .and_then(NonZeroUsize::new)
                .map(ConsumerStream::Raw)
                .ok_or(Error::Stream(stream)),
            _ => Err(Error::Stream(stream)),
        }
    }

    /// The stream as CUDA's driver has it, whose default streams have these numbers too (`CU_STREAM_LEGACY`,
    /// `CU_STREAM_PER_THREAD`); `None` for [`ConsumerStream::Unordered`].
    pub fn cuda(self) -> Option<NonZeroUsize> {
        match self {
            ConsumerStream::Unordered => None,
            ConsumerStream::Unsaid | ConsumerStream::Legacy => NonZeroUsize::new(1),
            ConsumerStream::PerThread => NonZeroUsize::new(2),
            ConsumerStream::Raw(address) => Some(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_streams_or_errors() {
        let raw = |address| ConsumerStream::Raw(NonZeroUsize::new(address).unwrap());
        for (said, meant, cuda) in [
            (None, ConsumerStream::Unsaid, Some(1)),
            (Some(-1), ConsumerStream::Unordered, None),
            (Some(1), ConsumerStream::Legacy, Some(1)),
            (Some(2), ConsumerStream::PerThread, Some(2)),
            (Some(3), raw(3), Some(3)),
            (Some(0x7f00_1234_5670), raw(0x7f00_1234_5670), Some(0x7f00_1234_5670)),
            (Some(usize::MAX as i128), raw(usize::MAX), Some(usize::MAX)),
        ] {
            let stream = ConsumerStream::from_python(said).unwrap();
            assert_eq!((stream, stream.cuda().map(NonZeroUsize::get)), (meant, cuda), "{said:?}");
        }
        for wrong in [0, -2, i128::MIN, usize::MAX as i128 + 1, i128::MAX] {
            assert_eq!(ConsumerStream::from_python(Some(wrong)), Err(Error::Stream(wrong)));
        }
        assert_eq!(ConsumerStream::default(), ConsumerStream::Unsaid);
    }
}
