//! Tight limits: the library refuses by name what a driver would let pass, and nothing past a limit comes through.

use onebuf::{Error, PageVec, Result, args};
use onebuf_sim::Options;

use crate::World;

fn refused<T>(outcome: Result<T>, part: &str) {
    match outcome {
        Err(
            error @ (Error::LimitExceeded { .. } | Error::BindingMismatch { .. } | Error::InvalidArgument(_)),
        ) => {
            assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
        }
        Err(other) => panic!("{part}: {other}"),
        Ok(_) => panic!("{part}: accepted"),
    }
}

fn kernel(declarations: &str, size: &str, body: &str) -> String {
    format!("{declarations} @compute @workgroup_size({size}) fn main() {{ {body} }}")
}

#[test]
fn tight_limits_hold() {
    let Some(world) = World::new(Options::tight()) else { return };
    let device = &world.device;
    refused(device.buffer::<u8>((1 << 20) + 1).build(), "buffer size in bytes: asked for 1048577");
    let build = |source: String| device.kernel(&source).unwrap().build();
    refused(build(kernel("", "129", "")), "workgroup size along x: asked for 129");
    refused(build(kernel("", "1, 65", "")), "workgroup size along y");
    refused(build(kernel("", "1, 1, 5", "")), "workgroup size along z");
    refused(build(kernel("", "64, 4", "")), "invocations in a workgroup: asked for 256");
    let shared = "var<workgroup> tile: array<u32, 2000>;";
    refused(build(kernel(shared, "8", "tile[0] = 1;")), "bytes of workgroup memory: asked for 8000");
    let storage = |count: usize| -> (String, String) {
        let declare = |i| format!("@group(0) @binding({i}) var<storage, read_write> b{i}: array<u32>;");
        let body = |i| format!("b{i}[0] = 1;");
        ((0..count).map(declare).collect(), (0..count).map(body).collect())
    };
    let (declarations, body) = storage(5);
    refused(build(kernel(&declarations, "8", &body)), "storage bindings: asked for 5");
    let immediates =
        "var<immediate> v: array<vec4u, 2>; @group(0) @binding(0) var<storage, read_write> b: array<u32>;";
    refused(build(kernel(immediates, "8", "b[0] = v[1].x;")), "bytes of immediate data: asked for 32");
    let group = "@group(2) @binding(0) var<storage, read_write> b: array<u32>;";
    refused(build(kernel(group, "8", "b[0] = 1;")), "bind groups: asked for 3");

    let (declarations, body) = storage(1);
    let one = build(kernel(&declarations, "8", &body)).unwrap();
    let stream = device.stream().unwrap();
    let large = device.buffer::<u32>((1 << 14) + 64).build().unwrap();
    let launch = |arg: onebuf::BufferSlice<'_, u32>| stream.launch(&one, [1; 3], args![arg]);
    refused(launch(large.as_slice()), "size of a storage binding");
    refused(launch(large.slice(1..100).unwrap()), "multiple of 256");
    launch(large.slice(64..100).unwrap()).unwrap();
    launch(large.slice(..1 << 14).unwrap()).unwrap();
    refused(device.adopt(PageVec::<u32>::zeroed(100).unwrap()).map_err(Error::from), "65536");
    if let Err(error) = device.adopt(device.page_vec::<u32>(100).unwrap()) {
        assert!(matches!(error.error, Error::Unsupported { .. }), "{error}");
    }
    stream.wait().unwrap();
    world.check();
}
