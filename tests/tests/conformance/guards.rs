//! The CPU's turn: guards wait for the device, refuse what conflicts, and give back what they took.

use std::sync::Arc;
use std::time::Duration;

use onebuf::{Device, Error, HostAccess, Result, args};
use onebuf_tests::{kernels, lab};

fn is_busy<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Busy(_)))
}

#[test]
fn a_guard_waits_for_the_work() {
    lab::on_every_device(|subject| {
        let slow = subject.slow(Duration::from_millis(8));
        let (stream, word) = (subject.stream(), subject.buffer(&[7u32]));
        let mut value = 7;
        for _ in 0..3 {
            slow.start(&stream, &word);
            value = slow.model(value);
            assert_eq!(*word.read().unwrap(), [value]);
            slow.start(&stream, &word);
            value = slow.model(value);
            let mut guard = word.write().unwrap();
            assert_eq!(*guard, [value]);
            guard[0] ^= 5;
            value ^= 5;
        }
        assert_eq!(*word.read().unwrap(), [value]);
    });
}

#[test]
fn try_guards_never_wait() {
    lab::on_every_device(|subject| {
        subject.at_work(Duration::from_millis(20), |slow| {
            let (stream, word) = (subject.stream(), subject.buffer(&[7u32]));
            slow.start(&stream, &word);
            let busy = [is_busy(word.try_read()), is_busy(word.try_write())];
            // The work is not done, so they have not waited for it.
            let met = !subject.device.is_done(stream.last()).unwrap();
            assert!(!met || busy == [true; 2]);
            let expected = slow.model(7);
            // Asked often enough, it succeeds; a staged read starts its copy at the first time.
            assert!(lab::eventually(|| match word.try_read() {
                Ok(guard) => {
                    assert_eq!(*guard, [expected]);
                    true
                }
                Err(Error::Busy(_)) => false,
                Err(other) => panic!("{other}"),
            }));
            assert!(lab::eventually(|| match word.try_write() {
                Ok(mut guard) => {
                    guard[0] = 99;
                    true
                }
                Err(Error::Busy(_)) => false,
                Err(other) => panic!("{other}"),
            }));
            assert_eq!(*word.read().unwrap(), [99]);
            met
        });
    });
}

#[test]
fn waits_with_a_limit_give_up_and_can_be_repeated() {
    lab::on_every_device(|subject| {
        subject.at_work(Duration::from_millis(40), |slow| {
            let (stream, word) = (subject.stream(), subject.buffer(&[7u32]));
            slow.start(&stream, &word);
            let (ticket, limit) = (stream.last(), Duration::from_millis(3));
            let outcomes = [
                subject.device.wait_timeout(ticket, Duration::ZERO),
                subject.device.wait_timeout(ticket, limit),
                word.read_timeout(limit).map(drop),
                stream.wait_timeout(limit),
            ];
            // The work is not done, so they have not waited for it.
            let met = !subject.device.is_done(ticket).unwrap();
            for (case, outcome) in outcomes.into_iter().enumerate().filter(|_| met) {
                assert!(matches!(outcome, Err(Error::Timeout { .. })), "case {case}: {outcome:?}");
            }
            let guard = word.read_timeout(Duration::MAX).unwrap();
            assert_eq!(*guard, [slow.model(7)]);
            assert!(subject.device.is_done(ticket).unwrap());
            stream.wait_timeout(Duration::ZERO).unwrap();
            met
        });
    });
}

#[test]
fn guards_exclude_each_other_as_readers_and_writers_do() {
    lab::on_every_device(|subject| {
        let buffer = subject.buffer(&[1u32; 8]);
        {
            let (one, two) = (buffer.read().unwrap(), buffer.read().unwrap());
            assert_eq!(*one, *two);
            assert!(is_busy(buffer.write()) && is_busy(buffer.try_write()) && is_busy(buffer.overwrite()));
            assert!(is_busy(buffer.copy_from_slice(&[2; 8])));
            drop(one);
            assert!(is_busy(buffer.write()), "one reader is left");
        }
        {
            let mut writer = buffer.write().unwrap();
            assert!(is_busy(buffer.read()) && is_busy(buffer.try_read()) && is_busy(buffer.write()));
            assert!(is_busy(buffer.read_to_vec()) && is_busy(buffer.read_timeout(Duration::from_secs(5))));
            writer.fill(3);
        }
        // Guards count for the whole buffer, wherever their slices lie.
        {
            let _part = buffer.slice(0..2).unwrap().write().unwrap();
            assert!(is_busy(buffer.slice(4..8).unwrap().read()));
            assert!(is_busy(buffer.slice(4..8).unwrap().write()));
        }
        {
            let _part = buffer.slice(0..4).unwrap().read().unwrap();
            assert_eq!(*buffer.slice(2..6).unwrap().read().unwrap(), [3; 4]);
            assert!(is_busy(buffer.slice(4..8).unwrap().write()));
        }
        buffer.write().unwrap().fill(4);
        assert_eq!(*buffer.read().unwrap(), [4; 8]);
    });
}

#[test]
fn work_that_conflicts_with_a_guard_is_refused_and_nothing_of_it_stays() {
    lab::on_concurrent_devices(|subject| {
        let device = &subject.device;
        let buffer =
            device.buffer::<u32>(64).host(HostAccess::ReadWrite).label("shared").zeroed().build().unwrap();
        let other = subject.zeros::<u32>(64);
        let (stream, mix) = (subject.stream(), subject.kernel(kernels::MIX));
        let mut record = device.graph();
        record.launch(&mix, [1, 1, 1], args![buffer, other, 1u32]).unwrap();
        let reads = record.build().unwrap();
        let mut record = device.graph();
        record.launch(&mix, [1, 1, 1], args![other, buffer, 1u32]).unwrap();
        let writes = record.build().unwrap();
        let last = stream.last();
        {
            let _guard = buffer.write().unwrap();
            let refused = [
                stream.launch(&mix, [1, 1, 1], args![buffer, other, 1u32]),
                stream.launch(&mix, [1, 1, 1], args![other, buffer, 1u32]),
                stream.copy(&buffer, &other),
                stream.copy(&other, &buffer),
                stream.fill(&buffer, 1),
                stream.replay(&reads),
                stream.replay(&writes),
            ];
            for (case, refused) in refused.into_iter().enumerate() {
                match refused {
                    Err(Error::Busy(message)) => assert!(message.contains("`shared`"), "{message}"),
                    other => panic!("case {case}: {other:?}"),
                }
            }
            assert_eq!(stream.last(), last);
            // Other buffers are free.
            stream.fill(&other, 5).unwrap();
        }
        {
            let guard = buffer.read().unwrap();
            stream.launch(&mix, [1, 1, 1], args![buffer, other, 1u32]).unwrap();
            stream.copy(&buffer, &other).unwrap();
            stream.replay(&reads).unwrap();
            assert!(is_busy(stream.launch(&mix, [1, 1, 1], args![other, buffer, 1u32])));
            assert!(is_busy(stream.copy(&other, &buffer)) && is_busy(stream.fill(&buffer, 1)));
            assert!(is_busy(stream.replay(&writes)));
            assert_eq!(*guard, [0; 64]);
        }
        stream.replay(&writes).unwrap();
        stream.fill(&other, 2).unwrap();
        stream.launch(&mix, [1, 1, 1], args![other, buffer, 1u32]).unwrap();
        // 0, then * 3 + 1 + 1 by the replay (`other` was 0 * 3 + 0 + 1), then * 3 + 2 + 1.
        assert_eq!(*buffer.read().unwrap(), [9; 64]);
    });
}

#[test]
fn a_guard_keeps_its_buffer_and_device() {
    lab::on_real_devices(|subject| {
        let registry = lab::registry();
        let device: Device = registry.open(&subject.device.info().id.to_string()).unwrap();
        let buffer = device.buffer::<u32>(100).host(HostAccess::ReadWrite).init(&[11; 100]).unwrap();
        let clone = buffer.clone();
        let mut guard = buffer.write().unwrap();
        drop((buffer, device));
        guard[99] = 12;
        assert!(is_busy(clone.read()));
        drop(guard);
        let guard = clone.read().unwrap();
        drop(clone);
        assert_eq!((guard[0], guard[99]), (11, 12));
    });
}

#[test]
fn a_guard_may_end_on_another_thread() {
    lab::on_every_device(|subject| {
        let buffer = subject.zeros::<u32>(1000);
        for round in 1..20u32 {
            let mut guard = buffer.write().unwrap();
            let writer = std::thread::spawn(move || {
                guard.fill(round);
                drop(guard);
            });
            writer.join().unwrap();
            let guard = Arc::new(buffer.read().unwrap());
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let guard = guard.clone();
                    std::thread::spawn(move || guard.iter().all(|&word| word == round))
                })
                .collect();
            drop(guard);
            assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
        }
        buffer.write().unwrap();
    });
}

#[test]
fn a_panic_while_a_guard_is_held_gives_the_buffer_back() {
    lab::on_every_device(|subject| {
        let buffer = subject.zeros::<u32>(64);
        let writer = buffer.clone();
        let outcome = std::thread::spawn(move || {
            let mut guard = writer.write().unwrap();
            guard.fill(8);
            std::panic::resume_unwind(Box::new("as if something went wrong")); // Without a message on the terminal.
        })
        .join();
        assert!(outcome.is_err());
        // What was written before is the device's.
        subject.run(&subject.kernel(kernels::INCREMENT), [1, 1, 1], args![buffer]);
        assert_eq!(*buffer.read().unwrap(), [9; 64]);
        let reader = buffer.clone();
        let outcome = std::thread::spawn(move || {
            let _guard = reader.read().unwrap();
            std::panic::resume_unwind(Box::new("as if something went wrong"));
        })
        .join();
        assert!(outcome.is_err());
        buffer.write().unwrap().fill(1);
    });
}

#[test]
fn parts_are_read_and_written_at_any_offset() {
    lab::on_every_device(|subject| {
        let len = 1000usize;
        let buffer = subject.zeros::<u8>(len);
        let mut model = vec![0u8; len];
        onebuf_tests::seeds::each(120, |rng| {
            let start = rng.usize(0..=len);
            let end = rng.usize(start..=len);
            let part = buffer.slice(start..end).unwrap();
            let bytes: Vec<u8> = (start..end).map(|_| rng.u8(..)).collect();
            match rng.u32(0..4) {
                0 => part.copy_from_slice(&bytes).unwrap(),
                1 => part.overwrite().unwrap().copy_from_slice(&bytes),
                2 => {
                    let mut guard = part.write().unwrap();
                    assert_eq!(*guard, model[start..end]);
                    guard.copy_from_slice(&bytes);
                    guard.finish().unwrap();
                }
                _ => {
                    assert_eq!(*part.read().unwrap(), model[start..end]);
                    return;
                }
            }
            model[start..end].copy_from_slice(&bytes);
            let from = rng.usize(0..=start);
            let seen = buffer.slice(from..).unwrap();
            assert!(seen.read_to_vec().unwrap() == model[from..]);
        });
        assert!(buffer.read_to_vec().unwrap() == model);
    });
}

#[test]
fn a_guard_that_was_not_written_to_changes_nothing() {
    lab::on_every_device(|subject| {
        let buffer = subject.buffer(&[5u32; 300]);
        drop(buffer.write().unwrap());
        buffer.slice(3..7).unwrap().write().unwrap().finish().unwrap();
        assert_eq!(*buffer.read().unwrap(), [5; 300]);
    });
}

#[test]
fn many_threads_ask_for_guards_at_once_and_each_is_whole() {
    lab::on_every_device(|subject| {
        let buffer = subject.zeros::<u32>(4096);
        let kernel = subject.kernel(kernels::INCREMENT);
        std::thread::scope(|scope| {
            for id in 0..8u32 {
                let (buffer, kernel, subject) = (&buffer, &kernel, &subject);
                scope.spawn(move || {
                    let stream = subject.stream();
                    for round in 0..60u32 {
                        let outcome = match (id + round) % 4 {
                            0 => stream.launch(kernel, [64, 1, 1], args![buffer]).map(drop),
                            1 => buffer.try_read().map(|seen| assert!(seen.iter().all(|&w| w == seen[0]))),
                            2 => buffer.read().map(|seen| assert!(seen.iter().all(|&w| w == seen[0]))),
                            _ => buffer.write().map(|mut all| {
                                let value = all[0];
                                assert!(all.iter().all(|&word| word == value));
                                all.fill(value.wrapping_mul(3) + id);
                            }),
                        };
                        assert!(matches!(outcome, Ok(()) | Err(Error::Busy(_))), "{outcome:?}");
                    }
                });
            }
        });
        let seen = buffer.read().unwrap();
        assert!(seen.iter().all(|&word| word == seen[0]));
    });
}
