override SIZE: u32 = 16384;
var<workgroup> big: array<f32, SIZE>;
var<workgroup> small: vec3<u32>;
@group(0) @binding(0) var<storage, read_write> data: array<f32>;

fn turn(i: u32) -> f32 { return big[SIZE - 1u - i] + f32(small[i]); }

@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) i: u32) {
    big[i] = data[i];
    small.y = i;
    workgroupBarrier();
    data[i] = turn(i);
}
