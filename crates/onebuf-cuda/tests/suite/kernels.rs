//! Kernels of each language, workgroup memory to the byte, and a device that is lost.

use std::process::Command;
use std::time::Duration;

use crate::support::{self, Sound, compile, kernel, mapped, on_every_device, required, slice, wait, whole};
use onebuf_core::backend::{Backend, Bounds, Device, KernelSource, Launch, Part, Work};
use onebuf_core::{Access, Binding, BindingKind, Error, Features, KernelInterface, Override, Scalar, Slot};
use onebuf_cuda::{Cuda, CudaOptions};

fn interface(entry: &str, immediate_bytes: u32, workgroup_bytes: u64) -> KernelInterface {
    KernelInterface {
        entry: entry.into(),
        workgroup_size: [64, 1, 1],
        bindings: vec![Binding {
            slot: Slot { group: 0, binding: 0 },
            name: "y".into(),
            ty: "array<f32>".into(),
            kind: BindingKind::Storage,
            access: Access::ReadWrite,
            min_bytes: 4,
            stride_bytes: Some(4),
            scalar: Some(Scalar::F32),
        }],
        immediate_bytes,
        workgroup_bytes,
        features: Features::default(),
    }
}

const SCALE: &str = "
    extern \"C\" __global__ void scale(float* y, float a) { y[blockIdx.x * 64 + threadIdx.x] *= a; }";

const SCALE_PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry scale(.param .u64 y, .param .f32 a) {
    .reg .b32 %r<5>; .reg .f32 %f<4>; .reg .b64 %d<5>;
    ld.param.u64 %d1, [y];
    ld.param.f32 %f1, [a];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.s32 %d3, %r4, 4;
    add.s64 %d4, %d2, %d3;
    ld.global.f32 %f2, [%d4];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%d4], %f3;
    ret;
}";

#[test]
fn native_sources_run() {
    on_every_device(|device| {
        let interface = interface("scale", 4, 0);
        for source in [KernelSource::CudaC(SCALE, &interface), KernelSource::Ptx(SCALE_PTX, &interface)] {
            let scale = compile(device, source, &[], Bounds::Checked).unwrap();
            let y = mapped(device, 4096);
            slice::<f32>(&y).fill(3.0);
            let (bindings, immediates) = ([whole(&y)], 2f32.to_ne_bytes());
            let launch =
                Launch { kernel: &scale, bindings: &bindings, immediates: &immediates, groups: [16, 1, 1] };
            let stream = device.create_stream().unwrap();
            wait(device, stream.run(Work::Launch(launch), &[]).unwrap());
            assert!(slice::<f32>(&y).iter().all(|&y| y == 6.0), "{}", source.language());
            let split = Launch { groups: [1, 70_000, 1], ..launch };
            let split = stream.run(Work::Launch(split), &[]);
            assert!(matches!(split, Err(Error::Unsupported { .. })), "{}", source.language());
        }
    });
}

#[test]
fn code_that_is_wrong_is_refused() {
    on_every_device(|device| {
        let interface = interface("scale", 4, 0);
        let spirv: KernelSource<'_> = KernelSource::SpirV(&[0x0723_0203], &interface);
        let wrong = [
            KernelSource::Ptx("this is no PTX", &interface),
            KernelSource::Ptx(".version 7.0\n.target sm_70\n.address_size 64\n", &interface),
            KernelSource::CudaC(
                "extern \"C\" __global__ void scale(float* y, float a) { nope; }",
                &interface,
            ),
            KernelSource::CudaC("__global__ void scale(float* y, float a) {}", &interface),
            KernelSource::Wgsl("@compute @workgroup_size(1) fn f() { nope }"),
            spirv,
        ];
        for (case, source) in wrong.into_iter().enumerate() {
            let error = compile(device, source, &[], Bounds::Checked).err().unwrap();
            eprintln!("{error}");
            assert!(matches!(error, Error::InvalidKernel { .. }), "case {case}: {error}");
        }
        // A refusal does no harm to the context.
        let y = mapped(device, 64);
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Fill { to: whole(&y), word: 1 }, &[]).unwrap());
    });
}

#[test]
fn a_second_compilation_is_spared() {
    on_every_device(|device| {
        let unique = format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             @compute @workgroup_size(64) fn put(@builtin(global_invocation_id) id: vec3<u32>) {{ y[id.x] = {}u; }}",
            std::process::id()
        );
        let first = kernel(device, &unique, &[]);
        let second = kernel(device, &unique, &[]);
        let kept = std::env::var_os("ONEBUF_CACHE_DIR").is_none_or(|value| value != "off");
        assert_eq!(first.was_cached(), Some(false));
        assert_eq!(second.was_cached(), Some(kept && std::env::var_os("HOME").is_some()));
        let y = mapped(device, 256);
        let bindings = [whole(&y)];
        let launch = Launch { kernel: &second, bindings: &bindings, immediates: &[], groups: [1, 1, 1] };
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Launch(launch), &[]).unwrap());
        assert!(slice::<u32>(&y).iter().all(|&word| word == std::process::id()));
    });
}

/// Each invocation writes its words of workgroup memory, and reads those of the invocation opposite.
const WORKGROUP: &str = "
    override WORDS: u32;
    var<workgroup> shared_words: array<u32, WORDS>;
    @group(0) @binding(0) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(64)
    fn turn(@builtin(local_invocation_index) i: u32) {
        for (var at = i; at < WORDS; at += 64u) { shared_words[at] = at * 3u; }
        workgroupBarrier();
        for (var at = i; at < WORDS; at += 64u) { y[at] = shared_words[WORDS - 1u - at]; }
    }";

#[test]
fn workgroup_memory_is_had_to_the_byte() {
    on_every_device(|device| {
        let most = device.info().limits.max_workgroup_bytes / 4;
        let default = (48 << 10) / 4;
        for words in [1, 64, default - 1, default, default + 1, 20_000.min(most), most] {
            let overrides = [Override { name: "WORDS".into(), value: words as f64 }];
            let turn = kernel(device, WORKGROUP, &overrides);
            let y = mapped(device, words * 4);
            let bindings = [whole(&y)];
            let launch = Launch { kernel: &turn, bindings: &bindings, immediates: &[], groups: [1, 1, 1] };
            let stream = device.create_stream().unwrap();
            wait(device, stream.run(Work::Launch(launch), &[]).unwrap());
            for (at, &word) in slice::<u32>(&y).iter().enumerate() {
                assert_eq!(word, (words as u32 - 1 - at as u32) * 3, "word {at} of {words}");
            }
        }
        let overrides = [Override { name: "WORDS".into(), value: (most + 1) as f64 }];
        let error =
            compile(device, KernelSource::Wgsl(WORKGROUP), &overrides, Bounds::Checked).err().unwrap();
        assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    });
}

#[test]
fn dynamic_memory_of_native_kernels_is_what_they_do_not_declare() {
    on_every_device(|device| {
        let source = "
            extern __shared__ float dynamic_part[];
            extern \"C\" __global__ void scale(float* y, float a) {
                __shared__ float own_part[1024];
                for (int i = threadIdx.x; i < 1024; i += 64) own_part[i] = a;
                for (int i = threadIdx.x; i < 16384; i += 64) dynamic_part[i] = own_part[i % 1024];
                __syncthreads();
                y[threadIdx.x] = dynamic_part[16383 - threadIdx.x] + own_part[threadIdx.x];
            }";
        let interface = interface("scale", 4, 4096 + 65_536);
        let scale = compile(device, KernelSource::CudaC(source, &interface), &[], Bounds::Checked).unwrap();
        let y = mapped(device, 256);
        let (bindings, immediates) = ([whole(&y)], 4f32.to_ne_bytes());
        let launch =
            Launch { kernel: &scale, bindings: &bindings, immediates: &immediates, groups: [1, 1, 1] };
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Launch(launch), &[]).unwrap());
        assert!(slice::<f32>(&y).iter().all(|&y| y == 8.0));
    });
}

#[test]
fn misaligned_bindings_are_refused_before_they_fault() {
    on_every_device(|device| {
        let source = "
            @group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
            @compute @workgroup_size(1) fn one() { y[0] = vec4<f32>(1.0); }";
        let one = kernel(device, source, &[]);
        let y = mapped(device, 256);
        let part = Part { memory: &y, offset_bytes: 4, size_bytes: 64 };
        let bindings = [part];
        let launch = Launch { kernel: &one, bindings: &bindings, immediates: &[], groups: [1, 1, 1] };
        let error = device.create_stream().unwrap().run(Work::Launch(launch), &[]).unwrap_err();
        assert!(
            matches!(&error, Error::BindingMismatch { problem, .. } if problem.contains("16")),
            "{error}"
        );
    });
}

/// A fault ends the context of the whole process, so it happens in a child.
const CHILD: &str = "ONEBUF_CUDA_TEST_FAULT";

#[test]
fn a_fault_is_named_and_ends_the_device() {
    if std::env::var_os(CHILD).is_some() {
        return fault_and_open_again();
    }
    on_every_device(|_| ());
    let this = "kernels::a_fault_is_named_and_ends_the_device";
    let output = Command::new(std::env::current_exe().unwrap())
        .args([this, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    eprintln!("{text}");
    assert!(!required() || text.contains("the device was lost as it should"), "{text}");
}

/// Nothing else of the process holds the device, so that its context can go.
fn fault_and_open_again() {
    let Ok(cuda) = Cuda::new(CudaOptions::default()) else {
        return support::not_run("no CUDA here");
    };
    for adapter in cuda.adapters().unwrap().into_iter().filter(|adapter| adapter.rejected.is_none()) {
        let device = cuda.open(adapter.info.id.ordinal).unwrap();
        fault(&*device);
        drop(device);
        match cuda.open(adapter.info.id.ordinal) {
            Ok(again) => {
                let word = mapped(&*again, 4);
                let stream = again.create_stream().unwrap();
                wait(&*again, stream.run(Work::Fill { to: whole(&word), word: 7 }, &[]).unwrap());
                assert_eq!(slice::<u32>(&word), [7]);
                eprintln!("the device was opened again, and works");
            }
            Err(error) => {
                assert!(matches!(error, Error::DeviceLost(_) | Error::NoDevice(_)), "{error}");
                eprintln!("CUDA does not let the device be opened again in this process: {error}");
            }
        }
    }
}

fn fault(device: &dyn Device) {
    let source = "
        @group(0) @binding(0) var<storage, read_write> y: array<u32>;
        var<immediate> at: u32;
        @compute @workgroup_size(1) fn stray() { y[at] = 1u; }";
    let stray = compile(device, KernelSource::Wgsl(source), &[], Bounds::Unchecked).unwrap();
    let y = support::on_device(device, 4096);
    let far = 0xffff_fff0u32.to_ne_bytes();
    let bindings = [whole(&y)];
    let launch = Launch { kernel: &stray, bindings: &bindings, immediates: &far, groups: [1, 1, 1] };
    let stream = device.create_stream().unwrap();
    let ticket = stream.run(Work::Launch(launch), &[]).unwrap();
    let error = device.wait(&[ticket], Some(Duration::from_secs(20))).unwrap_err();
    eprintln!("{error}");
    assert!(matches!(&error, Error::DeviceLost(why) if why.contains("`stray`")), "{error}");
    // Every later call says so.
    let again = stream.run(Work::Fill { to: whole(&y), word: 1 }, &[]).unwrap_err();
    assert_eq!(again, error);
    assert_eq!(device.wait(&[ticket], None).unwrap_err(), error);
    assert_eq!(device.create_stream().err(), Some(error.clone()));
    assert_eq!(compile(device, KernelSource::Wgsl(source), &[], Bounds::Checked).err(), Some(error.clone()));
    assert!(matches!(stream.event().err(), Some(Error::DeviceLost(_))));
    drop((stream, y));
    eprintln!("the device was lost as it should");
    // Beside the lost device there is none: they would share the context that is dead.
    let cuda = Cuda::new(CudaOptions::default()).unwrap();
    let beside = cuda.open(device.info().id.ordinal).err();
    assert!(matches!(&beside, None | Some(Error::DeviceLost(_))), "{beside:?}");
    eprintln!("beside the lost device: {beside:?}");
}
