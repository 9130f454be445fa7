@group(0) @binding(0) @coherent var<storage, read_write> flags: array<u32>;
@group(0) @binding(1) @coherent @volatile var<storage, read_write> data: array<vec4<f32>>;

@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) i: u32) {
    data[i] = data[i] + 1.0;
    storageBarrier();
    flags[i] = 1u;
    while flags[i + 1u] == 0u { }
    data[i].x = data[i + 1u].y;
}
