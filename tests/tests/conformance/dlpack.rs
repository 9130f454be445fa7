//! Buffers as tensors of other libraries, and back, as far as one process shows it.

use onebuf::dlpack::{ConsumerStream, DataType, Label, Managed, Tensor, View};
use onebuf::{Buffer, DeviceUse, Error, HostAccess, HostPath, Share, args};
use onebuf_tests::{Subject, kernels, lab};

/// Hands a tensor over in C, to the same program.
fn through_c(tensor: Managed, versioned: bool) -> Managed {
    if versioned {
        // SAFETY: the structure is whole, and is taken once.
        return unsafe { Managed::import_versioned(tensor.into_versioned().as_ptr()) }.unwrap();
    }
    // SAFETY: as above.
    unsafe { Managed::import_legacy(tensor.into_legacy().unwrap().as_ptr()) }.unwrap()
}

fn words(tensor: &Tensor) -> &[u32] {
    assert!(tensor.device().is_host_visible() && tensor.dtype() == DataType::of::<u32>());
    // SAFETY: the tensor is of the CPU, in the order of C, and lives as long as it is borrowed.
    unsafe { std::slice::from_raw_parts(tensor.data().cast::<u32>(), tensor.len() as usize) }
}

#[test]
fn guards_become_tensors_that_hold_them() {
    lab::on_every_device(|subject| {
        let increment = subject.kernel(kernels::INCREMENT);
        let buffer = subject.buffer::<u32>(&[5; 60]);
        subject.run(&increment, [1, 1, 1], args![buffer]);
        let tensor = through_c(buffer.read().unwrap().into_dlpack(&[3, 4, 5]).unwrap(), true);
        assert_eq!((tensor.shape(), tensor.strides()), (&[3, 4, 5][..], &[20, 5, 1][..]));
        assert!(tensor.is_read_only() && tensor.device() == Label::CPU);
        assert_eq!(words(&tensor), [6; 60]);
        let stream = subject.stream();
        let refused = stream.launch(&increment, [1, 1, 1], args![buffer]);
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
        std::thread::spawn(move || drop(tensor)).join().unwrap();
        // What is written to a tensor is the device's when it is dropped.
        let tensor = through_c(buffer.write().unwrap().into_dlpack(&[60]).unwrap(), false);
        // SAFETY: the guard behind the tensor makes it the only way to the elements.
        unsafe { std::slice::from_raw_parts_mut(tensor.data().cast::<u32>(), 60) }.fill(40);
        drop(tensor);
        stream.launch(&increment, [1, 1, 1], args![buffer]).unwrap();
        assert_eq!(*buffer.read().unwrap(), [41; 60]);
        for wrong in [&[61usize][..], &[2, 31], &[], &[usize::MAX, 2]] {
            let refused = buffer.read().unwrap().into_dlpack(wrong);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{wrong:?}");
        }
        let read_only = buffer.read().unwrap().into_dlpack(&[60]).unwrap();
        assert!(read_only.into_legacy().is_err(), "the legacy form cannot say that it may only be read");
        let empty = subject.zeros::<u32>(0).read().unwrap().into_dlpack(&[0, 7]).unwrap();
        assert!(through_c(empty, true).is_empty());
    });
}

/// A buffer of each sort that a program can ask for.
fn buffers(subject: &Subject) -> Vec<Buffer<u32>> {
    let make = || subject.device.buffer::<u32>(64);
    [
        make().device_use(DeviceUse::Heavy),
        make().host(HostAccess::ReadWrite),
        make().host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy),
        make().host(HostAccess::ReadWrite).share(Share::Process),
    ]
    .into_iter()
    .filter_map(|builder| builder.init(&[7; 64]).ok())
    .collect()
}

#[test]
fn a_buffers_own_memory_is_labelled_by_what_it_is() {
    lab::on_every_device(|subject| {
        let increment = subject.kernel(kernels::INCREMENT);
        let real_cuda = subject.device.info().id.backend == "cuda" && subject.control().is_none();
        let ordinal = subject.device.info().id.ordinal as i32;
        for buffer in buffers(subject) {
            subject.run(&increment, [1, 1, 1], args![buffer]);
            let told = buffer.placement().to_string();
            // SAFETY: the tensors are looked at while nothing else uses the buffer.
            let see = |view| unsafe { buffer.to_dlpack(view, &[8, 8], false) };
            for view in [View::Placement, View::Host, View::Device] {
                let seen = match see(view) {
                    Ok(tensor) => through_c(tensor, view != View::Host),
                    Err(Error::Unsupported { .. }) => {
                        let placement = buffer.placement();
                        let near = matches!(
                            placement.path,
                            HostPath::Uma | HostPath::HostMemory | HostPath::Unified
                        );
                        assert!(!real_cuda || view == View::Host, "{told}");
                        assert!(
                            view == View::Device || placement.staged || !placement.coherent || !near,
                            "{told}"
                        );
                        continue;
                    }
                    Err(other) => panic!("{other}"),
                };
                assert_eq!((seen.byte_offset(), seen.strides()), (0, &[8, 1][..]));
                assert!((seen.data().addr()).is_multiple_of(256), "{told}");
                match (view, real_cuda) {
                    (View::Device, _) => assert_eq!(seen.device(), Label::cuda(ordinal), "{told}"),
                    (View::Placement, true) => {
                        let expected = match &*buffer.placement().kind {
                            "managed" => Label::cuda_managed(ordinal),
                            "pinned" | "pinned-wc" => Label::CUDA_HOST,
                            _ => Label::cuda(ordinal),
                        };
                        assert_eq!(seen.device(), expected, "{told}");
                    }
                    _ => assert_eq!(seen.device(), Label::CPU, "{told}"),
                }
                if seen.device().is_host_visible() {
                    // The work so far has been waited for.
                    assert_eq!(words(&seen), [8; 64], "{told}");
                }
            }
            let guard = buffer.copy_from_slice(&[9; 64]).and_then(|()| buffer.read());
            if let Ok(guard) = guard {
                assert!(
                    matches!(see(View::Placement), Err(Error::Busy(_) | Error::Unsupported { .. })),
                    "{told}"
                );
                drop(guard);
            }
        }
    });
}

#[test]
fn a_tensor_of_the_device_becomes_a_buffer_again() {
    lab::on_real_devices(|subject| {
        let device = &subject.device;
        let increment = subject.kernel(kernels::INCREMENT);
        let mut taken = 0;
        for buffer in buffers(subject) {
            for view in [View::Placement, View::Device, View::Host] {
                // SAFETY: one side waits for the other.
                let Ok(tensor) = (unsafe { buffer.to_dlpack(view, &[64], false) }) else { continue };
                buffer.copy_from_slice(&[100; 64]).unwrap();
                device.wait_idle().unwrap();
                // SAFETY: as above.
                let again: Buffer<u32> = match unsafe { device.import_dlpack(through_c(tensor, true)) } {
                    Ok(again) => again,
                    Err(Error::DeviceLost(why)) => panic!("{why}"),
                    // Page-locked memory cannot be locked once more, and drivers have many words for memory of their own.
                    Err(_) => continue,
                };
                subject.run(&increment, [1, 1, 1], args![again]);
                device.wait_idle().unwrap();
                assert_eq!(buffer.read_to_vec().unwrap(), [101; 64], "{}", buffer.placement());
                assert_eq!(again.read_to_vec().unwrap(), [101; 64], "{}", again.placement());
                taken += 1;
            }
        }
        assert!(taken > 0 || device.info().id.backend != "cuda", "no tensor came back on {}", subject.name);
    });
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_given_back() {
    lab::on_real_devices(|subject| {
        let import = |tensor: Result<Tensor, onebuf::dlpack::TensorError>| {
            let (owner, gone) = (std::sync::Arc::new(vec![0u32; 1024]), std::sync::Arc::new(()));
            let (kept, watch) = (gone.clone(), std::sync::Arc::downgrade(&gone));
            drop(gone);
            // SAFETY: nothing looks at the elements: each of these is refused.
            let managed = unsafe { Managed::export(tensor.unwrap(), Box::new((owner, kept))) };
            // SAFETY: as above.
            let outcome = unsafe { subject.device.import_dlpack::<u32>(managed) };
            assert_eq!(watch.strong_count(), 0, "its deleter was not called");
            match outcome {
                Err(Error::InvalidArgument(_) | Error::Unsupported { .. }) => {}
                other => panic!("{other:?}"),
            }
        };
        let data = std::ptr::without_provenance_mut(0x10_0000);
        let of = |device, dtype, shape: &[i64]| Tensor::contiguous(data, device, dtype, shape);
        import(of(Label::CPU, DataType::of::<f32>(), &[64]));
        import(of(Label::cuda(0), DataType::of::<u32>(), &[64]).map(Tensor::read_only));
        import(Tensor::strided(data, Label::CPU, DataType::of::<u32>(), &[8, 8], &[1, 8], 0));
        import(of(Label { kind: 10, id: 0 }, DataType::of::<u32>(), &[64]));
        import(of(Label::cuda(77), DataType::of::<u32>(), &[64]));
        // No memory of CUDA is there.
        import(of(Label::cuda(0), DataType::of::<u32>(), &[64]));
        import(Tensor::contiguous(
            std::ptr::without_provenance_mut(0x10_0001),
            Label::CPU,
            DataType::of::<u32>(),
            &[64],
        ));
    });
}

#[test]
fn a_tensor_of_the_cpu_is_used_in_place_and_kept() {
    lab::on_real_devices(|subject| {
        let device = &subject.device;
        let mix = subject.kernel(kernels::MIX);
        for read_only in [false, true] {
            let mut pages = device.page_vec::<u32>(4096).unwrap();
            pages.fill(2);
            let (data, kept) = (pages.as_mut_ptr(), std::sync::Arc::new(()));
            let watch = std::sync::Arc::downgrade(&kept);
            let tensor =
                Tensor::contiguous(data.cast(), Label::CPU, DataType::of::<u32>(), &[64, 64]).unwrap();
            let tensor = if read_only { tensor.read_only() } else { tensor };
            // SAFETY: the elements are the pages', which are kept with the tensor.
            let managed = unsafe { Managed::export(tensor, Box::new((pages, kept))) };
            // SAFETY: nobody else has the pages.
            let buffer: Buffer<u32> = match unsafe { device.import_dlpack(through_c(managed, true)) } {
                Ok(buffer) => buffer,
                Err(Error::Unsupported { reason, .. }) => {
                    assert_eq!(watch.strong_count(), 0, "the tensor was not given back");
                    subject.skip(&reason);
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
            let sum = subject.zeros::<u32>(64);
            let part = buffer.slice(..64).unwrap();
            subject.run(&mix, [1, 1, 1], args![part, sum, 5u32]);
            assert_eq!(*sum.read().unwrap(), [7; 64]);
            let view = buffer.read().unwrap();
            assert!(view.as_ptr() == data.cast_const() && view.len() == 4096, "a copy");
            drop(view);
            assert_eq!(buffer.write().is_ok(), !read_only);
            drop((buffer, sum));
            device.wait_idle().unwrap();
            assert!(lab::eventually(|| watch.strong_count() == 0), "its deleter was not called");
        }
    });
}

#[test]
fn a_consumer_says_who_waits_for_the_work_so_far() {
    lab::on_every_device(|subject| {
        // Each element takes many steps, whose end the compiler does not know.
        let slow = subject.kernel(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             var<immediate> steps: u32;
             @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) {
                 var x = at.x;
                 for (var i = 0u; i < steps; i++) { x = x * 1664525u + 1013904223u; }
                 if at.x < arrayLength(&data) { data[at.x] = select(7u, 8u, x == 1u); }
             }",
        );
        let stream = subject.stream();
        let make = || subject.device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
        // Below what Mesa 22.3 runs of a loop.
        let steps = 60_000u32;
        let mut groups = 1;
        // The work is long enough when it is still under way after an export that nothing waits for.
        loop {
            let buffer = make();
            let ticket = stream.launch(&slow, [groups, 1, 1], args![buffer, steps]).unwrap();
            // SAFETY: the tensor is not used.
            let tensor =
                unsafe { buffer.to_dlpack_on(View::Placement, &[64], false, ConsumerStream::Unordered) };
            let under_way = !subject.device.is_done(ticket).unwrap();
            if matches!(tensor, Err(Error::Unsupported { .. })) {
                return;
            }
            tensor.unwrap();
            stream.wait().unwrap();
            if under_way || subject.control().is_some() {
                break;
            }
            groups *= 2;
            assert!(groups < 1 << 14, "a kernel of a million threads was done at once");
        }
        for said in [ConsumerStream::Unsaid, ConsumerStream::Legacy, ConsumerStream::PerThread] {
            for view in [View::Placement, View::Host] {
                let buffer = make();
                let ticket = stream.launch(&slow, [groups, 1, 1], args![buffer, steps]).unwrap();
                // SAFETY: the tensor is read after the work, and nothing else uses the buffer.
                let tensor = match unsafe { buffer.to_dlpack_on(view, &[64], true, said) } {
                    Ok(tensor) => tensor,
                    Err(Error::Unsupported { .. }) => continue,
                    Err(other) => panic!("{other}"),
                };
                if tensor.device() == Label::CPU {
                    assert!(
                        subject.device.is_done(ticket).unwrap(),
                        "{said:?}: the CPU was not made to wait"
                    );
                }
                stream.wait().unwrap();
                if tensor.device().is_host_visible() {
                    assert_eq!(words(&tensor), [7; 64], "{said:?}");
                }
            }
        }
    });
}
