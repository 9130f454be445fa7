//! What can go wrong in a benchmark.

/// The result of a benchmark's step.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// onebuf said no.
    #[error(transparent)]
    Onebuf(#[from] onebuf::Error),

    /// The hand-written Vulkan or CUDA beside it failed.
    #[error("the hand-written side: {0}")]
    Raw(String),

    /// wgpu failed.
    #[error("wgpu: {0}")]
    Peer(String),

    /// The second process failed, or there is none.
    #[error("the second process: {0}")]
    Second(String),

    /// A contender computed something else than it should have.
    #[error("{who} gave a wrong result: {what}")]
    Wrong {
        /// The contender.
        who: &'static str,
        /// Expected and found.
        what: String,
    },

    /// There is no such line.
    #[error("there is no line {asked}; the lines are {lines}")]
    NoSuchLine {
        /// The number that was given.
        asked: u32,
        /// Those there are.
        lines: String,
    },
}

/// An error unless `found` is what it should be.
pub(crate) fn check<T: PartialEq + std::fmt::Debug>(who: &'static str, found: T, expected: T) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Wrong { who, what: format!("{found:?}, and it should be {expected:?}") })
}
