//! A piece of work on its way to the driver: checked first, then handed over by a call, or by several for a large grid.

use cudarc::driver::sys::{self, CUstream};
use onebuf_core::backend::{Launch, Part, Work};
use onebuf_core::error::human_bytes;
use onebuf_core::{Error, Result};

use crate::driver;
use crate::kernel::{self, KernelCode};
use crate::memory;
use crate::params::Values;
use crate::program::Program;

/// A launch that is split into more parts than this is a mistake in the grid.
const MOST_PARTS: u64 = 1 << 20;

/// A piece of work, for a profiler.
pub(crate) fn describe(work: &Work<'_>) -> String {
    match work {
        Work::Launch(launch) => {
            let [x, y, z] = launch.groups;
            format!("launch `{}` [{x}, {y}, {z}]", launch.kernel.interface().entry)
        }
        Work::Copy { from, .. } => format!("copy {}", human_bytes(from.size_bytes)),
        Work::Fill { to, .. } => format!("fill {}", human_bytes(to.size_bytes)),
    }
}

/// A piece of work that was checked, and is ready for the driver.
pub(crate) enum Ready<'a> {
    Launch { code: &'a KernelCode, program: &'a Program, launch: Launch<'a> },
    Copy { from: Part<'a>, to: Part<'a> },
    Fill { to: Part<'a>, word: u32 },
}

impl<'a> Ready<'a> {
    /// Checks a piece of work. The values of a launch's parameters go into `values`.
    pub(crate) fn of(work: &Work<'a>, values: &mut Values) -> Result<Ready<'a>> {
        match *work {
            Work::Launch(launch) => {
                let code = kernel::code(launch.kernel)?;
                let program = prepare(code, &launch, values)?;
                Ok(Ready::Launch { code, program, launch })
            }
            Work::Copy { from, to } => {
                memory::of(&from)?;
                writable(&to)?;
                Ok(Ready::Copy { from, to })
            }
            Work::Fill { to, word } => {
                writable(&to)?;
                Ok(Ready::Fill { to, word })
            }
        }
    }

    /// Hands the work to the driver. The context is current.
    pub(crate) fn issue(&self, stream: CUstream, values: &mut Values) -> Result<()> {
        match self {
            Ready::Launch { code, program, launch } => {
                if values.has_unified {
                    for part in launch.bindings {
                        memory::of(part)?.before_device(stream);
                    }
                }
                let block = code.interface.workgroup_size;
                if !code.is_split(launch.groups) {
                    return launch_part(program, launch.groups, block, stream, values);
                }
                for (base, grid) in parts_of(launch.groups, code.max_groups) {
                    values.set_base(base);
                    launch_part(program, grid, block, stream, values)?;
                }
                Ok(())
            }
            Ready::Copy { from, to } => {
                let (source, target) = (memory::of(from)?, memory::of(to)?);
                source.before_device(stream);
                target.before_device(stream);
                let (source, target) = (source.pointer + from.offset_bytes, target.pointer + to.offset_bytes);
                // SAFETY: the ranges are within live memory that the device reaches by unified addresses and do not
                // overlap, as the caller of the contract checks.
                let code = unsafe { sys::cuMemcpyAsync(target, source, to.size_bytes as usize, stream) };
                driver::check("cuMemcpyAsync", code)
            }
            Ready::Fill { to, word } => {
                let target = memory::of(to)?;
                target.before_device(stream);
                let (start, words) = (target.pointer + to.offset_bytes, to.size_bytes as usize / 4);
                // SAFETY: offset and size are multiples of 4 within live memory, as the caller of the contract checks.
                let code = unsafe { sys::cuMemsetD32Async(start, *word, words, stream) };
                driver::check("cuMemsetD32Async", code)
            }
        }
    }
}

/// One call of the driver.
fn launch_part(
    program: &Program,
    grid: [u32; 3],
    block: [u32; 3],
    stream: CUstream,
    values: &mut Values,
) -> Result<()> {
    let mut pointers = values.pointers();
    // SAFETY: function, stream and parameters are of the current context; each pointer is to a value of at least the
    // parameter's size in `values`, which stays where it is; grid, block and workgroup memory are within the device's
    // limits. The driver copies the values before it returns.
    let code = unsafe {
        sys::cuLaunchKernel(
            program.function,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            program.dynamic_shared_bytes,
            stream,
            pointers.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    driver::check("cuLaunchKernel", code)
}

/// The program that covers a launch's grid; the values of its parameters go into `values`. The context is current.
pub(crate) fn prepare<'a>(
    code: &'a KernelCode,
    launch: &Launch<'_>,
    values: &mut Values,
) -> Result<&'a Program> {
    let program = if code.is_split(launch.groups) {
        let most = code.max_groups;
        let parts: u64 = (0..3).map(|axis| u64::from(launch.groups[axis].div_ceil(most[axis]))).product();
        Error::check_limit("launches that one grid is split into", parts, MOST_PARTS)?;
        code.wide()?
    } else {
        &code.program
    };
    values.fill(&code.interface, &program.params, launch)?;
    Ok(program)
}

/// A grid in parts that the driver takes: where each begins, and its size.
pub(crate) fn parts_of(groups: [u32; 3], most: [u32; 3]) -> impl Iterator<Item = ([u32; 3], [u32; 3])> {
    let steps = move |axis: usize| {
        // A step past `u32` ends the range, and not the program.
        (0..groups[axis])
            .step_by(most[axis].max(1) as usize)
            .map(move |base| (base, (groups[axis] - base).min(most[axis].max(1))))
    };
    steps(2).flat_map(move |(z, depth)| {
        steps(1)
            .flat_map(move |(y, height)| steps(0).map(move |(x, width)| ([x, y, z], [width, height, depth])))
    })
}

/// Refuses to write imported pages that may only be read.
pub(crate) fn writable(to: &Part<'_>) -> Result<()> {
    if memory::of(to)?.read_only {
        return Err(Error::InvalidArgument(
            "the imported pages may only be read, and the work would write them".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_grid_once() {
        let most = [7, 3, 2];
        for groups in [[1, 1, 1], [7, 3, 2], [8, 4, 3], [20, 1, 5], [3, 10, 1]] {
            let mut seen = std::collections::HashMap::new();
            for (base, size) in parts_of(groups, most) {
                assert!((0..3).all(|axis| size[axis] >= 1 && size[axis] <= most[axis]), "{size:?}");
                for z in 0..size[2] {
                    for y in 0..size[1] {
                        for x in 0..size[0] {
                            *seen.entry([base[0] + x, base[1] + y, base[2] + z]).or_insert(0) += 1;
                        }
                    }
                }
            }
            let all: u32 = groups.iter().product();
            assert_eq!(seen.len() as u32, all, "{groups:?}");
            assert!(seen.values().all(|&count| count == 1));
            assert!(seen.keys().all(|place| (0..3).all(|axis| place[axis] < groups[axis])));
        }
    }

    #[test]
    fn a_grid_within_the_limits_is_one_part() {
        let most = [0x7fff_ffff, 65_535, 65_535];
        let one: Vec<_> = parts_of([0x7fff_ffff, 65_535, 65_535], most).collect();
        assert_eq!(one, [([0, 0, 0], [0x7fff_ffff, 65_535, 65_535])]);
        let two: Vec<_> = parts_of([u32::MAX, 1, 1], most).collect();
        assert_eq!(two.len(), 3);
        assert_eq!(two[2], ([0xffff_fffe, 0, 0], [1, 1, 1]));
    }
}
