//! `api` between devices: each other device of the same hardware, or the device opened once more where there is none,
//! has a buffer in common with it, and both write it in turn.

use onebuf::{
    Buffer, Device, DeviceInfo, HandleKind, Handovers, HostAccess, Kernel, Registry, Share, Stream, args,
};

use super::{Problem, TestResult, compare};

/// Turns of each side.
const TURNS: u32 = 50;

const WORDS: usize = 4099;

/// Only the right order of turns gives the right words.
const SOURCE: &str = "
    @group(0) @binding(0) var<storage, read_write> words: array<u32>;
    var<immediate> factor: u32;
    @compute @workgroup_size(64)
    fn turn(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&words) { words[at.x] = words[at.x] * factor + at.x; }
    }";

/// Tests every pair, and says for each by which way, and how it was ordered.
pub(super) fn test(device: &Device) -> TestResult {
    let registry = Registry::system();
    let own = device.info();
    let others = registry.adapters().adapters.into_iter().filter(|other| other.rejected.is_none());
    let same = |other: &DeviceInfo| other.id != own.id && own.uuid.is_some() && other.uuid == own.uuid;
    let mut names: Vec<String> =
        others.map(|other| other.info).filter(same).map(|other| other.id.to_string()).collect();
    if names.is_empty() {
        names.push(own.id.to_string());
    }
    let mut told = Vec::new();
    let mut without = Vec::new();
    for name in names {
        let other = registry.open(&name)?;
        let name = if name == own.id.to_string() { format!("{name}, opened twice") } else { name };
        let mut any = false;
        for way in [HandleKind::OpaqueFd, HandleKind::Memfd] {
            match pair(device, &other, way)? {
                Ok(waits) => {
                    any = true;
                    told.push(format!(
                        "with {name} by {}: {WORDS} words in turn, {TURNS} times each; the host waited {} times, a \
                         timeline {}",
                        way.name(),
                        waits.by_host,
                        waits.by_timeline
                    ));
                }
                Err(why) => without.push(format!("with {name} by {}: {why}", way.name())),
            }
        }
        if !any {
            return Err(Problem::Skipped(without.join("; ")));
        }
    }
    Ok(told
        .into_iter()
        .chain(without.into_iter().map(|why| format!("not {why}")))
        .collect::<Vec<_>>()
        .join("; "))
}

/// The waits that ordered the turns, or why the two devices have no memory in common by this way.
fn pair(one: &Device, two: &Device, way: HandleKind) -> Result<Result<Handovers, String>, Problem> {
    let made = one.buffer::<u32>(WORDS).host(HostAccess::ReadWrite).share(Share::Api).ways([way]).build();
    let first = match made {
        Ok(buffer) => buffer,
        Err(error) => return Ok(Err(one_line(&error))),
    };
    let second = match first.on(two) {
        Ok(buffer) => buffer,
        Err(error) => return Ok(Err(one_line(&error))),
    };
    let start: Vec<u32> = (0..WORDS as u32).map(|i| i ^ 0x5a5a).collect();
    first.copy_from_slice(&start)?;
    let before = counted(one, two);
    let sides = [side(&first)?, side(&second)?];
    for _ in 0..TURNS {
        for ((buffer, kernel, stream), factor) in sides.iter().zip([3u32, 5]) {
            stream.launch(kernel, [WORDS.div_ceil(64) as u32, 1, 1], args![*buffer, factor])?;
        }
    }
    let turn = |word: u32, factor: u32, i: u32| word.wrapping_mul(factor).wrapping_add(i);
    let word = |i: u32| (0..TURNS).fold(i ^ 0x5a5a, |word, _| turn(turn(word, 3, i), 5, i));
    let expected: Vec<u32> = (0..WORDS as u32).map(word).collect();
    for (buffer, who) in [(&first, one), (&second, two)] {
        compare(
            &buffer.read_to_vec()?,
            &expected,
            &format!("words by {}, seen on {}", way.name(), who.info().id),
        )?;
    }
    let after = counted(one, two);
    Ok(Ok(Handovers {
        by_host: after.by_host - before.by_host,
        by_timeline: after.by_timeline - before.by_timeline,
    }))
}

/// An error's text, without the list that it may be.
fn one_line(error: &onebuf::Error) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" | ")
}

fn counted(one: &Device, two: &Device) -> Handovers {
    let (one, two) = (one.handovers(), two.handovers());
    Handovers { by_host: one.by_host + two.by_host, by_timeline: one.by_timeline + two.by_timeline }
}

fn side(buffer: &Buffer<u32>) -> Result<(&Buffer<u32>, Kernel, Stream), Problem> {
    let device = buffer.device();
    Ok((buffer, device.kernel(SOURCE)?.build()?, device.stream()?))
}
