//! How long a source of about 500 lines takes from text to CUDA C++ and to SPIR-V.
//!
//! `cargo run --release -p onebuf-wgsl --example translation_time`

use std::time::{Duration, Instant};

use onebuf_wgsl::{CudaOptions, Error, Module, SpirvOptions};

fn source() -> String {
    let mut text = String::from(
        "struct Particle { position: vec3<f32>, mass: f32, velocity: vec3<f32>, kind: u32 }\n\
         @group(0) @binding(0) var<storage, read_write> particles: array<Particle>;\n\
         var<workgroup> tile: array<vec4<f32>, 128>;\n",
    );
    let mut calls = String::new();
    for index in 0..30 {
        text.push_str(&format!(
            "fn step{index}(p: Particle, n: u32) -> Particle {{
    var q = p;
    var sum = 0.0;
    for (var i = 0u; i < n; i++) {{
        let r = tile[i % 128u].xyz - p.position;
        let d = dot(r, r) + {index}.5;
        if d < 0.001 {{ continue; }}
        sum += tile[i % 128u].w * inverseSqrt(d);
    }}
    switch n % 3u {{
        case 0u: {{ q.velocity += vec3(sum); }}
        default: {{ q.velocity -= clamp(q.velocity, vec3(-1.0), vec3(1.0)) * sum; }}
    }}
    return q;
}}
"
        ));
        calls.push_str(&format!("    p = step{index}(p, {}u + p.kind);\n", index + 1));
    }
    text.push_str(&format!(
        "@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    if id.x >= arrayLength(&particles) {{ return; }}
    var p = particles[id.x];
    tile[t] = vec4(p.position, p.mass);
    workgroupBarrier();
{calls}
    particles[id.x] = p;
}}
"
    ));
    text
}

fn main() -> Result<(), Error> {
    let source = source();
    let mut times: [Vec<Duration>; 4] = Default::default();
    let mut sizes = (0, 0);
    for _ in 0..60 {
        let begin = Instant::now();
        let module = Module::parse(&source)?;
        times[0].push(begin.elapsed());
        let begin = Instant::now();
        let kernel = module.specialize(None, &[])?;
        times[1].push(begin.elapsed());
        let begin = Instant::now();
        let cuda = kernel.to_cuda(&CudaOptions::default())?;
        times[2].push(begin.elapsed());
        let begin = Instant::now();
        let spirv = kernel.to_spirv(&SpirvOptions::default())?;
        times[3].push(begin.elapsed());
        sizes = (cuda.kernel.lines().count(), spirv.words.len());
    }
    println!(
        "{} lines of WGSL; {} lines of CUDA C++, {} words of SPIR-V",
        source.lines().count(),
        sizes.0,
        sizes.1
    );
    for (name, times) in ["parse", "specialize", "to_cuda", "to_spirv"].iter().zip(&mut times) {
        times.sort();
        println!("{name:10} least {:?}, median {:?}", times[0], times[times.len() / 2]);
    }
    Ok(())
}
