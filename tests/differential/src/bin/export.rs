//! Writes the edge tables and random programs, with the results of the Vulkan device, for a machine with an NVIDIA GPU.
//!
//! `export FOLDER COUNT [SKIP]` writes JSON files, which `gpu/run.py` compiles with NVRTC, runs and compares. `export FOLDER refresh`
//! translates the programs of such files anew and keeps their results. `export FOLDER check` runs them on the CPU and
//! compares with the results. `export FOLDER speed` writes the kernels in
//! `gpu/speed` beside their hand-written twins, which `gpu/speed.py` times.

use std::{env, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};
use onebuf_differential::{
    batch::{Batch, Value},
    case::{Case, Outcome},
    device::Runner,
    generate,
    host::{self, Sanitize},
    layout::{self, Layout},
    probe::Check,
    tables,
};
use onebuf_wgsl::{Bounds, CudaOptions, CudaParam, Module};
use serde_json::{Value as Json, json};

/// Programs in one file.
const BATCH: usize = 50;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().context("usage: export FOLDER COUNT")?;
    let count = arguments.next().context("usage: export FOLDER COUNT")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    if count == "speed" {
        return export_speed(folder);
    }
    if count == "refresh" {
        return refresh(folder);
    }
    if count == "check" {
        return check(folder, arguments.next().map_or(Ok(0), |text| text.parse())?);
    }
    let count: u64 = count.parse()?;
    let skip: usize = arguments.next().map_or(Ok(0), |text| text.parse())?;
    fs::write(folder.join("prelude.cuh"), onebuf_wgsl::cuda_prelude())?;
    let runner = Runner::open()?.context("a Vulkan driver is needed")?;
    export_tables(folder, &runner)?;
    let seeds: Vec<u64> = (1..=count).collect();
    for (index, seeds) in seeds.chunks(BATCH).enumerate().skip(skip) {
        let cases = seeds.iter().map(|&seed| generate::case(seed)).collect::<Result<Vec<Case>>>()?;
        let references: Vec<&Case> = cases.iter().collect();
        let outcomes = run(&runner, &references)?;
        let masks = cases.iter().map(data_masks).collect();
        write(&folder.join(format!("programs_{index:03}.json")), &references, &outcomes, masks)?;
    }
    Ok(())
}

/// What the device finds: it must have all that the cases use.
fn run(runner: &Runner, cases: &[&Case]) -> Result<Vec<Outcome>> {
    let outcomes = runner.run(cases)?.into_iter();
    outcomes.map(|outcome| outcome.context("a driver with 16-bit and 64-bit numbers is needed")).collect()
}

fn data_masks(case: &Case) -> Json {
    let bindings = &case.kernel.interface().bindings;
    let layout = Layout::of(&case.source);
    let mask = |(binding, bytes): (&onebuf_core::kernel::Binding, &Vec<u8>)| {
        let data = layout.data_bytes(&binding.name, bytes.len());
        hex(&data.iter().map(|&data| if data { 255 } else { 0 }).collect::<Vec<u8>>())
    };
    json!({ "data": bindings.iter().zip(&case.buffers).map(mask).collect::<Vec<_>>() })
}

fn export_tables(folder: &Path, runner: &Runner) -> Result<()> {
    let tables = tables::all();
    let cases = tables.iter().map(|table| table.case()).collect::<Result<Vec<Case>>>()?;
    let references: Vec<&Case> = cases.iter().collect();
    let outcomes = run(runner, &references)?;
    let mut extras = Vec::new();
    for (table, case) in tables.iter().zip(&cases) {
        let out = case.kernel.interface().position("out").context("no output")?;
        let (mut mask, mut near, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (row_index, row) in table.rows.iter().enumerate() {
            let arguments: Vec<f64> = row.iter().map(|(value, _)| *value).collect();
            for (index, probe) in table.probes.iter().enumerate() {
                let exact = match probe.check {
                    Check::Exact => true,
                    Check::ExactWhere(holds) => holds(&arguments),
                    Check::Near(reference) => {
                        if let Some((value, error)) = reference(&arguments) {
                            near.push(json!([row_index * table.probes.len() + index, value, error]));
                        }
                        false
                    }
                    // Of what may be either of two results the GPU's is not checked.
                    Check::Permitted(_) => false,
                };
                mask.extend([if exact { 255 } else { 0 }; 4]);
            }
        }
        names.extend(table.probes.iter().map(|probe| json!([probe.expression, probe.float])));
        let masks: Vec<String> = case
            .buffers
            .iter()
            .enumerate()
            .map(|(index, bytes)| hex(&if index == out { mask.clone() } else { vec![255; bytes.len()] }))
            .collect();
        extras.push(json!({ "data": masks, "near": near, "out": out, "probes": names }));
    }
    write(&folder.join("tables.json"), &references, &outcomes, extras)
}

fn write(path: &Path, cases: &[&Case], outcomes: &[Outcome], extras: Vec<Json>) -> Result<()> {
    let batch = Batch::new(cases)?;
    let mut programs = Vec::new();
    for (((case, program), outcome), extra) in cases.iter().zip(&batch.programs).zip(outcomes).zip(extras) {
        let value = |value| match value {
            Value::Buffer(index) => json!(["buffer", index]),
            Value::Bytes(bytes) => json!(["bytes", hex(&bytes)]),
        };
        let mut object = json!({
            "name": case.name,
            "kernel": program.kernel_name,
            "block": case.kernel.interface().workgroup_size,
            "grid": case.grid,
            "params": program.values(case)?.into_iter().map(value).collect::<Vec<_>>(),
            "buffers": case.buffers.iter().map(|bytes| hex(bytes)).collect::<Vec<_>>(),
            "expected": outcome.iter().map(|bytes| hex(bytes)).collect::<Vec<_>>(),
        });
        if let (Some(object), Json::Object(extra)) = (object.as_object_mut(), extra) {
            object.extend(extra);
        }
        programs.push(object);
    }
    let file = json!({ "source": batch.kernels, "programs": programs });
    fs::write(path, serde_json::to_vec(&file)?)?;
    Ok(())
}

fn refresh(folder: &Path) -> Result<()> {
    fs::write(folder.join("prelude.cuh"), onebuf_wgsl::cuda_prelude())?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut file: Json = serde_json::from_slice(&fs::read(&path)?)?;
        let names: Vec<String> = file["programs"]
            .as_array()
            .context("no programs")?
            .iter()
            .map(|program| program["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        let tables = tables::all();
        let case = |name: &String| match name.strip_prefix("seed ") {
            Some(seed) => generate::case(seed.parse()?),
            None => tables.iter().find(|table| table.name == name).context("an unknown table")?.case(),
        };
        let cases = names.iter().map(case).collect::<Result<Vec<Case>>>()?;
        let batch = Batch::new(&cases.iter().collect::<Vec<_>>())?;
        file["source"] = json!(batch.kernels);
        for (index, program) in batch.programs.iter().enumerate() {
            file["programs"][index]["kernel"] = json!(program.kernel_name);
        }
        fs::write(&path, serde_json::to_vec(&file)?)?;
    }
    Ok(())
}

fn check(folder: &Path, skip: usize) -> Result<()> {
    let (mut programs, mut differences) = (0, 0);
    for index in skip.. {
        let Ok(bytes) = fs::read(folder.join(format!("programs_{index:03}.json"))) else { break };
        let file: Json = serde_json::from_slice(&bytes)?;
        let programs_of_file = file["programs"].as_array().context("no programs")?;
        let seeds = programs_of_file.iter().map(|program| program["name"].as_str()?.strip_prefix("seed "));
        let cases = seeds
            .map(|seed| generate::case(seed.context("a program without a seed")?.parse()?))
            .collect::<Result<Vec<Case>>>()?;
        let sanitize = if index.is_multiple_of(8) { Sanitize::All } else { Sanitize::Arithmetic };
        let outcomes = host::run(&cases.iter().collect::<Vec<_>>(), sanitize)?;
        for ((case, outcome), program) in cases.iter().zip(&outcomes).zip(programs_of_file) {
            let layout = Layout::of(&case.source);
            programs += 1;
            for (at, binding) in case.kernel.interface().bindings.iter().enumerate() {
                let expected = program["expected"][at].as_str().map(unhex).context("no result")?;
                let data = layout.data_bytes(&binding.name, expected.len());
                let got = &outcome[at];
                let differs =
                    |byte: &usize| got[*byte] != expected[*byte] && !layout::both_zero(got, &expected, *byte);
                if let Some(byte) = (0..expected.len()).filter(|&byte| data[byte]).find(differs) {
                    differences += 1;
                    println!("{}: {} differs at byte {byte}", case.name, binding.name);
                    break;
                }
            }
        }
        println!("{programs} programs, {differences} differences, up to file {index}");
    }
    anyhow::ensure!(differences == 0, "{differences} programs differ");
    Ok(())
}

fn export_speed(folder: &Path) -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu/speed");
    let mut kernels = Vec::new();
    for entry in fs::read_dir(&sources)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "wgsl") {
            continue;
        }
        let module = Module::parse(&fs::read_to_string(&path)?)?;
        let kernel = module.specialize(None, &[])?;
        let mut object = json!({
            "name": path.file_stem().map(|stem| stem.to_string_lossy()),
            "hand": { "source": fs::read_to_string(path.with_extension("cu"))?, "kernel": "hand" },
        });
        for (name, bounds) in [("checked", Bounds::Checked), ("unchecked", Bounds::Unchecked)] {
            let source = kernel.to_cuda(&CudaOptions { bounds, ..CudaOptions::default() })?;
            let params: Vec<Json> = source
                .params
                .iter()
                .map(|param| match *param {
                    CudaParam::Buffer { binding } => json!(["buffer", binding]),
                    CudaParam::Length { binding } => {
                        json!(["length", binding, kernel.interface().bindings[binding].stride_bytes])
                    }
                    CudaParam::Immediates { size_bytes } => json!(["immediates", size_bytes]),
                    _ => json!(["none"]),
                })
                .collect();
            object[name] = json!({ "source": source.code(), "kernel": source.kernel_name, "params": params });
        }
        kernels.push(object);
    }
    fs::write(folder.join("speed.json"), serde_json::to_vec(&kernels)?)?;
    Ok(())
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        _ = write!(text, "{byte:02x}");
    }
    text
}
