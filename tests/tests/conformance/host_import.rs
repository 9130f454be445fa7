//! Memory that the program already has, used in place.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use onebuf::{Buffer, Error, PageVec, Semantic, args};
use onebuf_tests::lab::Variant;
use onebuf_tests::{Subject, kernels, lab};

/// The alignment that imports want; says so where there are none.
fn alignment(subject: &Subject) -> Option<usize> {
    let wants = subject.device.info().limits.host_import_alignment_bytes as usize;
    let Err(refused) = subject.device.adopt(subject.device.page_vec::<u32>(10).unwrap()) else {
        assert!(wants > 0);
        return Some(wants);
    };
    assert!(matches!(refused.error, Error::Unsupported { .. }), "{refused}");
    assert_eq!(refused.pages.len(), 10);
    // A simulated limit gives no driver what it has not.
    assert!(wants == 0 || subject.variant != Variant::Real);
    subject.skip("it imports no host memory");
    None
}

/// Pages with pages around them that nobody may touch.
struct Guarded {
    base: *mut u8,
    layout: Layout,
    step: usize,
    bytes: usize,
}

const CANARY: u8 = 0xc7;

impl Guarded {
    fn new(step: usize, pages: usize) -> Guarded {
        let layout = Layout::from_size_align((pages + 2) * step, step).unwrap();
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null());
        let guarded = Guarded { base, layout, step, bytes: pages * step };
        for at in (0..step).chain(step + guarded.bytes..layout.size()) {
            // SAFETY: within the layout.
            unsafe { base.add(at).write(CANARY) };
        }
        guarded
    }

    fn inner(&self, at: usize) -> *mut u8 {
        // SAFETY: `at` is at most the inner size.
        unsafe { self.base.add(self.step + at) }
    }

    fn words(&self) -> *mut [u32] {
        std::ptr::slice_from_raw_parts_mut(self.inner(0).cast(), self.bytes / 4)
    }

    fn check(&self) {
        for at in (0..self.step).chain(self.step + self.bytes..self.layout.size()) {
            // SAFETY: within the layout; the device may not come here, which is what is tested.
            let byte = unsafe { self.base.add(at).read_volatile() };
            assert_eq!(byte, CANARY, "byte {} of the pages around", at as i64 - self.step as i64);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) }
    }
}

#[test]
fn pages_are_used_in_place_and_nothing_around_them() {
    lab::on(&[Variant::Real, Variant::Tight], |subject| {
        let Some(step) = alignment(subject) else { return };
        let kernel = subject.kernel(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             @compute @workgroup_size(64) fn past(@builtin(global_invocation_id) id: vec3<u32>) {
                 data[id.x] += id.x;
                 data[arrayLength(&data) + id.x] = 1u;
                 data[0u - 1u - id.x] = 1u;
             }",
        );
        let most = subject.device.info().limits.max_storage_binding_bytes as usize / step;
        for pages in [1usize, 2, 17].into_iter().filter(|pages| *pages <= most) {
            let guarded = Guarded::new(step, pages);
            // SAFETY: the pages outlive the buffer, and are looked at after it is gone.
            let buffer: Buffer<u32> = unsafe { subject.device.import_host(guarded.words()) }.unwrap();
            assert_eq!(buffer.placement().semantic, Some(Semantic::HostImport), "{}", buffer.placement());
            assert!(!buffer.placement().staged);
            {
                let mut guard = buffer.write().unwrap();
                assert_eq!(guard.as_mut_ptr().cast(), guarded.inner(0), "the CPU sees a copy");
                guard.fill(100);
            }
            let before = subject.device.copied_bytes();
            subject.run(&kernel, [guarded.bytes.div_ceil(256) as u32, 1, 1], args![buffer]);
            assert!(buffer.read().unwrap().iter().enumerate().all(|(i, &word)| word == 100 + i as u32));
            assert_eq!(subject.device.copied_bytes(), before);
            subject.stream().fill(&buffer, 0x0102_0304).unwrap();
            drop(buffer); // Waits for the fill.
            for i in 0..guarded.bytes / 4 {
                // SAFETY: the buffer is gone; aligned and within the pages.
                let word = unsafe { guarded.inner(4 * i).cast::<u32>().read_volatile() };
                assert_eq!(word, 0x0102_0304, "word {i}");
            }
            guarded.check();
        }
    });
}

/// Pages that the program may not write, of a file that is mapped.
struct MappedFile {
    pages: *mut std::ffi::c_void,
    words: usize,
}

impl MappedFile {
    fn new(words: usize) -> MappedFile {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let contents: Vec<u8> = (0..words as u32).flat_map(u32::to_ne_bytes).collect();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &contents).unwrap();
        // SAFETY: a new mapping of a file that nobody else has.
        let pages =
            unsafe { mmap(std::ptr::null_mut(), 4 * words, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        MappedFile { pages: pages.unwrap(), words }
    }

    fn words(&self) -> *const [u32] {
        std::ptr::slice_from_raw_parts(self.pages.cast(), self.words)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and no buffer is left.
        unsafe { rustix::mm::munmap(self.pages, 4 * self.words) }.unwrap();
    }
}

#[test]
fn a_mapped_file_is_read_in_place_and_never_written() {
    lab::on(&[Variant::Real], |subject| {
        let Some(step) = alignment(subject) else { return };
        // Whole workgroups, where a few bytes are alignment enough.
        let file = MappedFile::new(step.max(1024));
        // SAFETY: refused.
        let refused = unsafe { subject.device.import_host(file.words().cast_mut()) };
        assert!(
            matches!(&refused, Err(Error::InvalidArgument(why)) if why.contains("import_host_read_only"))
        );
        // SAFETY: the mapping outlives the buffer, and nobody writes the file.
        let file_buffer: Buffer<u32> = match unsafe { subject.device.import_host_read_only(file.words()) } {
            Ok(buffer) => buffer,
            Err(Error::Unsupported { .. }) => return subject.skip("it imports no pages of files"),
            Err(error) => panic!("{error}"),
        };
        let double = subject.kernel(
            "@group(0) @binding(0) var<storage> source: array<u32>;
             @group(0) @binding(1) var<storage, read_write> to: array<u32>;
             @compute @workgroup_size(64) fn double(@builtin(global_invocation_id) id: vec3<u32>) {
                 to[id.x] = source[id.x] * 2u;
             }",
        );
        let out = subject.buffer(&vec![7u32; file.words]);
        // A write that is let through ends this program: by the CPU here, by the device in the driver's thread.
        assert!(file_buffer.write().is_err() && file_buffer.try_write().is_err());
        assert!(matches!(subject.stream().fill(&file_buffer, 1), Err(Error::InvalidArgument(_))));
        assert!(matches!(subject.stream().copy(&out, &file_buffer), Err(Error::InvalidArgument(_))));
        let written = subject.stream().launch(&double, [1, 1, 1], args![out, file_buffer]);
        assert!(matches!(written, Err(Error::BindingMismatch { .. })), "{written:?}");
        subject.run(&double, [file.words as u32 / 64, 1, 1], args![file_buffer, out]);
        assert!(out.read().unwrap().iter().enumerate().all(|(i, &word)| word == 2 * i as u32));
        assert!(file_buffer.read().unwrap().iter().enumerate().all(|(i, &word)| word == i as u32));
    });
}

#[test]
fn misaligned_memory_is_refused_with_what_to_do() {
    lab::on(&[Variant::Real, Variant::Tight], |subject| {
        let Some(step) = alignment(subject) else { return };
        let guarded = Guarded::new(step, 2);
        let part = |at: usize, bytes: usize| std::ptr::slice_from_raw_parts_mut(guarded.inner(at), bytes);
        let wrong = [
            (part(1, step), "page_vec"),
            (part(step / 2, step), "page_vec"),
            (part(4, step), "page_vec"),
            (part(0, step - 1), "round up"),
            (part(0, step + 4), "round up"),
            (part(0, 1), "round up"),
            (part(0, 0), "round up"),
        ];
        for (bytes, remedy) in wrong {
            // Where a few bytes are alignment enough, some of these are aligned.
            let fits = bytes.cast::<u8>().addr().is_multiple_of(step) && bytes.len().is_multiple_of(step);
            if fits && !bytes.is_empty() {
                continue;
            }
            // SAFETY: the bytes are within the pages, which outlive the call.
            match unsafe { subject.device.import_host(bytes) } {
                Err(Error::InvalidArgument(message)) => {
                    assert!(message.contains(remedy) && message.contains(&step.to_string()), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
        // SAFETY: the pointer is null, which is refused.
        let null = unsafe {
            subject.device.import_host(std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut::<u32>(), 4))
        };
        assert!(matches!(null, Err(Error::InvalidArgument(_))), "{null:?}");
        let huge = std::ptr::slice_from_raw_parts_mut(guarded.inner(0), (isize::MAX as usize) / step * step);
        // SAFETY: the size is past every limit, so nothing is looked at.
        let huge = unsafe { subject.device.import_host(huge) };
        assert!(matches!(huge, Err(Error::LimitExceeded { .. } | Error::InvalidArgument(_))), "{huge:?}");
        guarded.check();
    });
}

#[test]
fn adopted_pages_keep_their_contents_and_are_freed_after_use() {
    lab::on(&[Variant::Real, Variant::Tight], |subject| {
        if alignment(subject).is_none() {
            return;
        }
        let kernel = subject.kernel(kernels::INCREMENT);
        let slow = subject.kernel(kernels::SLOW);
        let rounds = subject.rounds_for(std::time::Duration::from_millis(5));
        for len in [1usize, 1023, 1024, 1025, 16_000] {
            let mut pages = subject.device.page_vec::<u32>(len).unwrap();
            assert!(pages.iter().all(|&word| word == 0) && pages.capacity_bytes() >= len * 4);
            pages.iter_mut().enumerate().for_each(|(i, word)| *word = i as u32);
            let at = pages.as_ptr();
            let buffer = subject.device.adopt(pages).unwrap();
            assert_eq!(buffer.len(), len);
            subject.run(&kernel, kernel.groups_for([len as u32, 1, 1]), args![buffer]);
            {
                let seen = buffer.read().unwrap();
                assert_eq!(seen.as_ptr(), at);
                assert!(seen.iter().enumerate().all(|(i, &word)| word == i as u32 + 1));
            }
            // Dropped under work: the pages go when it is done.
            subject.run(&slow, [1, 1, 1], args![buffer, rounds]);
            drop(buffer);
        }
    });
}

#[test]
fn pages_that_are_not_taken_come_back() {
    lab::on(&[Variant::Real, Variant::Tight], |subject| {
        let Some(step) = alignment(subject) else { return };
        let pages = PageVec::<u32>::aligned(10, 16).unwrap();
        if (pages.as_ptr().addr()).is_multiple_of(step) {
            return; // By chance they are aligned.
        }
        let mut pages = pages;
        pages[9] = 5;
        let Err(refused) = subject.device.adopt(pages) else { panic!("misaligned pages were adopted") };
        assert!(matches!(refused.error, Error::InvalidArgument(_)), "{refused}");
        assert_eq!(refused.pages[9], 5);
        assert!(matches!(PageVec::<u32>::aligned(10, 3), Err(Error::InvalidArgument(_))));
        assert!(matches!(PageVec::<u32>::aligned(10, 0), Err(Error::InvalidArgument(_))));
        let copy = PageVec::from_slice(&[1u8, 2, 3]).unwrap();
        assert_eq!(*copy, [1, 2, 3]);
    });
}

#[test]
fn imports_mix_with_other_buffers_in_order() {
    lab::on(&[Variant::Real, Variant::Tight], |subject| {
        if alignment(subject).is_none() {
            return;
        }
        let mix = subject.kernel(kernels::MIX);
        let mut pages = subject.device.page_vec::<u32>(64).unwrap();
        pages.fill(3);
        let (ours, other) = (subject.device.adopt(pages).unwrap(), subject.buffer(&[1u32; 64]));
        let streams = [subject.stream(), subject.stream()];
        let (mut a, mut b) = (3u32, 1u32);
        for round in 0..30u32 {
            streams[round as usize % 2].launch(&mix, [1, 1, 1], args![ours, other, round]).unwrap();
            b = kernels::mix(b, a, round);
            streams[1 - round as usize % 2].launch(&mix, [1, 1, 1], args![other, ours, round]).unwrap();
            a = kernels::mix(a, b, round);
        }
        assert_eq!((ours.read().unwrap()[63], other.read().unwrap()[63]), (a, b));
    });
}
