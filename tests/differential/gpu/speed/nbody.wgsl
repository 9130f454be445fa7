struct Push { dt: f32, softening: f32, n: u32 }
var<immediate> push: Push;
@group(0) @binding(0) var<storage> bodies: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> velocities: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> moved: array<vec4<f32>>;
var<workgroup> tile: array<vec4<f32>, 256>;

fn pull(acceleration: vec3<f32>, own: vec3<f32>, other: vec4<f32>) -> vec3<f32> {
    let r = other.xyz - own;
    let d = dot(r, r) + push.softening;
    let inverse = inverseSqrt(d);
    return acceleration + r * (other.w * inverse * inverse * inverse);
}

@compute @workgroup_size(256)
fn nbody(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let own = bodies[id.x];
    var acceleration = vec3<f32>();
    for (var first = 0u; first < push.n; first += 256u) {
        tile[t] = bodies[first + t];
        workgroupBarrier();
        for (var j = 0u; j < 256u; j++) {
            acceleration = pull(acceleration, own.xyz, tile[j]);
        }
        workgroupBarrier();
    }
    let velocity = velocities[id.x].xyz + acceleration * push.dt;
    velocities[id.x] = vec4(velocity, 0.0);
    moved[id.x] = vec4(own.xyz + velocity * push.dt, own.w);
}
