//! Kernels that many cases use, each with what it does on the CPU.

/// Adds 1 to every element.
pub const INCREMENT: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64)
    fn increment(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&data) { data[id.x] += 1u; }
    }";

/// `to[i] = to[i] * 3 + from[i] + k`, over the shorter of both.
pub const MIX: &str = "
    @group(0) @binding(0) var<storage, read> source: array<u32>;
    @group(0) @binding(1) var<storage, read_write> target_data: array<u32>;
    var<immediate> k: u32;
    @compute @workgroup_size(64)
    fn mix_in(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < min(arrayLength(&source), arrayLength(&target_data)) {
            target_data[id.x] = target_data[id.x] * 3u + source[id.x] + k;
        }
    }";

/// [`MIX`] of one element.
pub fn mix(to: u32, from: u32, k: u32) -> u32 {
    to.wrapping_mul(3).wrapping_add(from).wrapping_add(k)
}

/// `data[i] = data[i] * 5 + k`.
pub const STEP: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    var<immediate> k: u32;
    @compute @workgroup_size(64)
    fn step_on(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&data) { data[id.x] = data[id.x] * 5u + k; }
    }";

/// [`STEP`] of one element.
pub fn step(data: u32, k: u32) -> u32 {
    data.wrapping_mul(5).wrapping_add(k)
}

/// Turns a generator `rounds` times [`STEPS`] on the first element: as slow as it is told to be. The loop is short and
/// its body long, since lavapipe of Mesa 22.3 silently ends every invocation's loops after 65,535 iterations in all.
pub const SLOW: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    var<immediate> rounds: u32;
    fn one(s: u32) -> u32 { return (s ^ (s >> 15u)) * 1664525u + 1013904223u; }
    fn four(s: u32) -> u32 { return one(one(one(one(s)))); }
    fn sixteen(s: u32) -> u32 { return four(four(four(four(s)))); }
    @compute @workgroup_size(1)
    fn slow() {
        var state = data[0];
        for (var i = 0u; i < rounds; i++) { state = sixteen(sixteen(sixteen(sixteen(state)))); }
        data[0] = state;
    }";

/// Steps of the generator in a round of [`SLOW`].
pub const STEPS: u32 = 64;

/// The most rounds of [`SLOW`] in one launch.
pub const MOST_ROUNDS: u32 = 60_000;

/// [`SLOW`] on the CPU.
pub fn slow(mut state: u32, rounds: u32) -> u32 {
    for _ in 0..rounds * STEPS {
        state = (state ^ (state >> 15)).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    state
}
