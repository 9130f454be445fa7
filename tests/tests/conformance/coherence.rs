//! Memory that is not coherent: the CPU sees what the device wrote, and the device what the CPU wrote, at any offset and
//! beside any neighbour in the same atom.

use onebuf::{Buffer, HostPath, args};
use onebuf_tests::lab::{self, Variant};
use onebuf_tests::{Subject, kernels, seeds};

const NON_COHERENT: [Variant; 3] = [Variant::Atoms(64), Variant::Atoms(256), Variant::DiscreteAtoms(256)];

/// Runs a case where memory is not coherent, and says so if it is.
fn on_non_coherent_devices(case: impl Fn(&Subject)) {
    lab::on(&NON_COHERENT, |subject| {
        let memory = subject.device.profile().memory;
        assert!(memory.iter().filter(|kind| kind.host_visible).all(|kind| !kind.host_coherent));
        case(subject);
    });
}

#[test]
fn the_placement_says_that_memory_is_not_coherent() {
    lab::on(&NON_COHERENT[..2], |subject| {
        let placement = subject.zeros::<u32>(16).placement().clone();
        assert!(!placement.coherent && placement.cached && !placement.staged, "{placement}");
        assert_eq!(placement.path, HostPath::Uma);
        assert!(placement.to_string().contains("non-coherent"), "{placement}");
    });
}

#[test]
fn turns_of_cpu_and_device_on_parts_of_one_atom() {
    on_non_coherent_devices(|subject| {
        let turn = subject.kernel(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             var<immediate> p: vec3<u32>;
             @compute @workgroup_size(64) fn turn(@builtin(global_invocation_id) id: vec3<u32>) {
                 if id.x >= p.x && id.x < p.y { data[id.x] = data[id.x] * 31u + p.z; }
             }",
        );
        const WORDS: usize = 300;
        let data = subject.zeros::<u32>(WORDS);
        let bytes = data.cast::<u8>().unwrap();
        let mut model = vec![0u8; WORDS * 4];
        seeds::each(400, |rng| {
            let (a, b) = (rng.u32(0..WORDS as u32), rng.u32(0..WORDS as u32));
            let k = rng.u32(..);
            subject.run(&turn, [5, 1, 1], args![data, [a.min(b), a.max(b), k]]);
            for word in a.min(b) as usize..a.max(b) as usize {
                let at = word * 4..word * 4 + 4;
                let old = u32::from_le_bytes(model[at.clone()].try_into().unwrap());
                model[at].copy_from_slice(&old.wrapping_mul(31).wrapping_add(k).to_le_bytes());
            }
            // The CPU writes a few bytes at any offset; the rest of their atoms is the device's.
            let start = rng.usize(0..WORDS * 4);
            let end = (start + rng.usize(1..200)).min(WORDS * 4);
            let part = bytes.slice(start..end).unwrap();
            if rng.bool() {
                assert_eq!(*part.read().unwrap(), model[start..end], "{start}..{end}");
            } else {
                let new: Vec<u8> = (start..end).map(|_| rng.u8(..)).collect();
                let mut guard = if rng.bool() { part.write() } else { part.overwrite() }.unwrap();
                guard.copy_from_slice(&new);
                drop(guard);
                model[start..end].copy_from_slice(&new);
            }
        });
        assert!(bytes.read_to_vec().unwrap() == model);
    });
}

#[test]
fn a_guard_held_over_a_neighbours_work_does_not_put_its_past_back() {
    on_non_coherent_devices(|subject| {
        let increment = subject.kernel(kernels::INCREMENT);
        let buffers: Vec<Buffer<u32>> = (0..40).map(|i| subject.buffer(&vec![100; 1 + i % 9])).collect();
        for round in 0..20u32 {
            let (held, worked): (Vec<_>, Vec<_>) =
                buffers.iter().enumerate().partition(|(i, _)| (i + round as usize).is_multiple_of(2));
            let mut guards: Vec<_> = held.iter().map(|(_, buffer)| buffer.write().unwrap()).collect();
            for (_, buffer) in &worked {
                subject.run(&increment, [1, 1, 1], args![*buffer]);
            }
            subject.device.wait_idle().unwrap();
            guards.iter_mut().for_each(|guard| guard.iter_mut().for_each(|word| *word += 1));
            drop(guards);
            for buffer in &buffers {
                assert!(buffer.read().unwrap().iter().all(|&word| word == 101 + round), "round {round}");
            }
        }
    });
}

#[test]
fn every_way_to_write_reaches_the_device_and_every_way_to_read_sees_it() {
    on_non_coherent_devices(|subject| {
        let mix = subject.kernel(kernels::MIX);
        let sum = subject.zeros::<u32>(64);
        let mut expected = 0u32;
        let mut turn = |source: &Buffer<u32>, value: u32| {
            subject.run(&mix, [1, 1, 1], args![source, sum, value]);
            expected = kernels::mix(expected, value, value);
            let mut seen = vec![0; 64];
            sum.copy_to_slice(&mut seen).unwrap();
            assert_eq!(seen, [expected; 64]);
            assert_eq!(*sum.read().unwrap(), [expected; 64]);
            assert_eq!(sum.slice(63..).unwrap().read_to_vec().unwrap(), [expected]);
            let held = sum.write().unwrap();
            assert_eq!(*held, [expected; 64]);
        };
        turn(&subject.buffer(&[7; 64]), 7);
        turn(&subject.builder(64).init_with(|_| 8).unwrap(), 8);
        let data = subject.zeros::<u32>(64);
        turn(&data, 0);
        data.write().unwrap().fill(9);
        turn(&data, 9);
        data.overwrite().unwrap().fill(10);
        turn(&data, 10);
        data.copy_from_slice(&[11; 64]).unwrap();
        turn(&data, 11);
        let mut guard = data.write().unwrap();
        guard.fill(12);
        guard.finish().unwrap();
        turn(&data, 12);
        subject.stream().fill(&data, 13).unwrap();
        turn(&data, 13);
    });
}
