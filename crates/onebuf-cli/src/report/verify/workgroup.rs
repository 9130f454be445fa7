//! `workgroup`: all of the workgroup memory that the device advertises, with a barrier and with atomics.

use onebuf::core::error::human_bytes;
use onebuf::{Device, HostAccess, args};

use super::{Problem, TestResult, WORK_LIMIT, compare};

const SOURCE: &str = include_str!("workgroup.wgsl");
const GROUPS: usize = 16;

pub(super) fn test(device: &Device) -> TestResult {
    let limits = &device.info().limits;
    let size = limits.max_workgroup_size[0].min(limits.max_workgroup_invocations).min(256);
    let bytes = limits.max_workgroup_bytes / 4 * 4;
    let Some(tile) = u32::try_from(bytes / 4).ok().filter(|&tile| tile > 7 && size > 0) else {
        return Err(Problem::Failed(format!("{bytes} bytes for {size} invocations are advertised")));
    };
    let words = tile as usize * GROUPS;
    let mut random = fastrand::Rng::new();
    let data: Vec<u32> = (0..words).map(|_| random.u32(..)).collect();
    let buffer = device.buffer::<u32>(words).host(HostAccess::ReadWrite).init(&data)?;
    let stream = device.stream()?;
    let groups = [GROUPS as u32, 1, 1];

    let kernel = |entry| device.kernel(SOURCE)?.entry(entry).set("TILE", tile).set("SIZE", size).build();
    stream.launch(&kernel("reverse")?, groups, args![&buffer])?;
    stream.wait_timeout(WORK_LIMIT)?;
    let mut model = data;
    model.chunks_mut(tile as usize).for_each(<[u32]>::reverse);
    compare(&buffer.read()?, &model, "a tile reversed through workgroup memory")?;

    stream.launch(&kernel("count")?, groups, args![&buffer])?;
    stream.wait_timeout(WORK_LIMIT)?;
    for tile_words in model.chunks_mut(tile as usize) {
        let mut bins = vec![0u32; tile as usize];
        for word in tile_words.iter() {
            bins[(word % tile) as usize] += 1;
            bins[(word % 7) as usize] += 1;
        }
        tile_words.copy_from_slice(&bins);
    }
    compare(&buffer.read()?, &model, "values counted by atomics in workgroup memory")?;
    Ok(format!(
        "{GROUPS} workgroups of {size} reversed and counted tiles of {}, all there is",
        human_bytes(u64::from(tile) * 4)
    ))
}
