//! Rings between processes, of which either may be killed at any moment.

mod support;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onebuf_core::Error;
use onebuf_ipc::ring::{Consumer, Producer};
use onebuf_ipc::{Channel, Listener, Peers, SharedBuffer};
use support::{descriptors, pair, share};

/// The tests run one by one, since one counts descriptors.
static SERIAL: Mutex<()> = Mutex::new(());

const SLOT_BYTES: usize = 8192;
const LIMIT: Duration = Duration::from_secs(2);
const ROLE: &str = "ONEBUF_TEST_ROLE";
const PATH: &str = "ONEBUF_TEST_PATH";

/// A frame's bytes: its number in every word.
fn bytes_of(frame: u64) -> Vec<u8> {
    frame.to_le_bytes().repeat(SLOT_BYTES / 8)
}

fn write(slot: &SharedBuffer, frame: u64) {
    assert_eq!(rustix::io::pwrite(slot, &bytes_of(frame), 0).unwrap(), SLOT_BYTES);
}

fn read(slot: &SharedBuffer) -> Vec<u8> {
    let mut bytes = vec![0; SLOT_BYTES];
    assert_eq!(rustix::io::pread(slot, &mut bytes[..], 0).unwrap(), SLOT_BYTES);
    bytes
}

/// Produces `frames`, or until something is wrong.
fn produce(channel: Channel, slots: usize, frames: u64) -> Result<(), Error> {
    let shares: Vec<SharedBuffer> = (0..slots).map(|_| share(SLOT_BYTES as u64)).collect();
    let mut ring = Producer::create(channel, &shares)?;
    for frame in 0..frames {
        let slot = ring.acquire(LIMIT)?;
        write(&shares[slot], frame);
        ring.publish([frame, !frame, 0, u64::MAX])?;
    }
    ring.finish(LIMIT)
}

/// Consumes until the end, or until something is wrong. The number of frames with it.
fn consume(channel: Channel) -> (u64, Result<(), Error>) {
    let (mut ring, shares) = match Consumer::open(channel) {
        Ok(opened) => opened,
        Err(error) => return (0, Err(error)),
    };
    let mut frames = 0;
    loop {
        match ring.next(LIMIT) {
            Ok(Some((slot, note))) => {
                assert_eq!(note, [frames, !frames, 0, u64::MAX], "a frame was lost or came twice");
                assert!(read(&shares[slot]) == bytes_of(frames), "wrong bytes in frame {frames}");
                ring.release().unwrap();
                frames += 1;
            }
            Ok(None) => return (frames, Ok(())),
            Err(error) => return (frames, Err(error)),
        }
    }
}

#[test]
fn frames_come_in_order_and_whole() {
    let _serial = SERIAL.lock();
    for slots in [1, 2, 3, 32] {
        let (one, two) = pair();
        let producer = std::thread::spawn(move || produce(one, slots, 2000));
        let (frames, end) = consume(two);
        assert_eq!((frames, end), (2000, Ok(())), "{slots} slots");
        producer.join().unwrap().unwrap();
    }
}

#[test]
fn a_producer_waits_for_room_and_a_consumer_for_frames() {
    let _serial = SERIAL.lock();
    let (one, two) = pair();
    let shares = [share(64), share(64)];
    let mut producer = Producer::create(one, &shares).unwrap();
    let (mut consumer, opened) = Consumer::open(two).unwrap();
    assert_eq!([opened[0].key(), opened[1].key()], [shares[0].key(), shares[1].key()]);
    let short = Duration::from_millis(30);
    assert!(matches!(consumer.next(short), Err(Error::Timeout { .. })));
    assert!(consumer.release().is_err(), "nothing was taken");
    for frame in 0..2 {
        assert_eq!(producer.acquire(short).unwrap(), frame as usize);
        assert_eq!(producer.acquire(short).unwrap(), frame as usize, "the same until it is published");
        producer.publish([frame; 4]).unwrap();
    }
    assert!(matches!(producer.acquire(short), Err(Error::Timeout { .. })), "no slot is free");
    assert_eq!(consumer.next(short).unwrap(), Some((0, [0; 4])));
    assert_eq!(consumer.next(short).unwrap(), Some((0, [0; 4])), "the same until it is given back");
    assert!(matches!(producer.acquire(short), Err(Error::Timeout { .. })), "it is still held");
    consumer.release().unwrap();
    assert_eq!(producer.acquire(short).unwrap(), 0);
    // What was published before the end is delivered after it.
    drop(producer);
    assert_eq!(consumer.next(short).unwrap(), Some((1, [1; 4])));
    consumer.release().unwrap();
    assert!(matches!(consumer.next(short), Err(Error::PeerGone(_))));
}

#[test]
fn a_ring_is_made_of_what_a_ring_has() {
    let _serial = SERIAL.lock();
    let (one, two) = pair();
    assert!(matches!(Producer::create(one, &[]), Err(Error::InvalidArgument(_))));
    drop(two);
    let (one, _two) = pair();
    let many: Vec<SharedBuffer> = (0..33).map(|_| share(8)).collect();
    assert!(matches!(Producer::create(one, &many), Err(Error::LimitExceeded { .. })));
    let (one, two) = pair();
    one.send_note("no ring").unwrap();
    assert!(matches!(Consumer::open(two), Err(Error::Protocol(_))));
}

#[test]
fn counters_that_lie_are_an_error() {
    let _serial = SERIAL.lock();
    // A hostile producer writes what it likes into the page.
    for lie in [3u64, 1 << 40, u64::MAX] {
        let (one, two) = Channel::socket_pair().unwrap();
        support::send_raw(&one, &support::hello(), &[]).unwrap();
        let page = share(4096);
        support::send_raw(&one, &support::packet(1, 1, br#"{"ring":{"slots":2}}"#), &[page.as_fd()]).unwrap();
        for _ in 0..2 {
            let slot = share(64);
            let message = onebuf_ipc::wire::Message::Share {
                name: String::new(),
                description: slot.description().clone(),
            };
            let body = serde_json::to_vec(&message).unwrap();
            support::send_raw(&one, &support::packet(1, 1, &body), &[slot.as_fd()]).unwrap();
        }
        let (mut ring, _) = Consumer::open(Channel::from_socket(two, &Peers::SameUser).unwrap()).unwrap();
        rustix::io::pwrite(&page, &lie.to_le_bytes(), 0).unwrap();
        assert!(matches!(ring.next(LIMIT), Err(Error::Protocol(_))), "{lie}");
    }
}

/// This test program again, in a role.
fn spawn(role: &str, test: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(PATH, path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_survivor_is_told_and_keeps_its_head() {
    let _serial = SERIAL.lock();
    const TEST: &str = "a_survivor_is_told_and_keeps_its_head";
    if let Ok(role) = std::env::var(ROLE) {
        let channel = Channel::connect(Path::new(&std::env::var(PATH).unwrap()), &Peers::SameUser).unwrap();
        if role == "producer" {
            produce(channel, 3, u64::MAX).unwrap();
        } else {
            consume(channel).1.unwrap();
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path, Peers::SameUser).unwrap();
    let mut random = fastrand::Rng::new();
    let before = descriptors();
    let mut most_frames = 0;
    for round in 0..200u32 {
        let victim = if round.is_multiple_of(2) { "producer" } else { "consumer" };
        let mut child = spawn(victim, TEST, &path);
        let channel = listener.accept(Duration::from_secs(20)).unwrap();
        let delay = Duration::from_micros(random.u64(0..8000));
        let pid = child.id();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            child.kill().unwrap();
            let killed = Instant::now();
            child.wait().unwrap();
            killed
        });
        let end = if victim == "producer" {
            let (frames, end) = consume(channel);
            most_frames = most_frames.max(frames);
            end
        } else {
            produce(channel, 3, u64::MAX)
        };
        let told = Instant::now();
        let killed = killer.join().unwrap();
        match end {
            Err(Error::PeerGone(who)) => assert!(who.contains(&pid.to_string()), "{who}"),
            other => panic!("round {round}, {victim} killed after {delay:?}: {other:?}"),
        }
        let after = told.saturating_duration_since(killed);
        assert!(after < Duration::from_secs(2), "told {after:?} after the death");
    }
    assert!(most_frames > 0, "every kill came before the first frame");
    assert_eq!(descriptors(), before, "descriptors leaked");
}
