//! Many kernels as one source, and the values of their parameters.

use anyhow::{Context as _, Result, bail};
use onebuf_wgsl::{CudaOptions, CudaParam, CudaSource};

use crate::case::Case;

/// Kernels that are compiled together, without the prelude.
#[derive(Debug)]
pub struct Batch {
    /// The kernels, each in a namespace `case_N` of its own.
    pub kernels: String,
    /// What is in it, in the order of the cases.
    pub programs: Vec<Program>,
}

/// A kernel of a batch.
#[derive(Debug)]
pub struct Program {
    /// The translated kernel.
    pub source: CudaSource,
    /// Its name in the batch.
    pub kernel_name: String,
}

/// A parameter of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The address of the binding at this place in the interface.
    Buffer(usize),
    /// These bytes.
    Bytes(Vec<u8>),
}

impl Batch {
    /// Translates every case.
    ///
    /// # Errors
    /// What the translator says.
    pub fn new(cases: &[&Case]) -> Result<Batch> {
        let mut batch = Batch { kernels: String::new(), programs: Vec::new() };
        for (index, case) in cases.iter().enumerate() {
            let source = case.kernel.to_cuda(&CudaOptions::default()).with_context(|| case.name.clone())?;
            let kernel_name = format!("{}_{index}", source.kernel_name);
            batch.kernels.push_str(
                &source
                    .kernel
                    .replace("namespace kernel {", &format!("namespace case_{index} {{"))
                    .replace(&format!("{}(", source.kernel_name), &format!("{kernel_name}(")),
            );
            batch.programs.push(Program { source, kernel_name });
        }
        Ok(batch)
    }
}

impl Program {
    /// The values of the parameters for a case, in order.
    ///
    /// # Errors
    /// For parameters that a case has no value for.
    pub fn values(&self, case: &Case) -> Result<Vec<Value>> {
        let value = |param: &CudaParam| match *param {
            CudaParam::Buffer { binding } => Ok(Value::Buffer(binding)),
            CudaParam::Length { binding } => {
                let interface = &case.kernel.interface().bindings[binding];
                let stride = u64::from(interface.stride_bytes.context("a length without a stride")?);
                let offset = interface.min_bytes - stride;
                let length = (case.buffers[binding].len() as u64 - offset) / stride;
                Ok(Value::Bytes((length as u32).to_le_bytes().to_vec()))
            }
            CudaParam::Immediates { size_bytes } => {
                let mut value = case.immediates.clone();
                value.resize(size_bytes as usize, 0);
                Ok(Value::Bytes(value))
            }
            other => bail!("no value for {other:?}"),
        };
        self.source.params.iter().map(value).collect()
    }
}
