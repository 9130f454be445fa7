//! An image pipeline on memory that the CPU and the device share: the decoder writes into a buffer of the device, kernels
//! blur, find edges and count brightness, and the encoder reads what they wrote. Nothing is copied in between.
//!
//! The same kernels run through plain wgpu beside it, on the same device where it can be told, and must give the same
//! pixels. Pictures and a page with the comparison are written to a folder.

mod ours;
mod page;
mod peer;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use image::{ImageDecoder, ImageReader};
use onebuf_examples::cpu;

/// Pixels that the blur reaches to each side.
const RADIUS: u32 = 6;

/// The magnitude of edges is divided by 2^SHIFT.
const SHIFT: u32 = 0;

#[derive(Parser)]
#[command(about = "Blurs a photograph, finds its edges and counts its brightness on shared memory")]
struct Options {
    /// The photograph, PNG or JPEG
    #[arg(long, default_value = "assets/coffee.png")]
    input: PathBuf,
    /// The folder for pictures and page
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
    /// The device: an id, a UUID, a kind
    #[arg(long)]
    device: Option<String>,
    /// Timed rounds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// What a pipeline gives: pixels, counts, and what it took.
struct Outcome {
    /// Blurred pixels, RGBA8.
    blurred: Vec<u32>,
    /// Edges, RGBA8.
    edges: Vec<u32>,
    /// Counts of brightness.
    histogram: Vec<u32>,
    /// Bytes moved between memory of the CPU and of the device, in one round.
    copied_bytes: u64,
    /// From decoded pixels to results that the CPU can read, each round.
    times: Vec<Duration>,
}

impl Outcome {
    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("could not make {}", options.out.display()))?;
    let device = match &options.device {
        Some(name) => onebuf::Device::open(name)?,
        None => onebuf::Device::open_default()?,
    };
    println!("device     {} {} ({})", device.info().id, device.info().name, device.chosen_because());
    let (width, height) = open(&options.input)?.dimensions();
    println!("photograph {}, {width} x {height}", options.input.display());

    let ours = ours::run(&device, &options, (width, height))?;
    let peer = peer::run(device.info(), &options, (width, height))?;
    check(&ours, &peer.outcome, &options.input, width)?;
    println!("bytes copied: {} (plain wgpu: {})", ours.copied_bytes, peer.outcome.copied_bytes);
    println!("time a round: {:?} (plain wgpu: {:?})", ours.median(), peer.outcome.median());
    page::write(
        &options.out,
        &page::Facts { options: &options, device: &device, width, height, ours, peer },
    )?;
    println!("page       {}", options.out.join("index.html").display());
    Ok(())
}

/// A decoder of RGB bytes.
fn open(path: &Path) -> Result<impl ImageDecoder> {
    let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format()?;
    let decoder = reader.into_decoder().with_context(|| format!("{} is no picture", path.display()))?;
    if decoder.color_type() != image::ColorType::Rgb8 {
        bail!("{} has {:?} pixels; give a picture with 8-bit RGB", path.display(), decoder.color_type());
    }
    Ok(decoder)
}

/// Both pipelines and the CPU must agree to the last bit: all arithmetic is of integers.
fn check(ours: &Outcome, peer: &Outcome, input: &Path, width: u32) -> Result<()> {
    let decoder = open(input)?;
    let mut rgb = vec![0; decoder.total_bytes() as usize];
    decoder.read_image(&mut rgb)?;
    let image = cpu::expand(&rgb);
    let blurred = cpu::blur(&image, width as usize, &cpu::blur_weights(RADIUS));
    let edges = cpu::edges(&blurred, width as usize, SHIFT);
    let histogram = cpu::histogram(&image);
    for (name, outcome) in [("onebuf", ours), ("wgpu", peer)] {
        if outcome.blurred != blurred || outcome.edges != edges || outcome.histogram != histogram {
            bail!("the pixels of {name} differ from the CPU's");
        }
    }
    Ok(())
}
