//! `unified`: CPU and device take turns on the same bytes, and, where the level allows it, the CPU works on other pages
//! while the device works on its own. On a device that does not allow that the process would die of it.

use onebuf::{Device, HostAccess, Semantic, UnifiedLevel, args};

use super::{Problem, TestResult, WORK_LIMIT, in_place};

/// 4 MiB in each buffer.
const WORDS: usize = 1 << 20;

/// Rounds of one launch, of [`STEPS`] steps each. The loop is short and its body long, since lavapipe of Mesa 22.3 silently
/// ends loops after 65,535 iterations.
const ROUNDS: u32 = 60_000;
const STEPS: u32 = 16;

/// Turns a generator on the first word: nothing that could be computed at once, and bounded.
const SPIN: &str = "
    @group(0) @binding(0) var<storage, read_write> words: array<u32>;
    var<immediate> rounds: u32;
    fn one(s: u32) -> u32 { return (s ^ (s >> 15u)) * 1664525u + 1013904223u; }
    fn four(s: u32) -> u32 { return one(one(one(one(s)))); }
    @compute @workgroup_size(1)
    fn spin() {
        var state = words[0];
        for (var i = 0u; i < rounds; i++) { state = four(four(four(four(state)))); }
        words[0] = state;
    }";

/// The kernel, on the CPU.
fn spin(mut state: u32, rounds: u32) -> u32 {
    for _ in 0..rounds * STEPS {
        state = (state ^ (state >> 15)).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    state
}

pub(super) fn test(device: &Device) -> TestResult {
    let turns = in_place::mapped(device, Semantic::Unified)?;
    if device.profile().unified <= UnifiedLevel::Exclusive {
        return Ok(format!("{turns}; the CPU is kept away while kernels run"));
    }
    let make = || {
        let builder = device.buffer::<u32>(WORDS).require(Semantic::Unified);
        builder.host_in_place(HostAccess::ReadWrite).zeroed().build()
    };
    let (theirs, ours) = (make()?, make()?);
    let (kernel, stream) = (device.kernel(SPIN)?.build()?, device.stream()?);
    let mut state = 0;
    // A launch takes some ten milliseconds on a GPU, and the CPU some to touch its pages.
    for launches in [1u32, 2, 4, 8, 16, 32] {
        for _ in 0..launches {
            stream.launch(&kernel, [1, 1, 1], args![&theirs, ROUNDS])?;
        }
        let ticket = stream.last();
        let mark = |index: usize| (index as u32).wrapping_mul(0x9e37_79b9) ^ launches;
        ours.overwrite()?.iter_mut().enumerate().for_each(|(index, word)| *word = mark(index));
        let wrong = ours.read()?.iter().enumerate().filter(|&(index, &word)| word != mark(index)).count();
        let met = !device.is_done(ticket)?;
        device.wait_timeout(ticket, WORK_LIMIT)?;
        state = (0..launches).fold(state, |state, _| spin(state, ROUNDS));
        if wrong > 0 || theirs.read()?[0] != state {
            return Err(Problem::Failed(format!(
                "the CPU worked on pages of its own beside a kernel: {wrong} of its words are wrong, and the kernel's is {:#010x}, {state:#010x} expected",
                theirs.read()?[0]
            )));
        }
        if met {
            return Ok(format!("{turns}; and the CPU wrote and read other pages while a kernel ran"));
        }
    }
    Err(Problem::Skipped(format!(
        "{turns}; but no kernel was still running when the CPU had touched its pages"
    )))
}
