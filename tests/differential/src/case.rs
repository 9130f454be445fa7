//! A kernel with its inputs.

use anyhow::{Context as _, Result};
use onebuf_core::kernel::{Binding, Override};
use onebuf_wgsl::{Module, Specialized};

/// One dispatch: a kernel, what its bindings hold before, and the workgroups.
#[derive(Debug)]
pub struct Case {
    /// For messages.
    pub name: String,
    /// The WGSL.
    pub source: String,
    /// The values of overrides that `kernel` was made with.
    pub overrides: Vec<Override>,
    /// The kernel.
    pub kernel: Specialized,
    /// The bytes of each binding, in the order of the interface.
    pub buffers: Vec<Vec<u8>>,
    /// The bytes of the immediates.
    pub immediates: Vec<u8>,
    /// Workgroups along x, y and z.
    pub grid: [u32; 3],
}

impl Case {
    /// A case with one workgroup, whose buffers `fill` makes: it is given each binding.
    ///
    /// # Errors
    /// What the compiler says of the source.
    pub fn new(name: &str, source: &str, mut fill: impl FnMut(&Binding) -> Vec<u8>) -> Result<Case> {
        let kernel = Module::parse(source)
            .and_then(|module| module.specialize(None, &[]))
            .with_context(|| name.to_owned())?;
        let buffers = kernel.interface().bindings.iter().map(&mut fill).collect();
        Ok(Case {
            name: name.to_owned(),
            source: source.to_owned(),
            overrides: Vec::new(),
            kernel,
            buffers,
            immediates: Vec::new(),
            grid: [1, 1, 1],
        })
    }
}

/// What the buffers of a case hold after it has run.
pub type Outcome = Vec<Vec<u8>>;
