//! Events: points of a stream with the device's clock.

use std::time::{Duration, Instant};

use onebuf::{Error, Event, Stream, args};
use onebuf_tests::{Subject, kernels, lab};

fn event(subject: &Subject, stream: &Stream) -> Option<Event> {
    match stream.event() {
        Ok(event) => Some(event),
        Err(Error::Unsupported { .. }) => {
            subject.skip("it has no clock");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn events_are_reached_in_order_and_not_before_their_work() {
    lab::on_every_device(|subject| {
        subject.at_work(Duration::from_millis(20), |slow| {
            let (stream, word) = (subject.stream(), subject.buffer(&[1u32]));
            let Some(start) = event(subject, &stream) else { return true };
            slow.start(&stream, &word);
            let Some(end) = event(subject, &stream) else { return true };
            let met = !end.is_done().unwrap();
            assert!(end.ticket().value > start.ticket().value && end.ticket().stream == stream.id());
            end.wait().unwrap();
            assert!(start.is_done().unwrap() && end.is_done().unwrap());
            // The event is behind the work, so the work is done.
            assert_eq!(*word.read_timeout(lab::PATIENCE).unwrap(), [slow.model(1)]);
            met
        });
    });
}

#[test]
fn the_time_between_events_is_that_of_the_work() {
    lab::on_every_device(|subject| {
        let (slow, stream) = (subject.slow(Duration::from_millis(40)), subject.stream());
        let word = subject.buffer(&[1u32]);
        let wall = Instant::now();
        let Some(start) = event(subject, &stream) else { return };
        slow.start(&stream, &word);
        let Some(end) = event(subject, &stream) else { return };
        let device = end.elapsed_since(&start).unwrap();
        let wall = wall.elapsed();
        assert!(device >= Duration::from_millis(1), "{device:?} on the device");
        assert!(device <= wall + Duration::from_millis(5), "{device:?} on the device, {wall:?} on the wall");
        assert_eq!(end.elapsed_since(&end).unwrap(), Duration::ZERO);
        let backwards = start.elapsed_since(&end);
        assert!(matches!(backwards, Err(Error::InvalidArgument(_))), "{backwards:?}");
    });
}

#[test]
fn events_of_many_streams_outlive_them() {
    lab::on_every_device(|subject| {
        let mut events = Vec::new();
        for _ in 0..20 {
            let stream = subject.stream();
            let word = subject.zeros::<u32>(1);
            let Some(start) = event(subject, &stream) else { return };
            stream.fill(&word, 1).unwrap();
            let Some(end) = event(subject, &stream) else { return };
            events.push((start, end));
        }
        for (start, end) in &events {
            end.wait().unwrap();
            assert!(end.is_done().unwrap() && end.elapsed_since(start).unwrap() < Duration::from_secs(60));
        }
    });
}

#[test]
fn events_of_another_opening_are_refused() {
    lab::on_real_devices(|subject| {
        let other = lab::registry().open(&subject.device.info().id.to_string()).unwrap();
        let (mine, theirs) = (subject.stream(), other.stream().unwrap());
        let Some(one) = event(subject, &mine) else { return };
        let Some(two) = event(subject, &theirs) else { return };
        assert!(matches!(one.elapsed_since(&two), Err(Error::InvalidArgument(_))));
        assert!(matches!(subject.device.wait(two.ticket()), Err(Error::InvalidArgument(_))));
        assert!(matches!(mine.wait_for(two.ticket()), Err(Error::InvalidArgument(_))));
    });
}

#[test]
fn gathered_work_between_events_is_counted() {
    lab::on_every_device(|subject| {
        let (step, stream) = (subject.kernel(kernels::STEP), subject.stream());
        let data = subject.zeros::<u32>(1 << 14);
        let mut last: Option<Event> = None;
        for k in 0..30u32 {
            stream.launch(&step, [1 << 8, 1, 1], args![data, k]).unwrap();
            let Some(now) = event(subject, &stream) else { return };
            if let (Some(last), true) = (&last, k % 7 == 0) {
                now.elapsed_since(last).unwrap();
            }
            last = Some(now);
        }
        stream.wait().unwrap();
    });
}
