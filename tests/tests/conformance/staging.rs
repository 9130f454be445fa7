//! Memory that the CPU cannot see: the placement says `staged`, and each copy is made when it must be and counted.

use std::time::Duration;

use onebuf::{DeviceUse, Error, HostAccess, args};
use onebuf_sim::Call;
use onebuf_tests::lab::{self, Variant};
use onebuf_tests::{kernels, seeds};

const STAGED: [Variant; 2] = [Variant::Discrete, Variant::DiscreteAtoms(256)];

#[test]
fn copies_are_counted_to_the_byte() {
    lab::on(&STAGED, |subject| {
        let copied = || subject.device.copied_bytes();
        let data = subject.builder::<u32>(1000).init(&[5; 1000]).unwrap();
        assert!(data.placement().staged, "{}", data.placement());
        assert_eq!(copied(), 4000, "to the device");
        data.read().unwrap();
        assert_eq!(copied(), 8000, "to the CPU");
        data.slice(10..20).unwrap().read().unwrap();
        assert_eq!(copied(), 8040, "a part");
        drop(data.write().unwrap());
        assert_eq!(copied(), 16_040, "to the CPU and back");
        drop(data.overwrite().unwrap());
        assert_eq!(copied(), 20_040, "to the device alone");
        data.slice(3..3).unwrap().write().unwrap();
        assert_eq!(copied(), 20_040, "nothing");
    });
}

#[test]
fn a_try_read_begins_a_copy_that_a_later_one_finds() {
    lab::on(&STAGED, |subject| {
        subject.at_work(Duration::from_millis(20), |slow| {
            let (stream, data) = (subject.stream(), subject.buffer(&[3u32]));
            slow.start(&stream, &data);
            let before = subject.device.copied_bytes();
            let busy = data.try_read().is_err();
            let met = busy && !subject.device.is_done(stream.last()).unwrap();
            assert!(lab::eventually(|| match data.try_read() {
                Ok(guard) => *guard == [slow.model(3)],
                Err(Error::Busy(_)) => false,
                Err(other) => panic!("{other}"),
            }));
            // A first try that found the work done was served, and the next is another read.
            let copies = if busy { 1 } else { 2 };
            assert_eq!(subject.device.copied_bytes() - before, 4 * copies, "one copy for all tries");
            // Work that writes makes the copy worthless.
            slow.start(&stream, &data);
            assert_eq!(*data.read().unwrap(), [slow.model(slow.model(3))]);
            // So does a guard.
            assert!(lab::eventually(|| data.try_read().is_ok()));
            data.copy_from_slice(&[1]).unwrap();
            assert_eq!(*data.read().unwrap(), [1]);
            met
        });
    });
}

#[test]
fn parts_keep_the_rest_at_every_offset_and_length() {
    lab::on(&STAGED, |subject| {
        let data = subject.zeros::<u8>(777);
        let mut model = vec![0u8; 777];
        for start in [0usize, 1, 2, 3, 4, 63, 64, 65, 255, 256, 700, 776] {
            for len in [0usize, 1, 2, 3, 4, 5, 64, 77] {
                let end = (start + len).min(777);
                let value = (start * 7 + len) as u8;
                data.slice(start..end).unwrap().overwrite().unwrap().fill(value);
                model[start..end].fill(value);
            }
            assert!(data.read_to_vec().unwrap() == model, "from {start}");
        }
    });
}

#[test]
fn guards_of_two_readers_and_a_launch_that_reads_go_together() {
    lab::on(&STAGED, |subject| {
        let mix = subject.kernel(kernels::MIX);
        let (data, sum) = (subject.buffer(&[4u32; 64]), subject.zeros::<u32>(64));
        let (one, part) = (data.read().unwrap(), data.slice(8..16).unwrap().read().unwrap());
        subject.run(&mix, [1, 1, 1], args![data, sum, 1u32]);
        assert!(one.iter().chain(part.iter()).all(|&word| word == 4));
        assert_eq!(*sum.read().unwrap(), [5; 64]);
        drop(one);
        assert!(matches!(data.write(), Err(Error::Busy(_))));
        drop(part);
        data.write().unwrap().fill(6);
        assert_eq!(data.read().unwrap()[63], 6);
    });
}

#[test]
fn what_did_not_reach_the_device_is_told_at_the_next_use() {
    lab::on(&STAGED, |subject| {
        let control = subject.control().unwrap();
        let failure = Error::Driver { call: "vkQueueSubmit", code: "as told".into() };
        let data = subject.buffer(&[1u32; 8]);
        let mut guard = data.overwrite().unwrap();
        guard.fill(2);
        control.fail(Call::Submit, failure.clone());
        drop(guard);
        assert_eq!(data.read().map(drop), Err(failure.clone()));
        // It is told once; the buffer holds what it held.
        assert_eq!(*data.read().unwrap(), [1; 8]);
        let mut guard = data.overwrite().unwrap();
        guard.fill(3);
        control.fail(Call::Submit, failure.clone());
        assert_eq!(guard.finish(), Err(failure));
        assert_eq!(*data.read().unwrap(), [1; 8]);
        data.copy_from_slice(&[4; 8]).unwrap();
        assert_eq!(*data.read().unwrap(), [4; 8]);
    });
}

#[test]
fn buffers_without_host_access_are_copied_on_demand() {
    lab::on(&STAGED, |subject| {
        seeds::each(20, |rng| {
            let words: Vec<u32> = (0..rng.usize(1..500)).map(|_| rng.u32(..)).collect();
            let builder = subject.device.buffer::<u32>(words.len()).device_use(DeviceUse::Heavy);
            let data = builder.init(&words).unwrap();
            assert!(!data.placement().staged, "nobody asked for the CPU");
            assert_eq!(data.read_to_vec().unwrap(), words);
            subject.run(&subject.kernel(kernels::INCREMENT), [8, 1, 1], args![data]);
            let at = rng.usize(0..words.len());
            let seen = data.slice(at..).unwrap().read_to_vec().unwrap();
            assert!(seen.iter().zip(&words[at..]).all(|(seen, word)| *seen == word.wrapping_add(1)));
        });
    });
}

#[test]
fn writes_through_the_bus_are_in_place_and_reads_are_staged() {
    lab::on(&[Variant::Bar], |subject| {
        let device = &subject.device;
        let write =
            device.buffer::<u32>(64).host(HostAccess::Write).device_use(DeviceUse::Heavy).build().unwrap();
        assert!(!write.placement().staged, "{}", write.placement());
        write.write().unwrap().fill(5);
        assert_eq!(device.copied_bytes(), 0);
        subject.run(&subject.kernel(kernels::INCREMENT), [1, 1, 1], args![write]);
        // A look at it goes through a copy, since reads through the bus crawl.
        assert_eq!(write.read_to_vec().unwrap(), [6; 64]);
        assert_eq!(device.copied_bytes(), 256);
        let read = device.buffer::<u32>(64).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy);
        let read = read.init(&[7; 64]).unwrap();
        assert!(read.placement().staged, "{}", read.placement());
        assert_eq!(*read.read().unwrap(), [7; 64]);
    });
}
