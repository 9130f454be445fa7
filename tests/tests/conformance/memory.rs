//! Buffers as memory: sizes, zeros, alignment, limits, statistics, the pool, exhaustion.

use onebuf::{Buffer, Device, Error, HostAccess, Share, args};
use onebuf_tests::{Subject, kernels, lab, seeds};

/// Sizes at which something changes: words, the pool's classes, pages, blocks.
const SIZES: [usize; 17] =
    [0, 1, 2, 3, 4, 5, 7, 255, 256, 257, 511, 1000, 4095, 4096, 65_537, 1 << 20, (9 << 20) + 3];

/// Those of [`SIZES`] that a device can have.
fn sizes(device: &Device) -> impl Iterator<Item = usize> + Clone {
    let most = device.info().limits.max_buffer_bytes;
    SIZES.into_iter().filter(move |size| *size as u64 <= most)
}

/// Leaves memory that is not zero where the next buffers come from.
fn soil(device: &Device, sizes: impl IntoIterator<Item = usize>) {
    let stream = device.default_stream().unwrap();
    for size in sizes {
        let dirty: Vec<Buffer<u8>> =
            (0..3).map(|_| device.buffer(size).host(HostAccess::ReadWrite).build().unwrap()).collect();
        for buffer in &dirty {
            stream.fill(buffer, 0xa5a5_a5a5).unwrap();
        }
    }
    stream.wait().unwrap();
}

#[test]
fn zeroed_buffers_are_zero() {
    lab::on_every_device(|subject| {
        soil(&subject.device, sizes(&subject.device));
        for size in sizes(&subject.device) {
            for host in [HostAccess::None, HostAccess::ReadWrite] {
                let buffer = subject.device.buffer::<u8>(size).host(host).zeroed().build().unwrap();
                assert!(
                    buffer.read_to_vec().unwrap().iter().all(|&byte| byte == 0),
                    "{size} bytes, {host:?}"
                );
            }
        }
    });
}

#[test]
fn memory_that_leaves_the_process_is_zero_unasked() {
    lab::on(&[lab::Variant::Real, lab::Variant::Tight], |subject| {
        let sizes = || sizes(&subject.device).filter(|size| *size <= 1 << 20);
        soil(&subject.device, sizes());
        let shared = |size: usize| subject.device.buffer::<u8>(size).share(Share::Process).build();
        if let Err(error) = shared(16) {
            assert!(matches!(error, Error::NoPlacement { .. } | Error::Unsupported { .. }), "{error}");
            return subject.skip("it exports no memory");
        }
        for size in sizes() {
            let buffer = shared(size).unwrap();
            assert!(buffer.read_to_vec().unwrap().iter().all(|&byte| byte == 0), "{size} bytes");
        }
    });
}

#[test]
fn the_bytes_past_the_end_of_the_last_word_are_zero() {
    lab::on_every_device(|subject| {
        let sizes = [1usize, 2, 3, 5, 6, 7, 1001, 4097];
        soil(&subject.device, sizes);
        let copy = subject.kernel(
            "@group(0) @binding(0) var<storage, read> source: array<u32>;
             @group(0) @binding(1) var<storage, read_write> last: array<u32>;
             @compute @workgroup_size(1) fn copy_last() {
                 last[0] = source[arrayLength(&source) - 1u];
                 last[1] = arrayLength(&source);
             }",
        );
        for size in sizes {
            let bytes = vec![0x77u8; size];
            let made = [
                subject.device.buffer(size).host(HostAccess::ReadWrite).init(&bytes).unwrap(),
                subject.device.buffer(size).host(HostAccess::None).init(&bytes).unwrap(),
                subject.device.buffer(size).host(HostAccess::Write).build().unwrap(),
                subject.device.buffer(size).build().unwrap(),
            ];
            for (how, buffer) in made.iter().enumerate() {
                if how >= 2 {
                    buffer.copy_from_slice(&bytes).unwrap();
                }
                let last = subject.zeros::<u32>(2);
                subject.run(&copy, [1, 1, 1], args![buffer, last]);
                let expected: u32 = (0..size % 4).map(|i| 0x77 << (8 * i)).sum();
                let expected = if size % 4 == 0 { 0x7777_7777 } else { expected };
                assert_eq!(
                    *last.read().unwrap(),
                    [expected, size.div_ceil(4) as u32],
                    "{size} bytes, made {how}"
                );
            }
        }
    });
}

#[test]
fn every_size_holds_what_is_written() {
    lab::on_every_device(|subject| {
        for size in sizes(&subject.device) {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 31 + size) as u8).collect();
            for host in [HostAccess::None, HostAccess::Read, HostAccess::Write, HostAccess::ReadWrite] {
                let buffer = subject.device.buffer::<u8>(size).host(host).init(&bytes).unwrap();
                assert_eq!((buffer.len(), buffer.size_bytes()), (size, size as u64));
                assert_eq!(buffer.is_empty(), size == 0);
                assert!(buffer.read_to_vec().unwrap() == bytes, "{size} bytes, {host:?}");
                let copy = subject.device.buffer::<u8>(size).host(host).build().unwrap();
                subject.stream().copy(&buffer, &copy).unwrap();
                assert!(copy.read_to_vec().unwrap() == bytes, "copy of {size} bytes, {host:?}");
            }
        }
    });
}

#[test]
fn empty_buffers_are_allowed_and_do_nothing() {
    lab::on_every_device(|subject| {
        let empty = subject.zeros::<u32>(0);
        let other = subject.buffer::<u32>(&[]);
        assert!(empty.read().unwrap().is_empty());
        assert!(empty.write().unwrap().is_empty());
        let stream = subject.stream();
        stream.copy(&empty, &other).unwrap();
        stream.fill(&empty, 7).unwrap();
        stream.wait().unwrap();
        let kernel = subject.kernel(kernels::INCREMENT);
        let some = subject.buffer(&[1u32, 2, 3]);
        let nothing = some.slice(2..2).unwrap();
        assert!(nothing.is_empty() && nothing.read().unwrap().is_empty());
        // WGSL has no empty arrays.
        let refused = stream.launch(&kernel, [1, 1, 1], args![nothing]);
        assert!(matches!(refused, Err(Error::BindingMismatch { .. })), "{refused:?}");
        let refused = stream.launch(&kernel, [1, 1, 1], args![empty]);
        assert!(matches!(refused, Err(Error::BindingMismatch { .. })), "{refused:?}");
    });
}

#[test]
fn buffers_begin_at_multiples_of_256_bytes() {
    lab::on_real_devices(|subject| {
        let mut kept: Vec<Buffer<u8>> = Vec::new();
        for size in SIZES.iter().copied().chain(1..40) {
            let builder = subject.device.buffer::<u8>(size).host(HostAccess::ReadWrite);
            let buffer = builder.init_with(|i| i as u8).unwrap();
            // SAFETY: its address is asked, and nothing is done with it.
            if let Some(pointer) = unsafe { buffer.raw() }.host_pointer() {
                assert!(pointer.addr().get().is_multiple_of(256), "{size} bytes at {pointer:?}");
            }
            assert!(buffer.read().unwrap().as_ptr().addr().is_multiple_of(8) || size == 0);
            kept.push(buffer);
        }
        // All at once, so that neighbours would show.
        for buffer in &kept {
            assert!(buffer.read().unwrap().iter().enumerate().all(|(i, &byte)| byte == i as u8));
        }
    });
}

#[test]
fn sizes_past_the_limits_are_refused_before_any_driver_sees_them() {
    lab::on_every_device(|subject| {
        let device = &subject.device;
        let most = device.info().limits.max_buffer_bytes;
        let before = lab::backend_memory(device);
        let limit = |error: Error, asked: u64| match error {
            Error::LimitExceeded { what, required, available } => {
                assert!(what.contains("buffer size in bytes"), "{what}");
                assert_eq!((required, available), (asked, most), "{what}");
            }
            other => panic!("{other}"),
        };
        if let Some(past) = most.checked_add(1).and_then(|past| usize::try_from(past).ok()) {
            limit(device.buffer::<u8>(past).build().unwrap_err(), most + 1);
            limit(device.buffer::<u8>(past).host(HostAccess::ReadWrite).build().unwrap_err(), most + 1);
            limit(device.buffer::<u8>(past).share(Share::Process).build().unwrap_err(), most + 1);
        }
        // Products that do not fit 64 bits, and some that wrap to small numbers.
        for len in
            [usize::MAX, usize::MAX / 8 + 1, usize::MAX / 8 + 2, usize::MAX / 2, 1 << 61, (1 << 61) + 1]
        {
            let error = device.buffer::<u64>(len).build().unwrap_err();
            assert!(
                matches!(error, Error::LimitExceeded { .. } | Error::OutOfMemory { .. }),
                "{len}: {error}"
            );
            let error = device.buffer::<[u64; 4]>(len).host(HostAccess::Read).build().unwrap_err();
            assert!(
                matches!(error, Error::LimitExceeded { .. } | Error::OutOfMemory { .. }),
                "{len}: {error}"
            );
            let error = device.page_vec::<u64>(len).unwrap_err();
            assert!(
                matches!(error, Error::LimitExceeded { .. } | Error::OutOfMemory { .. }),
                "{len}: {error}"
            );
        }
        for len in [usize::MAX, usize::MAX - 1, usize::MAX - 2, usize::MAX - 3] {
            let error = device.buffer::<u8>(len).build().unwrap_err();
            assert!(
                matches!(error, Error::LimitExceeded { .. } | Error::OutOfMemory { .. }),
                "{len}: {error}"
            );
        }
        let after = lab::backend_memory(device);
        assert_eq!((after.buffers, after.block_bytes), (before.buffers, before.block_bytes));
    });
}

#[test]
fn more_than_a_heap_holds_never_fits() {
    lab::on_every_device(|subject| {
        let device = &subject.device;
        let profile = device.profile();
        let heap = profile.heaps.iter().map(|heap| heap.size_bytes).max().unwrap();
        let most = profile.max_buffer_bytes;
        let asked = heap.max(profile.max_allocation_bytes) + 4;
        let Ok(len) = usize::try_from(asked) else { return subject.skip("its heaps are past this CPU") };
        let error = device.buffer::<u8>(len).build().unwrap_err();
        match error {
            Error::LimitExceeded { what, required, available } => {
                assert!(available == most || available == profile.max_allocation_bytes, "{what}");
                assert!(required == asked && asked > available, "{what}");
            }
            Error::OutOfMemory { asked_bytes, free_bytes, never_fits } => {
                assert_eq!(asked_bytes, asked.next_multiple_of(4));
                assert!(never_fits && free_bytes.is_some_and(|free| free < asked_bytes));
            }
            other => panic!("{other}"),
        }
        // The device goes on.
        let values = subject.compute::<u32>(kernels::INCREMENT, [1, 1, 1], 3);
        assert_eq!(values, [1, 1, 1]);
    });
}

#[test]
fn elements_without_bytes_are_refused() {
    lab::on_every_device(|subject| {
        let error = subject.device.buffer::<[u32; 0]>(10).build().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        let pages = subject.device.page_vec::<[u32; 0]>(10).unwrap();
        let Err(refused) = subject.device.adopt(pages) else { panic!("adopted") };
        let expected = |error: &Error| matches!(error, Error::InvalidArgument(_) | Error::Unsupported { .. });
        assert!(expected(&refused.error), "{refused}");
    });
}

#[test]
fn initial_elements_must_be_as_many_as_the_buffer_is_long() {
    lab::on_every_device(|subject| {
        for given in [0usize, 3, 5, 100] {
            let error = subject.device.buffer::<u32>(4).init(&vec![1; given]).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
        let buffer = subject.device.buffer::<u32>(4).init_with(|i| 10 + i as u32).unwrap();
        assert_eq!(buffer.read_to_vec().unwrap(), [10, 11, 12, 13]);
        for given in [0usize, 3, 5] {
            assert!(matches!(buffer.copy_from_slice(&vec![1; given]), Err(Error::InvalidArgument(_))));
            assert!(matches!(buffer.copy_to_slice(&mut vec![1; given]), Err(Error::InvalidArgument(_))));
        }
    });
}

#[test]
fn views_of_another_type_share_the_memory() {
    lab::on_every_device(|subject| {
        let words = subject.buffer(&[0x0403_0201u32, 0x0807_0605]);
        let bytes = words.cast::<u8>().unwrap();
        assert_eq!(*bytes.read().unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(bytes.same_memory(&words));
        bytes.write().unwrap()[3] = 0xff;
        assert_eq!(words.read().unwrap()[0], 0xff03_0201);
        assert_eq!(words.cast::<u64>().unwrap().len(), 1);
        assert!(matches!(words.cast::<[u32; 3]>(), Err(Error::InvalidArgument(_))));
        assert!(matches!(words.cast::<[u32; 0]>(), Err(Error::InvalidArgument(_))));
        // A view through which elements would be misaligned on the CPU is refused when it is looked at.
        let odd = subject.zeros::<u8>(33);
        let slice = odd.slice(1..33).unwrap();
        assert_eq!(slice.read().unwrap().len(), 32);
        assert!(matches!(odd.cast::<u64>(), Err(Error::InvalidArgument(_))));
    });
}

#[test]
fn slices_out_of_range_are_refused() {
    use std::ops::Bound;
    lab::on_every_device(|subject| {
        let buffer = subject.buffer(&[1u32, 2, 3, 4]);
        assert_eq!(*buffer.slice(1..3).unwrap().read().unwrap(), [2, 3]);
        assert_eq!(*buffer.slice(..=2).unwrap().read().unwrap(), [1, 2, 3]);
        assert_eq!(buffer.slice(4..).unwrap().len(), 0);
        let part = buffer.slice(1..).unwrap();
        assert_eq!((part.offset_bytes(), part.size_bytes()), (4, 12));
        assert_eq!(*part.slice(1..).unwrap().slice(..1).unwrap().read().unwrap(), [3]);
        #[allow(clippy::reversed_empty_ranges)]
        let wrong = [
            buffer.slice(0..5).err(),
            buffer.slice(5..).err(),
            buffer.slice(3..2).err(),
            buffer.slice(..=4).err(),
            buffer.slice(0..=usize::MAX).err(),
            buffer.slice(usize::MAX..).err(),
            buffer.slice((Bound::Excluded(usize::MAX), Bound::Unbounded)).err(),
            part.slice(0..4).err(),
        ];
        for (case, error) in wrong.into_iter().enumerate() {
            assert!(matches!(error, Some(Error::InvalidArgument(_))), "case {case}: {error:?}");
        }
    });
}

#[test]
fn statistics_follow_what_lives() {
    lab::on_every_device(|subject| {
        let device = &subject.device;
        let start = device.memory();
        let first = subject.zeros::<u8>(1000);
        let large = 3 << 18;
        let second = subject.zeros::<u8>(large);
        let two = device.memory();
        assert_eq!(two.buffers, start.buffers + 2);
        assert!(two.live_bytes >= start.live_bytes + 1000 + large as u64, "{two:?}");
        assert!(two.live_bytes <= start.live_bytes + (1000 + large as u64) * 9 / 8 + 8192, "{two:?}");
        assert!(two.peak_bytes >= two.live_bytes);
        assert!(two.blocks > 0 && two.block_bytes >= two.live_bytes, "{two:?}");
        assert!((0.0..=1.0).contains(&two.fragmentation()), "{two:?}");
        drop(second);
        let one = device.memory();
        assert_eq!(one.buffers, start.buffers + 1);
        assert!(one.live_bytes < two.live_bytes && one.peak_bytes == two.peak_bytes);
        assert!(one.pool.free_bytes >= large as u64 || one.pool.limit_bytes < 2 * large as u64, "{one:?}");
        drop(first);
        let none = device.memory();
        assert_eq!((none.buffers, none.live_bytes), (start.buffers, start.live_bytes));
        let freed = device.trim();
        assert_eq!(freed, none.pool.free_bytes);
        let trimmed = device.memory();
        assert_eq!((trimmed.pool.free_bytes, trimmed.pool.free_buffers), (0, 0));
        assert!(trimmed.block_bytes <= none.block_bytes);
        if let Some(budget) = trimmed.budget_bytes {
            assert!(budget > 0);
        }
    });
}

#[test]
fn freed_memory_serves_the_next_buffer() {
    lab::on_every_device(|subject| {
        let device = &subject.device;
        let make = || device.buffer::<u32>(5000).host(HostAccess::ReadWrite).build().unwrap();
        drop(make());
        let before = device.memory().pool;
        assert_eq!(before.free_buffers, 1);
        let again = make();
        let after = device.memory().pool;
        assert_eq!((after.hits, after.free_buffers), (before.hits + 1, 0));
        // About the same size serves, too; another intent does not.
        drop(again);
        let near = device.buffer::<u32>(4990).host(HostAccess::ReadWrite).build().unwrap();
        assert_eq!(device.memory().pool.hits, after.hits + 1);
        assert_eq!(near.len(), 4990);
        drop(near);
        let other = device.buffer::<u32>(5000).build().unwrap();
        assert_eq!(device.memory().pool.hits, after.hits + 1);
        drop(other);
    });
}

#[test]
fn a_buffer_from_the_pool_waits_for_the_work_of_the_one_before() {
    lab::on_every_device(|subject| {
        let device = &subject.device;
        let kernel = subject.kernel(kernels::SLOW);
        let rounds = subject.rounds_for(std::time::Duration::from_millis(20));
        let streams = [subject.stream(), subject.stream()];
        seeds::each(6, |rng| {
            let old = device.buffer::<u32>(64).build().unwrap();
            streams[0].launch(&kernel, [1, 1, 1], args![old, rounds]).unwrap();
            drop(old);
            // Its work goes on, and writes to memory that is now another buffer's, unless that is kept in order.
            let value = rng.u32(..);
            let new = device.buffer::<u32>(64).build().unwrap();
            streams[1].fill(&new, value).unwrap();
            assert_eq!(new.read_to_vec().unwrap(), [value; 64]);
            let written = device.buffer::<u32>(64).init_with(|i| value ^ i as u32).unwrap();
            streams[0].wait().unwrap();
            let expected: Vec<u32> = (0..64).map(|i| value ^ i).collect();
            assert_eq!(written.read_to_vec().unwrap(), expected);
            assert_eq!(new.read_to_vec().unwrap(), [value; 64]);
        });
    });
}

#[test]
fn the_pool_keeps_no_more_than_it_says() {
    lab::on_every_device(|subject| {
        let device = &subject.device;
        let limit = device.memory().pool.limit_bytes;
        for round in 0..40u64 {
            let size = ((1 << 18) + round * 17_777) as usize;
            let buffers: Vec<Buffer<u8>> = (0..4).map(|_| device.buffer(size).build().unwrap()).collect();
            drop(buffers);
            let memory = device.memory();
            assert!(memory.pool.free_bytes <= limit, "{memory:?}");
        }
    });
}

#[test]
fn ten_thousand_buffers_live_at_once() {
    lab::on(&[lab::Variant::Real], |subject: &Subject| {
        let device = &subject.device;
        let kernel = subject.kernel(kernels::INCREMENT);
        let stream = subject.stream();
        let buffers: Vec<Buffer<u32>> = (0..10_000u32)
            .map(|i| {
                let builder = device.buffer::<u32>(1 + i as usize % 40).host(HostAccess::ReadWrite);
                builder.init_with(|j| i * 64 + j as u32).unwrap()
            })
            .collect();
        for buffer in buffers.iter().step_by(3) {
            stream.launch(&kernel, [1, 1, 1], args![buffer]).unwrap();
        }
        for (i, buffer) in buffers.iter().enumerate() {
            let one = u32::from(i % 3 == 0);
            let guard = buffer.read().unwrap();
            assert!(guard.iter().enumerate().all(|(j, &v)| v == (i * 64 + j) as u32 + one), "buffer {i}");
        }
        let memory = device.memory();
        assert_eq!(memory.buffers, 10_000);
        // Vulkan drivers allow few allocations, 4096 often, so small buffers share blocks.
        let few = device.info().id.backend == "vulkan";
        assert!(!few || memory.blocks < 64, "{memory:?}");
        drop(buffers);
        assert_eq!(device.memory().buffers, 0);
    });
}
