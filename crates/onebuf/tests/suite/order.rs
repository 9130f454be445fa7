//! Which tickets a submission waits for.

use onebuf::{Error, HostAccess, Ticket, args};

use crate::fake::{FakeDevice, Options};
use crate::uma;

fn after(fake: &FakeDevice) -> Vec<Ticket> {
    fake.core.last_submission().after
}

#[test]
fn readers_wait_for_the_writer_and_the_writer_for_readers() {
    let (device, fake) = uma();
    let [a, b, c] = [(); 3].map(|()| device.buffer::<u32>(64).build().unwrap());
    let copy = device.kernel("r w").unwrap().build().unwrap();
    let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
    let wrote_a = one.fill(&a, 1).unwrap();
    assert!(after(&fake).is_empty());
    let read_1 = one.launch(&copy, [1; 3], args![&a, &b]).unwrap();
    assert_eq!(after(&fake), [wrote_a]);
    let read_2 = two.launch(&copy, [1; 3], args![&a, &c]).unwrap();
    assert_eq!(after(&fake), [wrote_a], "readers do not wait for each other");
    two.fill(&a, 2).unwrap();
    let mut waits = after(&fake);
    waits.sort_by_key(|t| t.stream);
    // The first stream's read is later than its write, and stands for both.
    assert_eq!(waits, [read_1, read_2]);
}

#[test]
fn disjoint_work_does_not_wait() {
    let (device, fake) = uma();
    let [a, b] = [(); 2].map(|()| device.buffer::<u32>(64).build().unwrap());
    let stream = device.stream().unwrap();
    stream.fill(&a, 1).unwrap();
    stream.fill(&b, 1).unwrap();
    assert!(after(&fake).is_empty());
}

#[test]
fn one_buffer_twice_is_one_use() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).build().unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    let sum = device.kernel("r r w").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let wrote = stream.fill(&a, 1).unwrap();
    stream.launch(&sum, [1; 3], args![&a, &a, &b]).unwrap();
    assert_eq!(after(&fake), [wrote]);
    // Two parts of one buffer, one of them written: a write.
    let halves = device.kernel("r w").unwrap().build().unwrap();
    let wrote =
        stream.launch(&halves, [1; 3], args![a.slice(..32).unwrap(), a.slice(32..).unwrap()]).unwrap();
    stream.launch(&sum, [1; 3], args![&a, &a, &b]).unwrap();
    assert_eq!(after(&fake).iter().filter(|t| **t == wrote).count(), 1);
}

#[test]
fn a_failed_submission_is_not_remembered() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).build().unwrap();
    let stream = device.stream().unwrap();
    fake.core.fail_submit.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(stream.fill(&a, 1), Err(Error::Driver { .. })));
    stream.fill(&a, 1).unwrap();
    assert!(after(&fake).is_empty());
}

#[test]
fn an_empty_grid_does_nothing_but_check() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).build().unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    let copy = device.kernel("r w").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let last = stream.fill(&a, 1).unwrap();
    let count = fake.core.submissions.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(stream.launch(&copy, [0, 1, 1], args![&a, &b]).unwrap(), last);
    assert!(matches!(stream.launch(&copy, [1, 0, 1], args![&a]), Err(Error::BindingMismatch { .. })));
    assert_eq!(fake.core.submissions.load(std::sync::atomic::Ordering::Relaxed), count);
}

#[test]
fn work_by_hand_waits_for_what_it_is_told() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
    let write = device.kernel("rw").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let first = stream.fill(&a, 1).unwrap();
    // SAFETY: both may write the buffer at the same time; nobody minds what is in it.
    let second = unsafe { stream.launch_unordered(&write, [1; 3], args![&a], &[]) }.unwrap();
    assert!(after(&fake).is_empty());
    stream.fill(&a, 2).unwrap();
    assert_eq!(after(&fake), [second], "later work waits for it");
    // SAFETY: as above.
    unsafe { stream.launch_unordered(&write, [1; 3], args![&a], &[first]) }.unwrap();
    assert_eq!(after(&fake), [first]);
    stream.wait().unwrap();
    let guard = a.write().unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { stream.launch_unordered(&write, [1; 3], args![&a], &[]) };
    assert!(matches!(refused, Err(Error::Busy(_))), "guards hold by hand, too");
    drop(guard);
}

#[test]
fn a_fence_holds_for_all_later_work() {
    let (device, fake) = uma();
    let [a, b, c] = [(); 3].map(|()| device.buffer::<u32>(64).build().unwrap());
    let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
    let ticket = one.fill(&a, 1).unwrap();
    two.wait_for(ticket).unwrap();
    two.fill(&b, 1).unwrap();
    assert_eq!(after(&fake), [ticket]);
    two.fill(&c, 1).unwrap();
    assert_eq!(after(&fake), [ticket]);
    one.fill(&b, 2).unwrap();
    assert!(!after(&fake).contains(&ticket));
}

#[test]
fn tickets_of_another_device_are_refused() {
    let (device, _) = uma();
    let (other, _) = uma();
    let a = other.buffer::<u32>(64).build().unwrap();
    let foreign = other.stream().unwrap().fill(&a, 1).unwrap();
    let stream = device.stream().unwrap();
    for refused in [stream.wait_for(foreign), device.wait(foreign), device.is_done(foreign).map(drop)] {
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    assert!(!other.is_done(foreign).unwrap());
    other.wait(foreign).unwrap();
    assert!(other.is_done(foreign).unwrap());
}

#[test]
fn buffers_and_kernels_of_another_device_are_refused_by_name() {
    let (device, _) = Options::uma().open();
    let (other, _) = Options::uma().open();
    let a = device.buffer::<u32>(64).build().unwrap();
    let b = other.buffer::<u32>(64).label("theirs").build().unwrap();
    let copy = device.kernel("r w").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let message = |refused: onebuf::Result<Ticket>| match refused {
        Err(Error::InvalidArgument(message)) => message,
        other => panic!("{other:?}"),
    };
    let said = message(stream.launch(&copy, [1; 3], args![&a, &b]));
    assert!(said.contains("buffer `theirs` belongs to another opening of fake:0"), "{said}");
    assert!(message(stream.copy(&a, &b)).contains("theirs"));
    assert!(message(stream.fill(&b, 0)).contains("theirs"));
    let foreign = other.kernel("r w").unwrap().build().unwrap();
    assert!(message(stream.launch(&foreign, [1; 3], args![&a, &a])).contains("the kernel"));
    let graph = other.graph().build().unwrap();
    assert!(message(stream.replay(&graph)).contains("the graph"));
}

#[test]
fn copies_and_fills_check_their_parts() {
    let (device, fake) = uma();
    let a = device.buffer::<u8>(10).build().unwrap();
    let b = device.buffer::<u8>(10).build().unwrap();
    let stream = device.stream().unwrap();
    let bad = |refused: onebuf::Result<Ticket>| assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    bad(stream.copy(a.slice(..4).unwrap(), &b));
    bad(stream.copy(a.slice(..4).unwrap(), a.slice(2..6).unwrap()));
    bad(stream.fill(a.slice(1..5).unwrap(), 0));
    bad(stream.fill(a.slice(..5).unwrap(), 0));
    stream.copy(a.slice(..4).unwrap(), a.slice(4..8).unwrap()).unwrap();
    stream.fill(a.slice(4..8).unwrap(), 0).unwrap();
    stream.fill(a.slice(8..).unwrap(), 0).unwrap();
    stream.fill(&a, 0x0101_0101).unwrap();
    let count = fake.core.submissions.load(std::sync::atomic::Ordering::Relaxed);
    let last = stream.last();
    assert_eq!(stream.copy(a.slice(3..3).unwrap(), b.slice(0..0).unwrap()).unwrap(), last);
    assert_eq!(stream.fill(a.slice(4..4).unwrap(), 0).unwrap(), last);
    assert_eq!(fake.core.submissions.load(std::sync::atomic::Ordering::Relaxed), count);
    assert_eq!(a.read_to_vec().unwrap(), [1; 10]);
}

#[test]
fn a_buffer_read_by_ever_new_streams_stays_small() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).build().unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    for _ in 0..200 {
        let stream = device.stream().unwrap();
        stream.copy(&a, &b).unwrap();
        stream.wait().unwrap();
    }
    device.stream().unwrap().fill(&a, 0).unwrap();
    assert!(after(&fake).len() <= 40, "{} tickets", after(&fake).len());
}

#[test]
fn waiting_for_a_device_includes_streams_that_are_gone() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).build().unwrap();
    for _ in 0..50 {
        device.stream().unwrap().fill(&a, 1).unwrap();
    }
    let kept = device.stream().unwrap();
    kept.fill(&a, 2).unwrap();
    assert!(fake.core.pending() > 0);
    device.wait_idle().unwrap();
    assert_eq!(fake.core.pending(), 0);
}

#[test]
fn events_give_times() {
    let (device, _) = uma();
    let (other, _) = uma();
    let stream = device.stream().unwrap();
    let a = device.buffer::<u32>(64).build().unwrap();
    let start = stream.event().unwrap();
    stream.fill(&a, 1).unwrap();
    let end = stream.event().unwrap();
    assert!(!end.is_done().unwrap());
    assert_eq!(end.elapsed_since(&start).unwrap().as_nanos(), 2000);
    assert!(end.is_done().unwrap() && device.is_done(end.ticket()).unwrap());
    let foreign = other.stream().unwrap().event().unwrap();
    assert!(matches!(end.elapsed_since(&foreign), Err(Error::InvalidArgument(_))));
}

#[test]
fn unordered_launches_are_waited_for_like_any_other() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
    let write = device.kernel("rw").unwrap().build().unwrap();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    // SAFETY: the fake device runs one piece of work at a time.
    let launch = |i: usize| unsafe { streams[i].launch_unordered(&write, [1; 3], args![&a], &[]) }.unwrap();
    let (ordered, one, two) = (streams[0].fill(&a, 1).unwrap(), launch(1), launch(2));
    // A guard may not show the bytes while any of them runs, nor may work begin that expects to come after them.
    drop(a.read().unwrap());
    assert_eq!(*fake.core.waited_for.lock(), [ordered, one, two]);
    let (one, two) = (launch(1), launch(2));
    streams[0].launch(&write, [1; 3], args![&a]).unwrap();
    assert!(after(&fake).contains(&one) && after(&fake).contains(&two), "{:?}", after(&fake));
    // Whoever gets the memory next waits for them.
    let gone = device.buffer::<u32>(64).build().unwrap();
    streams[0].fill(&gone, 1).unwrap();
    // SAFETY: as above.
    let late = unsafe { streams[1].launch_unordered(&write, [1; 3], args![&gone], &[]) }.unwrap();
    // SAFETY: as above.
    let later = unsafe { streams[2].launch_unordered(&write, [1; 3], args![&gone], &[]) }.unwrap();
    drop(gone);
    let next = device.buffer::<u32>(64).build().unwrap();
    streams[0].fill(&next, 2).unwrap();
    assert!(after(&fake).contains(&late) && after(&fake).contains(&later), "{:?}", after(&fake));
}

#[test]
fn external_work_is_ordered_like_any_other() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
    let stream = device.stream().unwrap();
    let wrote = stream.fill(&a, 1).unwrap();
    // SAFETY: the closure submits work that waits as told, through a stream of the backend.
    let raw = unsafe { device.raw() }.create_stream().unwrap();
    let part = || onebuf::Arg::buffer(&a);
    // SAFETY: as above.
    let ticket = unsafe {
        device.order_external(&[(part(), true)], |after| {
            assert_eq!(after, [wrote]);
            let memory = a.raw();
            let to = onebuf::core::backend::Part { memory, offset_bytes: 0, size_bytes: 256 };
            raw.submit(onebuf::core::backend::Work::Fill { to, word: 7 }, after)
        })
    }
    .unwrap();
    stream.fill(&a, 2).unwrap();
    assert_eq!(after(&fake), [ticket]);
    device.wait(ticket).unwrap();
    let guard = a.read().unwrap();
    // SAFETY: it is refused before the closure runs.
    let refused = unsafe { device.order_external(&[(part(), true)], |_| panic!("not reached")) };
    assert!(matches!(refused, Err(Error::Busy(_))));
    drop(guard);
}
