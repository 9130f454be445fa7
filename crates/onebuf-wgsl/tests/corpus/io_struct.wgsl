struct In {
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
}
@group(0) @binding(0) var<storage, read_write> a: array<vec3<u32>>;
fn use_it(in: In) -> u32 { return in.index + in.groups.x; }
@compute @workgroup_size(4, 4, 4)
fn main(in: In, @builtin(workgroup_id) w: vec3<u32>) { a[use_it(in)] = in.id + w; }
