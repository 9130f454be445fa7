//! Kernels: overrides, limits, other sources.

use onebuf::{Error, Features, KernelInterface, args};

use crate::uma;

#[test]
fn overrides_of_every_type() {
    let (device, _) = uma();
    let kernel = device
        .kernel("r w")
        .unwrap()
        .set("A", true)
        .set("B", -4)
        .set("C", 5u32)
        .set("D", 0.5f32)
        .set("E", 1e300)
        .set("B", 7)
        .build()
        .unwrap();
    assert_eq!(kernel.interface().entry, format!("main A=1 C=5 D=0.5 E={} B=7", 1e300));
}

#[test]
fn what_the_device_lacks_is_named() {
    let (device, _) = uma();
    let build = |source: &str| device.kernel(source).unwrap().build().map(drop);
    let text = |outcome: onebuf::Result<()>| outcome.unwrap_err().to_string();
    assert!(matches!(build("r f16"), Err(Error::Unsupported { .. })));
    assert!(text(build("r f16")).contains("f16"));
    assert!(text(build("r wg512")).contains("workgroup size along x: asked for 512, the device allows 256"));
    assert!(text(build("r shared40000")).contains("bytes of workgroup memory"));
    assert!(text(build("imm200")).contains("bytes of immediate data: asked for 200"));
    assert!(text(build("r r r r r r r r r")).contains("storage bindings: asked for 9"));
    assert!(text(build("u u u u u")).contains("uniform bindings"));
    assert!(matches!(build("nonsense"), Err(Error::InvalidKernel { line: Some(1), .. })));
    assert!(matches!(device.kernel("  \n").map(drop), Err(Error::InvalidKernel { .. })));
}

#[test]
fn grids_cover_their_invocations() {
    let (device, _) = uma();
    let kernel = device.kernel("r w").unwrap().build().unwrap();
    assert_eq!(kernel.groups_for([1000, 3, 0]), [16, 3, 0]);
    assert_eq!(kernel.groups_for([u32::MAX, 1, 1]), [1 << 26, 1, 1]);
}

#[test]
fn spirv_stands_in_for_wgsl() {
    let (device, _) = uma();
    let wgsl = device.kernel("r w").unwrap().build().unwrap();
    let interface = KernelInterface { entry: "native".into(), ..wgsl.interface().clone() };
    let words = [0x0723_0203, 0, 0, 0, 0];
    // SAFETY: the fake device runs what the interface says.
    let native = unsafe { device.kernel("r w").unwrap().spirv(&words, &interface) }.unwrap().build().unwrap();
    assert_eq!(native.interface().entry, "native");
    // SAFETY: as above.
    let alone = unsafe { device.kernel_spirv(&words, &interface) }.unwrap().build().unwrap();
    let a = device.buffer::<u32>(4).build().unwrap();
    let b = device.buffer::<u32>(4).build().unwrap();
    device.stream().unwrap().launch(&alone, [1; 3], args![&a, &b]).unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { device.kernel_spirv(&[1, 2, 3], &interface) };
    assert!(matches!(refused.map(drop), Err(Error::InvalidKernel { .. })));
    let wants = Features { f64: true, ..Features::default() };
    let greedy = KernelInterface { features: wants, ..interface };
    // SAFETY: as above.
    let refused = unsafe { device.kernel_spirv(&words, &greedy) }.unwrap().build();
    assert!(matches!(refused.map(drop), Err(Error::Unsupported { .. })));
}
