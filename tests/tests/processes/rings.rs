//! Buffers passed between processes by channels and rings, on every device, with processes that are killed.

use std::time::{Duration, Instant};

use onebuf::ipc::Channel;
use onebuf::ring::{Consumer, Producer};
use onebuf::{Buffer, Device, Error, HandleKind, Kernel, Stream, args};
use onebuf_tests::{Subject, kernels, lab, process, resources};

use crate::ways::{self, PATIENCE, at_home, child, each_way};

const LEN: usize = 20_000;

fn shared(device: &Device, way: HandleKind) -> Buffer<u32> {
    ways::shared(device, way, LEN).unwrap()
}
/// A process's tools for one word per element.
struct Tools {
    increment: Kernel,
    stream: Stream,
}

impl Tools {
    fn new(device: &Device) -> Tools {
        let increment = device.kernel(kernels::INCREMENT).unwrap().build().unwrap();
        Tools { increment, stream: device.stream().unwrap() }
    }

    /// Adds one to every word, by the device. Nothing waits.
    fn increment(&self, buffer: &Buffer<u32>) {
        let groups = self.increment.groups_for([buffer.len() as u32, 1, 1]);
        self.stream.launch(&self.increment, groups, args![buffer]).unwrap();
    }
}

/// Fills frames by the CPU, then by the device, and publishes them without a wait of its own.
fn produce(device: &Device, channel: Channel, slots: Vec<Buffer<u32>>, frames: u32) -> Result<(), Error> {
    let tools = Tools::new(device);
    // SAFETY: both processes touch a slot only while they hold it.
    let mut ring = unsafe { Producer::new(channel, slots) }?;
    for frame in 0..frames {
        let slot = ring.slot(PATIENCE)?;
        slot.write()?.fill(2 * frame);
        tools.increment(&slot);
        slot.publish([frame.into(), 0, 0, 0])?;
    }
    ring.finish(PATIENCE)
}

/// Looks at every word of every frame after a change by the device, which the producer's next fill must not meet.
fn consume(device: &Device, channel: Channel) -> (u32, Result<(), Error>) {
    let tools = Tools::new(device);
    // SAFETY: as for the producer.
    let mut ring = match unsafe { Consumer::<u32>::open(channel, device) } {
        Ok(ring) => ring,
        Err(error) => return (0, Err(error)),
    };
    let mut frames = 0;
    loop {
        match ring.next(PATIENCE) {
            Ok(Some(frame)) => {
                assert_eq!(frame.note()[0], u64::from(frames));
                tools.increment(&frame);
                let wanted = 2 * frames + 2;
                assert!(frame.read().unwrap().iter().all(|&word| word == wanted), "frame {frames}");
                tools.increment(&frame);
                frame.release().unwrap();
                frames += 1;
            }
            Ok(None) => return (frames, Ok(())),
            Err(error) => return (frames, Err(error)),
        }
    }
}

#[test]
fn frames_pass_from_process_to_process() {
    if process::role().is_some() {
        let (device, _, channel) = at_home();
        let (frames, end) = consume(&device, channel);
        assert_eq!((frames, end), (60, Ok(())));
        assert!(lab::complaints().is_empty());
        return;
    }
    each_way(|subject, way, listener| {
        let child = child("consumer", subject, way, listener);
        let channel = listener.accept(PATIENCE).unwrap();
        let slots = (0..3).map(|_| shared(&subject.device, way)).collect();
        produce(&subject.device, channel, slots, 60).unwrap();
        process::finish(child, PATIENCE).expect_success();
    });
}

/// Kills two producers and two consumers of rings, and looks at what the survivor is told.
fn four_kills(subject: &Subject, way: HandleKind, listener: &onebuf::ipc::Listener) {
    for round in 0..4u32 {
        let victim = if round.is_multiple_of(2) { "producer" } else { "consumer" };
        let mut child = child(victim, subject, way, listener);
        let channel = listener.accept(PATIENCE).unwrap();
        let delay = Duration::from_millis(u64::from(100 + round * 37));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            child.kill().unwrap();
            let killed = Instant::now();
            child.wait().unwrap();
            killed
        });
        let end = if victim == "producer" {
            consume(&subject.device, channel).1
        } else {
            let slots = (0..3).map(|_| shared(&subject.device, way)).collect();
            produce(&subject.device, channel, slots, u32::MAX)
        };
        let after = killer.join().unwrap().elapsed();
        assert!(matches!(end, Err(Error::PeerGone(_))), "{victim}: {end:?}");
        assert!(after < Duration::from_secs(2), "told {after:?} after the death");
    }
}

#[test]
fn a_killed_process_leaves_a_sound_survivor() {
    if let Some(role) = process::role() {
        let (device, way, channel) = at_home();
        if role == "producer" {
            let _ = produce(&device, channel, (0..3).map(|_| shared(&device, way)).collect(), u32::MAX);
        } else {
            let _ = consume(&device, channel);
        }
        return;
    }
    each_way(|subject, way, listener| {
        let held = || {
            subject.device.wait_idle().unwrap();
            subject.device.trim();
            (resources::descriptors(), subject.device.memory().buffers, subject.device.shared_objects())
        };
        // A driver opens what it needs for its first kernel once, and may keep what it opened for its first import. So a
        // batch of kills that leaves no more than it found is enough, while a leak shows in each.
        Tools::new(&subject.device).increment(&shared(&subject.device, way));
        let mut seen = vec![held()];
        let settled = (0..3).any(|_| {
            let before = held();
            four_kills(subject, way, listener);
            let settled = lab::eventually(|| {
                let after = held();
                after.0 <= before.0 && (after.1, after.2) == (before.1, before.2)
            });
            seen.push(held());
            settled
        });
        assert!(settled, "every batch of kills left more than it found: {seen:?}");
        assert!(seen.iter().all(|after| (after.1, after.2) == (seen[0].1, seen[0].2)), "{seen:?}");
    });
}

#[test]
fn eight_processes_hold_one_share() {
    const PART: usize = 1000;
    if process::role().is_some() {
        let (device, _, channel) = at_home();
        let (name, share) = channel.receive_share().unwrap();
        let me: usize = name.parse().unwrap();
        // SAFETY: each process touches its own part, after the parent's work and before its answer.
        let part: Buffer<u32> = unsafe { device.open_shared(&share) }.unwrap();
        assert_eq!(part.len(), PART);
        assert!(part.read().unwrap().iter().all(|&word| word == me as u32));
        Tools::new(&device).increment(&part);
        part.settle(PATIENCE).unwrap();
        channel.send_note("done").unwrap();
        // The parent lets go first.
        assert!(matches!(channel.receive_note(), Err(Error::PeerGone(_))));
        assert!(part.read().unwrap().iter().all(|&word| word == me as u32 + 1));
        return;
    }
    each_way(|subject, way, listener| {
        let buffer = shared(&subject.device, way);
        let alignment = subject.device.info().limits.storage_offset_alignment_bytes.max(4) as usize / 4;
        let stride = (PART + 1).next_multiple_of(alignment);
        buffer.write().unwrap().fill(0xca1a_ca1a);
        let part = |me: usize| buffer.slice(me * stride..me * stride + PART).unwrap();
        for me in 0..8 {
            part(me).copy_from_slice(&[me as u32; PART]).unwrap();
        }
        buffer.settle(PATIENCE).unwrap();
        let children: Vec<_> = (0..8).map(|_| child("holder", subject, way, listener)).collect();
        let mut channels: Vec<Channel> = (0..8).map(|_| listener.accept(PATIENCE).unwrap()).collect();
        for (me, channel) in channels.iter_mut().enumerate() {
            channel.set_patience(PATIENCE);
            channel.send_share(&me.to_string(), &part(me).share().unwrap()).unwrap();
        }
        channels.iter().for_each(|channel| assert_eq!(channel.receive_note().unwrap(), "done"));
        for (i, &word) in buffer.read().unwrap().iter().enumerate() {
            let inside = i < 8 * stride && i % stride < PART;
            let wanted = if inside { (i / stride) as u32 + 1 } else { 0xca1a_ca1a };
            assert_eq!(word, wanted, "word {i}");
        }
        drop((buffer, channels));
        children.into_iter().for_each(|child| process::finish(child, PATIENCE).expect_success());
    });
}
