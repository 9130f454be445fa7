//! The page that shows input, output, histogram and what each way of doing it cost.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use onebuf::Device;
use onebuf::core::error::human_bytes;

use crate::peer::Peer;
use crate::{Options, Outcome};

/// All that the page tells.
pub(crate) struct Facts<'a> {
    pub(crate) options: &'a Options,
    pub(crate) device: &'a Device,
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) ours: Outcome,
    pub(crate) peer: Peer,
}

pub(crate) fn write(folder: &Path, facts: &Facts<'_>) -> Result<()> {
    let extension = facts.options.input.extension().and_then(|e| e.to_str()).unwrap_or("png");
    let input = format!("input.{}", extension.to_lowercase());
    std::fs::copy(&facts.options.input, folder.join(&input)).context("could not copy the photograph")?;
    let (bars, plot) = (bars(&facts.ours.histogram), folder.join("histogram.png"));
    bars.save(&plot).with_context(|| format!("could not write {}", plot.display()))?;
    let page = folder.join("index.html");
    std::fs::write(&page, html(facts, &input)).with_context(|| format!("could not write {}", page.display()))
}

/// The histogram as a picture: a column of two pixels for each brightness, as high as its share of the largest.
fn bars(histogram: &[u32]) -> image::RgbImage {
    const HEIGHT: u32 = 200;
    let most = histogram.iter().copied().max().unwrap_or(0).max(1);
    image::RgbImage::from_fn(histogram.len() as u32 * 2, HEIGHT, |x, y| {
        let count = histogram[x as usize / 2];
        let height = (u64::from(count) * u64::from(HEIGHT)).div_ceil(u64::from(most)) as u32;
        if HEIGHT - y <= height { image::Rgb([38, 84, 124]) } else { image::Rgb([244, 245, 247]) }
    })
}

fn html(facts: &Facts<'_>, input: &str) -> String {
    let info = facts.device.info();
    let (width, height) = (facts.width, facts.height);
    let (ours, peer) = (&facts.ours, &facts.peer.outcome);
    let mut rows = String::new();
    let mut row = |what: &str, ours: String, peer: String| {
        // Writing to a string does not fail.
        let _ = writeln!(rows, "<tr><th scope=row>{what}</th><td>{ours}</td><td>{peer}</td></tr>");
    };
    let bytes = |bytes: u64| if bytes == 0 { "0".to_owned() } else { human_bytes(bytes) };
    row("bytes copied a round", bytes(ours.copied_bytes), bytes(peer.copied_bytes));
    let milliseconds = |outcome: &Outcome| format!("{:.2} ms", outcome.median().as_secs_f64() * 1e3);
    row("from decoded pixels to readable results, median", milliseconds(ours), milliseconds(peer));
    row("rounds", ours.times.len().to_string(), peer.times.len().to_string());
    row("pixels equal to the CPU's", "all".into(), "all".into());
    row("device", escape(&info.name), escape(&facts.peer.device));
    format!(
        r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>onebuf: an image pipeline on shared memory</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }}
.pictures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem; }}
figure {{ margin: 0; }}
img {{ width: 100%; height: auto; display: block; border-radius: 4px; }}
table {{ border-collapse: collapse; width: 100%; margin-top: 1.5rem; }}
th, td {{ text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8884; }}
pre {{ white-space: pre-wrap; }}
</style>
<h1>An image pipeline on shared memory</h1>
<p>The decoder wrote {width} × {height} pixels into memory of the device. Kernels blurred them, found edges and counted
brightness there. The encoder read the results where they lay. Beside it, the same kernels ran through plain wgpu.</p>
<div class="pictures">
<figure><img src="{input}" alt="the photograph"><figcaption>The photograph</figcaption></figure>
<figure><img src="blurred.png" alt="the photograph, blurred"><figcaption>Blurred, in tiles of workgroup memory</figcaption></figure>
<figure><img src="edges.png" alt="edges of the photograph"><figcaption>Edges of the blurred picture</figcaption></figure>
<figure><img src="histogram.png" alt="histogram of brightness"><figcaption>Brightness from dark to light, counted with
workgroup atomics</figcaption></figure>
</div>
<table>
<thead><tr><td></td><th scope=col>onebuf</th><th scope=col>plain wgpu</th></tr></thead>
<tbody>
{rows}</tbody>
</table>
<p>Copies are those between memory of the CPU and memory of the device: for wgpu the write into its staging buffer, the
copy from there, and the copies into buffers that can be mapped.</p>
<p>onebuf took {id}: {reason}. The photograph is {path}.</p>
</html>
"#,
        id = info.id,
        reason = escape(facts.device.chosen_because()),
        path = escape(&facts.options.input.display().to_string()),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
