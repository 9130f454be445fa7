use onebuf::{Device, HostAccess, args};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open_default()?;
    println!("{} ({})", device.info().name, device.chosen_because());

    let input = device.buffer::<f32>(1 << 20).host(HostAccess::Write).init_with(|i| i as f32)?;
    let output = device.buffer::<f32>(1 << 20).host(HostAccess::Read).build()?;
    println!("{}", output.placement()); // which memory, what it costs, why the others lost

    let kernel = device
        .kernel(
            "@group(0) @binding(0) var<storage> input: array<f32>;
             @group(0) @binding(1) var<storage, read_write> output: array<f32>;
             var<immediate> scale: f32;
             @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) {
                 if at.x < arrayLength(&output) { output[at.x] = scale * input[at.x]; }
             }",
        )?
        .build()?;

    let stream = device.stream()?;
    stream.launch(&kernel, kernel.groups_for([1 << 20, 1, 1]), args![&input, &output, 0.5f32])?;
    assert_eq!(output.read()?[1000], 500.0); // waits for the launch; a plain slice of what the device wrote
    println!("{} bytes were copied", device.copied_bytes()); // 0 on memory that both see; a discrete GPU may stage, and says so
    Ok(())
}
