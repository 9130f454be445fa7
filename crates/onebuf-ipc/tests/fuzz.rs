//! Generated peers against everything that takes another process's word: messages, descriptors, a broker, a ring's page.
//!
//! What is sent is made from right messages (see `support::mutate`), so that it passes the parser and meets the checks
//! behind it; each test then asserts that every one of those checks was met. It is not guided by coverage.
//! `ONEBUF_FUZZ_SECONDS` says how long each test goes on. A failure names its seed: `ONEBUF_FUZZ_SEED` takes it.

mod support;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fastrand::Rng;
use onebuf_core::Error;
use onebuf_ipc::broker::{Broker, Client, Limits, Quota};
use onebuf_ipc::ring::{Consumer, Producer};
use onebuf_ipc::{Channel, Memfd, Peers, SharedBuffer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use support::fuzzing::{BYTES, Objects, Tally, check_sound};
use support::mutate::{changed, every_message};
use support::{descriptors, hello, packet, send_raw, share};

/// The tests run one by one, since they count descriptors.
static SERIAL: Mutex<()> = Mutex::new(());

const LIMIT: Duration = Duration::from_secs(2);
/// Reasons of the checks that hold a description against itself and against its descriptor.
const SHARE_REASONS: [&str; 14] = [
    "missing field",
    "unknown field",
    "invalid type",
    "bytes of text in a message",
    "bytes in an allocation of",
    "in granules of",
    "bytes of a buffer of",
    "a view of",
    "another machine",
    "is said to have",
    "not sealed against shrinking",
    "not open for reading and writing",
    "of kind Fifo",
    "anybody may truncate",
];

fn carries_a_descriptor(message: &Value) -> usize {
    let with = ["/share", "/ring", "/request/publish", "/answer/share"];
    usize::from(with.iter().any(|path| message.pointer(path).is_some()))
}

/// How a peer's first message is heard: as a share, a note, a ring, or a hello.
fn listen(
    random: &mut Rng,
    one: OwnedFd,
    two: &OwnedFd,
    tally: &mut Tally,
    send: &mut dyn FnMut(&mut Rng, &OwnedFd),
) {
    let greets = random.u8(0..8) > 0;
    if greets {
        send_raw(two, &hello(), &[]).unwrap();
    } else {
        send(random, two);
    }
    let mut heard = |result: Result<Vec<SharedBuffer>, Error>| match result {
        Ok(shares) => {
            shares.iter().for_each(check_sound);
            tally.taken += 1;
        }
        Err(Error::InvalidArgument(why) | Error::Protocol(why) | Error::Refused(why)) => tally.refused(&why),
        // An empty packet looks like the end; one that is short of a ring's slots leaves it waiting.
        Err(Error::PeerGone(_)) => {}
        Err(Error::Timeout { .. }) => {}
        Err(other) => panic!("seed {}: {other}", tally.seed),
    };
    // The other end is closed when it has said what it says, so that nobody waits for more.
    let mut channel = match Channel::from_socket(one, &Peers::SameUser) {
        Ok(channel) => channel,
        Err(error) => return heard(Err(error)),
    };
    channel.set_patience(Duration::from_millis(1));
    match random.u8(0..8) {
        0 => {
            (0..4).for_each(|_| send(random, two));
            heard(Consumer::open(channel).map(|(_, shares)| shares));
        }
        kind => {
            for _ in 0..20 {
                send(random, two);
                match kind {
                    1 => heard(channel.receive_note().map(|_| Vec::new())),
                    _ => heard(channel.receive_share().map(|(_, share)| vec![share])),
                }
            }
        }
    }
}

#[test]
fn whatever_a_peer_says_is_a_message_or_an_error() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let (mut tally, mut random) = Tally::start();
    let mut objects = Objects::new();
    let messages = every_message(&objects.good, &["x"]);
    let shares: Vec<&Value> = messages.iter().filter(|message| message.get("share").is_some()).collect();
    let rings: Vec<&Value> = messages.iter().filter(|message| message.get("ring").is_some()).collect();
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < support::fuzz_time() {
        let (one, two) = Channel::socket_pair().unwrap();
        let mut ring_is_next = true;
        let mut send = |random: &mut Rng, socket: &OwnedFd| {
            let message = match random.u8(0..10) {
                0 => &messages[random.usize(0..messages.len())],
                1 | 2 if std::mem::take(&mut ring_is_next) => rings[0],
                _ => shares[0],
            };
            let fds = objects.pick(random, carries_a_descriptor(message));
            let bytes = changed(random, message, &messages, fds.len());
            sent += u64::from(send_raw(socket, &bytes, &fds).is_ok());
        };
        listen(&mut random, one, &two, &mut tally, &mut send);
    }
    tally.sent = sent;
    objects.shrinker.end();
    drop((objects.wrong, objects.good, objects.shrinking));
    assert_eq!(descriptors(), before, "seed {}: descriptors leaked", tally.seed);
    tally.end(&[
        &SHARE_REASONS,
        &[
            "in place of a share",
            "in place of a note",
            "is no hello",
            "slots; it has",
            "of the protocol",
            "were said to",
        ],
        &[
            "a body of",
            "does not begin as one of onebuf",
            "a packet longer than",
            "descriptors in a message",
            "was agreed on",
        ],
    ]);
}

#[test]
fn whatever_clients_ask_the_broker_keeps_the_rules() {
    let _serial = SERIAL.lock();
    let (mut tally, mut random) = Tally::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let quota = Quota { names: 3, bytes: 10 * BYTES };
    let broker = Broker::bind(&path, Peers::SameUser, Limits { quota, ..Limits::default() }).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    let thread = std::thread::spawn(move || broker.run(stopped.as_fd()));
    let mut objects = Objects::new();
    let names = ["n", "m", "kept", &"l".repeat(128)];
    let messages = every_message(&objects.good, &names);
    let mut requests: Vec<Value> = messages.iter().filter(|m| m.get("request").is_some()).cloned().collect();
    let publishes: Vec<Value> = requests.iter().filter(|m| carries_a_descriptor(m) > 0).cloned().collect();
    requests.extend(publishes.iter().cycle().take(4 * publishes.len()).cloned());
    // What somebody else published stays as it was.
    let mut kept = Client::connect(&path, &Peers::SameUser).unwrap();
    let mine = share(4096).view(8, 100).unwrap();
    kept.publish("kept", &mine).unwrap();
    let before = descriptors();
    let start = Instant::now();
    while start.elapsed() < support::fuzz_time() {
        let mut strangers: Vec<(OwnedFd, bool)> =
            (0..random.usize(1..4)).map(|_| (stranger(&path, random.u8(0..20) > 0), true)).collect();
        for _ in 0..random.usize(1..80) {
            let at = random.usize(0..strangers.len());
            let (socket, reads) = &mut strangers[at];
            let among = if random.u8(0..30) == 0 { &messages } else { &requests };
            let message = &among[random.usize(0..among.len())];
            let fds = objects.pick(&mut random, carries_a_descriptor(message));
            let bytes = changed(&mut random, message, &messages, fds.len());
            // Its own user may take a name away; nothing else that is said of it may.
            let text = String::from_utf8_lossy(&bytes);
            if text.contains("release") && text.contains("kept") {
                continue;
            }
            if send_raw(&*socket, &bytes, &fds).is_err() {
                strangers[at] = (stranger(&path, true), true);
                continue;
            }
            tally.sent += 1;
            *reads = *reads && random.u8(0..60) > 0;
            if *reads {
                read_answers(socket, &mut tally);
            }
        }
        // It serves others at once, and says what holds.
        let asked = Instant::now();
        let entry = kept.inspect("kept").unwrap_or_else(|error| panic!("seed {}: {error}", tally.seed));
        assert!(asked.elapsed() < LIMIT, "seed {}: the broker took {:?}", tally.seed, asked.elapsed());
        assert_eq!((entry.view_bytes, entry.alive), (100, true), "seed {}", tally.seed);
        let all = kept.list().unwrap();
        assert!(all.len() <= quota.names, "seed {}: {} names", tally.seed, all.len());
        assert!(
            all.iter().map(|entry| entry.allocation_bytes).sum::<u64>() <= quota.bytes,
            "seed {}",
            tally.seed
        );
        for entry in all {
            match kept.open(&entry.name) {
                Ok(share) => {
                    check_sound(&share);
                    tally.taken += 1;
                    kept.close(&entry.name).unwrap();
                }
                // It is gone since, or its file was cut short since.
                Err(Error::Refused(_) | Error::InvalidArgument(_)) => {}
                Err(other) => panic!("seed {}: {other}", tally.seed),
            }
        }
        while kept.gone().unwrap().is_some() {}
    }
    assert_eq!(kept.open("kept").unwrap().key(), mine.key(), "seed {}", tally.seed);
    kept.close("kept").ok();
    objects.shrinking = None;
    let end = Instant::now();
    while (kept.list().unwrap().len(), descriptors()) > (1, before) {
        assert!(end.elapsed() < LIMIT, "seed {}: names or descriptors outlive their clients", tally.seed);
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(stop);
    thread.join().unwrap().unwrap();
    objects.shrinker.end();
    tally.end(&[
        &SHARE_REASONS,
        &[
            "a name has",
            "is taken",
            "has published",
            "neither holds nor published",
            "there is no _",
            "no descriptor came",
        ],
        &["in place of a request", "no hello"],
    ]);
}

fn stranger(path: &std::path::Path, greets: bool) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    if greets {
        let _ = send_raw(&socket, &hello(), &[]);
    }
    socket
}

/// Reads what has come, and counts what was refused.
fn read_answers(socket: &OwnedFd, tally: &mut Tally) {
    let mut bytes = [0; 40_000];
    while let Ok((got, _)) = rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
        if got < 16 {
            return;
        }
        let answer: Value = serde_json::from_slice(&bytes[16..got]).unwrap();
        for path in ["/answer/refused/reason", "/refuse/reason"] {
            if let Some(reason) = answer.pointer(path).and_then(Value::as_str) {
                tally.refused(reason);
            }
        }
    }
}

/// A broker that says anything: each connection gets a hello and the packets that were sent to it.
type Lies = Vec<(Vec<u8>, Option<OwnedFd>)>;

fn lying_broker(path: &std::path::Path, lies: Receiver<Lies>) -> std::thread::JoinHandle<()> {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    std::thread::spawn(move || {
        for lies in lies {
            let client = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
            let _ = send_raw(&client, &hello(), &[]);
            for (bytes, fd) in lies {
                let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
                let _ = send_raw(&client, &bytes, &fds);
            }
        }
    })
}

#[test]
fn whatever_a_broker_answers_a_client_survives() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let (mut tally, mut random) = Tally::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let (say, lies) = channel();
    let thread = lying_broker(&path, lies);
    let mut objects = Objects::new();
    let messages = every_message(&objects.good, &["n", "m"]);
    let answers: Vec<Value> = messages.iter().filter(|m| m.get("answer").is_some()).cloned().collect();
    let mine = share(64);
    let start = Instant::now();
    while start.elapsed() < support::fuzz_time() {
        let lies: Lies = (0..12)
            .map(|_| {
                let among = if random.u8(0..20) == 0 { &messages } else { &answers };
                let message = &among[random.usize(0..among.len())];
                let fd = objects.pick(&mut random, carries_a_descriptor(message)).first().copied();
                let fd = fd.map(|fd| fd.try_clone_to_owned().unwrap());
                (changed(&mut random, message, &messages, usize::from(fd.is_some())), fd)
            })
            .collect();
        tally.sent += lies.len() as u64;
        say.send(lies).unwrap();
        let mut client = Client::connect(&path, &Peers::SameUser).unwrap();
        client.set_patience(Duration::from_millis(50));
        for _ in 0..12 {
            let came = match random.u8(0..7) {
                0 => client.publish("n", &mine),
                1 => client.close("n"),
                2 => client.release("n"),
                3 => client.list().map(|_| ()),
                4 => client.inspect("n").map(|_| ()),
                5 => client.gone().map(|_| ()),
                _ => client.open("n").map(|share| check_sound(&share)),
            };
            match came {
                Ok(()) => tally.taken += 1,
                Err(Error::InvalidArgument(why) | Error::Protocol(why) | Error::Refused(why)) => {
                    tally.refused(&why)
                }
                Err(Error::PeerGone(_) | Error::Timeout { .. }) => break,
                Err(other) => panic!("seed {}: {other}", tally.seed),
            }
        }
    }
    drop(say);
    thread.join().unwrap();
    objects.shrinker.end();
    drop((objects.wrong, objects.good, objects.shrinking, mine));
    assert_eq!(descriptors(), before, "seed {}: descriptors leaked", tally.seed);
    tally.end(&[
        &[
            "in place of a share",
            "in place of a yes",
            "in place of names",
            "in place of an entry",
            "in place of nothing",
        ],
        &["in granules of", "a view of", "is said to have", "not sealed against shrinking", "missing field"],
    ]);
}

/// A ring whose other end is written by hand: its page of counters.
struct Page {
    file: OwnedFd,
}

impl Page {
    fn set(&self, line: usize, value: u64) {
        rustix::io::pwrite(&self.file, &value.to_le_bytes(), 64 * line as u64).unwrap();
    }

    fn get(&self, line: usize) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::pread(&self.file, &mut bytes[..], 64 * line as u64).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// A count near what is right, or anything.
fn count_near(random: &mut Rng, right: u64, slots: u64) -> u64 {
    match random.u8(0..8) {
        0 => random.u64(..) >> random.u32(0..64),
        1 => u64::MAX - random.u64(0..3),
        2 => right.wrapping_sub(random.u64(0..3)),
        _ => right.wrapping_add(random.u64(0..slots + 2)),
    }
}

#[test]
fn whatever_a_ring_counts_a_side_knows_what_cannot_be() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let (mut tally, mut random) = Tally::start();
    let none = Duration::ZERO;
    let start = Instant::now();
    while start.elapsed() < support::fuzz_time() {
        let slots = random.u64(1..33);
        // A producer that lies.
        let (one, two) = Channel::socket_pair().unwrap();
        send_raw(&one, &hello(), &[]).unwrap();
        let memfd = Memfd::create(4096, 4096).unwrap();
        let page = Page { file: memfd.export(4096).unwrap().fd };
        let ring = format!(r#"{{"ring":{{"slots":{slots}}}}}"#);
        send_raw(&one, &packet(1, 1, ring.as_bytes()), &[page.file.as_fd()]).unwrap();
        let slot = share(64);
        let message =
            onebuf_ipc::wire::Message::Share { name: "s".into(), description: slot.description().clone() };
        let body = serde_json::to_vec(&message).unwrap();
        let mut channel = Channel::from_socket(two, &Peers::SameUser).unwrap();
        channel.set_patience(LIMIT);
        let sends = std::thread::spawn(move || {
            for _ in 0..slots {
                while send_raw(&one, &packet(1, 1, &body), &[slot.as_fd()]).is_err() {
                    std::thread::yield_now();
                }
            }
            one
        });
        let (mut consumer, shares) = Consumer::open(channel).unwrap();
        let _one = sends.join().unwrap();
        assert_eq!(shares.len() as u64, slots);
        let (mut taken, mut finished) = (0u64, false);
        for _ in 0..60 {
            let published = count_near(&mut random, taken, slots);
            finished = finished || random.u8(0..50) == 0;
            page.set(0, published);
            page.set(2, u64::from(finished) * random.u64(1..));
            tally.sent += 1;
            let can_be = published >= taken && published - taken <= slots;
            match consumer.next(none) {
                Ok(Some((slot, _))) if can_be && published > taken => {
                    assert_eq!(slot as u64, taken % slots, "seed {}", tally.seed);
                    if random.bool() {
                        consumer.release().unwrap();
                        taken += 1;
                        assert_eq!(page.get(1), taken, "seed {}", tally.seed);
                    }
                    tally.taken += 1;
                }
                Ok(None) if published == taken && finished => {}
                Err(Error::Timeout { .. }) if published == taken && !finished => {}
                Err(Error::Protocol(why)) if !can_be => tally.refused(&why),
                other => panic!("seed {}: {other:?} where {published} of {taken} + {slots}", tally.seed),
            }
        }
        // A consumer that lies.
        let (one, two) = Channel::socket_pair().unwrap();
        send_raw(&two, &hello(), &[]).unwrap();
        let channel = Channel::from_socket(one, &Peers::SameUser).unwrap();
        let shares: Vec<SharedBuffer> = (0..slots.min(8)).map(|_| share(64)).collect();
        let slots = shares.len() as u64;
        let mut producer = Producer::create(channel, &shares).unwrap();
        let page = Page { file: ring_page(&two) };
        let mut published = 0u64;
        for _ in 0..60 {
            let released = count_near(&mut random, published.saturating_sub(slots), slots);
            page.set(1, released);
            tally.sent += 1;
            match producer.acquire(none) {
                Ok(slot) if released <= published && published - released < slots => {
                    assert_eq!(slot as u64, published % slots, "seed {}", tally.seed);
                    producer.publish([published; 4]).unwrap();
                    published += 1;
                    assert_eq!(page.get(0), published, "seed {}", tally.seed);
                    tally.taken += 1;
                }
                Err(Error::Timeout { .. }) if released <= published && published - released >= slots => {}
                Err(Error::Protocol(why)) if released > published => tally.refused(&why),
                other => {
                    panic!("seed {}: {other:?} where {released} of {published}, {slots} slots", tally.seed)
                }
            }
        }
    }
    assert_eq!(descriptors(), before, "seed {}: descriptors leaked", tally.seed);
    tally.end(&[&["slots were published", "slots were given back"]]);
}

/// The page of a ring that was sent to a socket, whose other messages are read and dropped.
fn ring_page(socket: &OwnedFd) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut page = None;
    loop {
        let mut bytes = [0; 40_000];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [std::io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        if recvmsg(socket, into, &mut control, flags).is_err() {
            return page.expect("no page came");
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                page = page.or(fds.last());
            }
        }
    }
}
