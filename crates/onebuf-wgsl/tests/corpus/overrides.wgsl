override width: u32 = 32;
override half_width = width / 2;
@id(3) override scale: f32 = 0.5;
override flag: bool = true;
var<workgroup> tile: array<f32, width + 1>;
@group(0) @binding(0) var<storage, read_write> data: array<f32>;

@compute @workgroup_size(width, 2)
fn main(@builtin(local_invocation_id) l: vec3<u32>) {
    tile[l.x] = data[l.x];
    workgroupBarrier();
    data[l.x] = select(tile[l.x], tile[half_width] * scale, flag);
}
