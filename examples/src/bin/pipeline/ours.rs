//! The pipeline on onebuf.

use std::time::Instant;

use anyhow::Result;
use image::ImageDecoder;
use onebuf::{Buffer, Device, HostAccess, Kernel, args};
use onebuf_examples::{cpu, shaders};

use crate::{Options, Outcome, RADIUS, SHIFT, open};

/// Kernels and buffers, made once.
struct Pipeline {
    expand: Kernel,
    horizontal: Kernel,
    vertical: Kernel,
    edges: Kernel,
    histogram: Kernel,
    weights: Buffer<u32>,
    /// The decoder's RGB bytes.
    rgb: Buffer<u8>,
    image: Buffer<u32>,
    half_blurred: Buffer<u32>,
    blurred: Buffer<u32>,
    edged: Buffer<u32>,
    bins: Buffer<u32>,
}

impl Pipeline {
    fn new(device: &Device, pixels: usize) -> Result<Pipeline> {
        let weights = cpu::blur_weights(RADIUS);
        let blur = |entry| device.kernel(shaders::BLUR)?.entry(entry).set("RADIUS", RADIUS).build();
        let for_device = || device.buffer::<u32>(pixels).build();
        let for_encoder = || device.buffer::<u32>(pixels).host(HostAccess::Read).build();
        Ok(Pipeline {
            expand: device.kernel(shaders::EXPAND)?.build()?,
            horizontal: blur("horizontal")?,
            vertical: blur("vertical")?,
            edges: device.kernel(shaders::EDGES)?.set("SHIFT", SHIFT).build()?,
            histogram: device.kernel(shaders::HISTOGRAM)?.build()?,
            weights: device.buffer(weights.len()).host(HostAccess::Write).init(&weights)?,
            rgb: device.buffer(pixels * 3).host(HostAccess::Write).build()?,
            image: for_device()?,
            half_blurred: for_device()?,
            blurred: for_encoder()?,
            edged: for_encoder()?,
            bins: device.buffer(256).host(HostAccess::Read).build()?,
        })
    }
}

pub(crate) fn run(device: &Device, options: &Options, (width, height): (u32, u32)) -> Result<Outcome> {
    let pixels = width as usize * height as usize;
    let pipeline = Pipeline::new(device, pixels)?;
    let Pipeline { weights, rgb, image, half_blurred, blurred, edged, bins, .. } = &pipeline;
    println!("input      {}", rgb.placement());
    println!("output     {}", blurred.placement());

    // The decoder writes into memory of the device.
    open(&options.input)?.read_image(&mut rgb.overwrite()?)?;

    let stream = device.stream()?;
    let size = [width, height];
    let tiles = [width.div_ceil(16), height.div_ceil(16), 1];
    let rows = [pixels.div_ceil(256) as u32, 1, 1];
    let mut times = Vec::new();
    let mut copied_bytes = 0;
    for _ in 0..=options.rounds {
        let copied = device.copied_bytes();
        let start = Instant::now();
        stream.fill(bins, 0)?;
        stream.launch(&pipeline.expand, rows, args![rgb, image])?;
        stream.launch(&pipeline.histogram, [16, 1, 1], args![image, bins])?;
        stream.launch(&pipeline.horizontal, tiles, args![image, half_blurred, weights, size])?;
        stream.launch(&pipeline.vertical, tiles, args![half_blurred, blurred, weights, size])?;
        stream.launch(&pipeline.edges, tiles, args![blurred, edged, size])?;
        // Guards wait for the work on their buffer. What they show is what the kernels wrote, where they wrote it.
        drop((blurred.read()?, edged.read()?, bins.read()?));
        times.push(start.elapsed());
        copied_bytes = device.copied_bytes() - copied;
    }
    times.remove(0); // The first round warms up.

    // The encoder reads memory of the device.
    for (name, buffer) in [("blurred.png", blurred), ("edges.png", edged)] {
        let guard = buffer.read()?;
        let path = options.out.join(name);
        image::save_buffer(path, bytemuck::cast_slice(&guard), width, height, image::ColorType::Rgba8)?;
    }
    Ok(Outcome {
        blurred: blurred.read_to_vec()?,
        edges: edged.read_to_vec()?,
        histogram: bins.read_to_vec()?,
        copied_bytes,
        times,
    })
}
