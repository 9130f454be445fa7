@group(0) @binding(0) var<storage, read_write> a: array<u32>;
var<workgroup> w: array<u32, 100>;

@compute @workgroup_size(100)
fn main(@builtin(local_invocation_index) i: u32, @builtin(workgroup_id) g: vec3<u32>) {
    if g.x > 2u { return; }
    w[i] = a[i];
    workgroupBarrier();
    a[i] = w[99u - i];
    if i > 40u { return; }
    a[i] += 1u;
}
