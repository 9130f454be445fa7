//! `workgroup`: all of the workgroup memory that the device advertises, with a barrier and with atomics.

use onebuf::core::error::human_bytes;
use onebuf::{Device, HostAccess, args};

use super::{Problem, TestResult, WORK_LIMIT, compare};

const SOURCE: &str = include_str!("workgroup.wgsl");
const GROUPS: usize = 16;
const BINS: usize = 256;

pub(super) fn test(device: &Device) -> TestResult {
    let limits = &device.info().limits;
    let size = limits.max_workgroup_size[0].min(limits.max_workgroup_invocations).min(256);
    let bytes = limits.max_workgroup_bytes;
    // What the bins leave.
    let tile = (bytes / 4).checked_sub(BINS as u64).and_then(|tile| u32::try_from(tile).ok());
    let Some(tile) = tile.filter(|&tile| tile > 0 && size > 0) else {
        return Err(Problem::Failed(format!("{bytes} bytes for {size} invocations are advertised")));
    };
    let mut random = fastrand::Rng::new();
    let data: Vec<u32> = (0..tile as usize * GROUPS).map(|_| random.u32(..)).collect();
    let words = device.buffer::<u32>(data.len()).host(HostAccess::ReadWrite).init(&data)?;
    let counts = device.buffer::<u32>(BINS * GROUPS).host(HostAccess::Read).zeroed().build()?;

    let kernel = device.kernel(SOURCE)?.set("TILE", tile).set("SIZE", size).build()?;
    let stream = device.stream()?;
    stream.launch(&kernel, [GROUPS as u32, 1, 1], args![&words, &counts])?;
    stream.wait_timeout(WORK_LIMIT)?;

    let mut bins = vec![0u32; BINS * GROUPS];
    for (bins, tile_words) in bins.chunks_mut(BINS).zip(data.chunks(tile as usize)) {
        for word in tile_words {
            bins[*word as usize % BINS] += 1;
            bins[*word as usize % 7] += 1;
        }
    }
    compare(&counts.read()?, &bins, "values counted by atomics in workgroup memory")?;
    let mut reversed = data;
    reversed.chunks_mut(tile as usize).for_each(<[u32]>::reverse);
    compare(&words.read()?, &reversed, "tiles reversed through workgroup memory")?;
    let all = human_bytes((u64::from(tile) + BINS as u64) * 4);
    Ok(format!(
        "{GROUPS} workgroups of {size} reversed a tile and counted its values in {all} each, all there is"
    ))
}
