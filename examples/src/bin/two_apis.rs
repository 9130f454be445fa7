//! One API computes a picture, another reads the same memory and tones it, and a PNG comes out: CUDA and Vulkan on one GPU,
//! with no copy between them. Where there is no such pair, it says so and takes two openings of one device.
//!
//! ```text
//! cargo run -p onebuf-examples --bin two_apis -- picture.png
//! ```

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use onebuf::{Buffer, Device, DeviceInfo, Error, HandleKind, HostAccess, Registry, Share, args};

const WIDTH: u32 = 640;
const HEIGHT: u32 = 480;

/// Escape times of the Mandelbrot set.
const ESCAPE: &str = "
    @group(0) @binding(0) var<storage, read_write> times: array<u32>;
    @compute @workgroup_size(16, 16)
    fn escape(@builtin(global_invocation_id) at: vec3u) {
        if at.x >= 640u || at.y >= 480u { return; }
        let c = vec2f(f32(at.x) / 640.0 * 3.0 - 2.2, f32(at.y) / 480.0 * 2.25 - 1.125);
        var z = vec2f(0.0);
        var n = 0u;
        while n < 255u && dot(z, z) < 4.0 {
            z = vec2f(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
            n += 1u;
        }
        times[at.y * 640u + at.x] = n;
    }";

/// A colour for each, as RGBA.
const TONE: &str = "
    @group(0) @binding(0) var<storage, read> times: array<u32>;
    @group(0) @binding(1) var<storage, read_write> pixels: array<u32>;
    @compute @workgroup_size(64)
    fn tone(@builtin(global_invocation_id) at: vec3u) {
        if at.x >= arrayLength(&pixels) { return; }
        let n = times[at.x];
        let red = min(n * 9u, 255u);
        let green = min(n * 3u, 255u);
        let blue = (n * 5u) & 255u;
        pixels[at.x] = select(red | green << 8u | blue << 16u, 0u, n == 255u) | 0xff000000u;
    }";

/// Two APIs, one memory, one picture.
#[derive(Parser)]
struct Options {
    /// Where the picture goes.
    #[arg(default_value = "two-apis.png")]
    picture: PathBuf,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (writer, reader) = pair()?;
    println!("writes    {} ({})", writer.info().id, writer.info().name);
    println!("reads     {} ({})", reader.info().id, reader.info().name);

    let (times, same) = shared(&writer, &reader, (WIDTH * HEIGHT) as usize)?;
    println!("placement {}", times.placement());

    let escape = writer.kernel(ESCAPE)?.build()?;
    let tone = reader.kernel(TONE)?.build()?;
    let pixels = reader.buffer::<u32>(times.len()).host(HostAccess::Read).build()?;
    // Nothing orders the two launches but the memory that they share.
    writer.stream()?.launch(&escape, escape.groups_for([WIDTH, HEIGHT, 1]), args![&times])?;
    reader.stream()?.launch(&tone, tone.groups_for([WIDTH * HEIGHT, 1, 1]), args![&same, &pixels])?;

    let pixels = pixels.read()?;
    let bytes: Vec<u8> = bytemuck::cast_slice(&pixels).to_vec();
    let image = image::RgbaImage::from_raw(WIDTH, HEIGHT, bytes).context("the picture has another size")?;
    image.save(&options.picture).with_context(|| format!("writing {}", options.picture.display()))?;
    let waits = reader.handovers();
    let how = match (waits.by_host, waits.by_timeline) {
        (0, 0) => "the picture was there already, so nothing waited",
        (_, 0) => "the host waited for the other device",
        _ => "a timeline semaphore of both drivers",
    };
    println!("order     {how}");
    println!("picture   {}", options.picture.display());
    Ok(())
}

/// A device that writes and one that reads: CUDA and Vulkan on one GPU, or two openings of the default device.
fn pair() -> Result<(Device, Device)> {
    let registry = Registry::system();
    let adapters = registry.adapters().adapters;
    let usable: Vec<DeviceInfo> =
        adapters.into_iter().filter(|one| one.rejected.is_none()).map(|one| one.info).collect();
    for one in usable.iter().filter(|one| one.id.backend == "cuda") {
        let same =
            |two: &&DeviceInfo| two.id.backend == "vulkan" && one.uuid.is_some() && two.uuid == one.uuid;
        if let Some(two) = usable.iter().find(same) {
            return Ok((registry.open(&one.id.to_string())?, registry.open(&two.id.to_string())?));
        }
    }
    let choice = registry.default_choice()?;
    println!("no GPU here is shown by both CUDA and Vulkan, so {} is opened twice", choice.id);
    let name = choice.id.to_string();
    Ok((registry.open(&name)?, registry.open(&name)?))
}

/// Memory that both devices hold: the first way that they have in common.
fn shared(writer: &Device, reader: &Device, len: usize) -> Result<(Buffer<u32>, Buffer<u32>)> {
    let mut why = Vec::new();
    for way in [HandleKind::OpaqueFd, HandleKind::Memfd] {
        let made = writer.buffer::<u32>(len).share(Share::Api).ways([way]).build();
        match made.and_then(|buffer: Buffer<u32>| Ok((buffer.on(reader)?, buffer))) {
            Ok((same, buffer)) => return Ok((buffer, same)),
            Err(error @ Error::DeviceLost(_)) => return Err(error.into()),
            Err(error) => why.push(error.to_string()),
        }
    }
    bail!("the two devices can hold no memory in common:\n{}", why.join("\n"))
}
