//! A camera and a detector in two processes, with a ring of buffers between them and no copy of a frame.
//!
//! The camera draws a disc that wanders over noise, by a kernel, into the slots of the ring. The detector, this program once
//! more, thresholds each frame by a kernel in the memory that the camera wrote, finds the disc, and draws a box around it.
//! Its last frame is written as `camera.png` (or to the path given). Each found place is checked against the true one.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use onebuf::ipc::{Channel, Listener, Peers};
use onebuf::ring::{Consumer, Producer};
use onebuf::{Buffer, Device, HostAccess, Share, args};

const WIDTH: u32 = 640;
const HEIGHT: u32 = 360;
const RADIUS: u32 = 24;
const FRAMES: u32 = 240;
const SLOTS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);

/// One pixel a word, grey in its lowest byte.
const DRAW: &str = "
    struct Frame { width: u32, height: u32, x: u32, y: u32, radius: u32, seed: u32 }
    var<immediate> frame: Frame;
    @group(0) @binding(0) var<storage, read_write> pixels: array<u32>;
    @compute @workgroup_size(8, 8)
    fn draw(@builtin(global_invocation_id) at: vec3u) {
        if at.x >= frame.width || at.y >= frame.height { return; }
        let i = at.y * frame.width + at.x;
        var noise = (i ^ frame.seed) * 747796405u + 2891336453u;
        noise = ((noise >> ((noise >> 28u) + 4u)) ^ noise) * 277803737u;
        let dx = i32(at.x) - i32(frame.x);
        let dy = i32(at.y) - i32(frame.y);
        let inside = dx * dx + dy * dy <= i32(frame.radius * frame.radius);
        pixels[i] = select(20u, 200u, inside) + (noise >> 27u);
    }";

/// The bounds of what is bright: left, top, right, bottom.
const DETECT: &str = "
    var<immediate> width: u32;
    @group(0) @binding(0) var<storage, read> pixels: array<u32>;
    @group(0) @binding(1) var<storage, read_write> bounds: array<atomic<u32>, 4>;
    @compute @workgroup_size(64)
    fn detect(@builtin(global_invocation_id) at: vec3u) {
        if at.x >= arrayLength(&pixels) || pixels[at.x] < 128u { return; }
        let x = at.x % width;
        let y = at.x / width;
        atomicMin(&bounds[0], x);
        atomicMin(&bounds[1], y);
        atomicMax(&bounds[2], x);
        atomicMax(&bounds[3], y);
    }";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [role, socket, picture] if role == "detector" => detector(Path::new(socket), Path::new(picture)),
        [picture] => camera(Path::new(picture)),
        _ => camera(Path::new("camera.png")),
    }
}

/// Where the disc is in a frame.
fn place(frame: u32) -> (u32, u32) {
    let turn = frame as f32 * 0.05;
    let reach = |size: u32| (size / 2 - RADIUS - 1) as f32;
    let at = |size: u32, wave: f32| (size as f32 / 2.0 + reach(size) * wave) as u32;
    (at(WIDTH, turn.cos()), at(HEIGHT, (turn * 1.7).sin()))
}

#[allow(unsafe_code)]
fn camera(picture: &Path) -> Result<()> {
    let device = Device::open_default()?;
    let socket = std::env::temp_dir().join(format!("onebuf-camera-{}", std::process::id()));
    let listener = Listener::bind(&socket, Peers::SameUser)?;
    let mut detector = Command::new(std::env::current_exe()?)
        .arg("detector")
        .args([socket.as_path(), picture])
        .spawn()
        .context("the detector's process")?;
    let channel = listener.accept(PATIENCE)?;
    println!("camera    {}, detector in process {}", device.info().name, channel.peer().pid);

    let slot = || {
        let builder = device.buffer::<u32>((WIDTH * HEIGHT) as usize).host(HostAccess::ReadWrite);
        builder.share(Share::Process).build()
    };
    let slots = (0..SLOTS).map(|_| slot()).collect::<onebuf::Result<Vec<Buffer<u32>>>>()?;
    println!("placement {}", slots[0].placement());
    let draw = device.kernel(DRAW)?.build()?;
    let stream = device.stream()?;
    // SAFETY: the slots are used between `slot` and `publish` alone, and the detector uses a frame while it holds it.
    let mut ring = unsafe { Producer::new(channel, slots)? };
    let start = Instant::now();
    for frame in 0..FRAMES {
        let slot = ring.slot(PATIENCE)?;
        let (x, y) = place(frame);
        stream.launch(
            &draw,
            draw.groups_for([WIDTH, HEIGHT, 1]),
            args![*slot, [WIDTH, HEIGHT, x, y, RADIUS, frame]],
        )?;
        slot.publish([frame.into(), x.into(), y.into(), 0])?; // waits for the kernel
    }
    ring.finish(PATIENCE)?;
    let time = start.elapsed();
    ensure!(detector.wait()?.success(), "the detector failed");
    println!("frames    {FRAMES} in {time:.0?}, {:.0} a second", f64::from(FRAMES) / time.as_secs_f64());
    Ok(())
}

#[allow(unsafe_code)]
fn detector(socket: &Path, picture: &Path) -> Result<()> {
    let channel = Channel::connect(socket, &Peers::SameUser)?;
    let device = Device::open_default()?;
    let detect = device.kernel(DETECT)?.build()?;
    let stream = device.stream()?;
    let bounds = device.buffer::<u32>(4).host(HostAccess::ReadWrite).build()?;
    // SAFETY: as in the camera.
    let mut ring = unsafe { Consumer::<u32>::open(channel, &device)? };
    let (mut frames, mut last) = (0, Vec::new());
    while let Some(frame) = ring.next(PATIENCE)? {
        bounds.copy_from_slice(&[u32::MAX, u32::MAX, 0, 0])?;
        let groups = detect.groups_for([WIDTH * HEIGHT, 1, 1]);
        stream.launch(&detect, groups, args![*frame, &bounds, WIDTH])?;
        let found: [u32; 4] = bounds.read_to_vec()?.try_into().unwrap_or_default();
        let [_, x, y, _] = frame.note();
        let (x, y) = (x as u32, y as u32);
        let wanted = [x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS];
        ensure!(found == wanted, "frame {frames}: the disc is at {wanted:?}, and was found at {found:?}");
        frames += 1;
        if frames == FRAMES {
            last = with_box(&frame.read()?, found);
        }
        frame.release()?;
    }
    ensure!(frames == FRAMES, "{frames} frames came of {FRAMES}");
    let image = image::GrayImage::from_raw(WIDTH, HEIGHT, last).context("the picture's size")?;
    image.save(picture).with_context(|| format!("the picture {}", picture.display()))?;
    println!("detector  found the disc in every frame; the last is {}", picture.display());
    Ok(())
}

/// A frame in grey, with a white box around what was found.
fn with_box(pixels: &[u32], [left, top, right, bottom]: [u32; 4]) -> Vec<u8> {
    let on_box = |x: u32, y: u32| {
        let (across, down) = ((left..=right).contains(&x), (top..=bottom).contains(&y));
        ((x == left || x == right) && down) || ((y == top || y == bottom) && across)
    };
    let grey = |(i, &pixel): (usize, &u32)| {
        if on_box(i as u32 % WIDTH, i as u32 / WIDTH) { 255 } else { pixel as u8 }
    };
    pixels.iter().enumerate().map(grey).collect()
}
