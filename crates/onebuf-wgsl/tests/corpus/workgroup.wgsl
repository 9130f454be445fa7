struct T { a: array<vec3<f32>, 5>, flag: bool, n: atomic<u32> }
var<workgroup> tile: array<array<f32, 17>, 16>;
var<workgroup> t: T;
var<workgroup> one: u32;
@group(0) @binding(0) var<storage, read_write> data: array<f32>;

@compute @workgroup_size(16, 16)
fn main(@builtin(local_invocation_id) l: vec3<u32>, @builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    tile[l.y][l.x] = data[l.y * 16u + l.x];
    if l.x == 0u && l.y == 0u { one = w.x + n.y; t.flag = true; }
    atomicAdd(&t.n, 1u);
    workgroupBarrier();
    data[l.y * 16u + l.x] = tile[l.x][l.y] + f32(one);
    storageBarrier();
    let u = workgroupUniformLoad(&one);
    if u > 3u { workgroupBarrier(); data[0] = f32(atomicLoad(&t.n)); }
    t.a[l.x].y = 1.0;
    t.a[2][l.x] = select(0.0, 1.0, t.flag);
}
