//! Memory in two processes: a thousand times, after its maker let go, and what strangers say of it.

use std::time::Duration;

use onebuf::ipc::{Channel, Description};
use onebuf::{Buffer, Device, Error, HandleKind, SharedBuffer, Token, args};
use onebuf_tests::{kernels, lab, process, resources};

use crate::ways::{PATIENCE, at_home, child, each_way, shared};

const LEN: usize = 5000;

fn open(device: &Device, share: &SharedBuffer) -> onebuf::Result<Buffer<u32>> {
    // SAFETY: a note passes the turn, after the work of who sends it.
    unsafe { device.open_shared(share) }
}

/// Adds one to every word of each share that comes, and lets go of it before it answers.
fn increment_what_comes(device: &Device, channel: &Channel) {
    let kernel = device.kernel(kernels::INCREMENT).unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    let work = |share: SharedBuffer| {
        let buffer = open(device, &share).unwrap();
        stream.launch(&kernel, kernel.groups_for([buffer.len() as u32, 1, 1]), args![buffer]).unwrap();
        stream.wait().unwrap();
        drop((buffer, share));
        device.wait_idle().unwrap();
        channel.send_note("done").unwrap();
    };
    let held = || {
        device.trim();
        (resources::descriptors(), device.memory().buffers, device.shared_objects())
    };
    // What a driver makes for its first imports, it keeps.
    (0..20).for_each(|_| work(channel.receive_share().unwrap().1));
    let before = held();
    while let Ok((_, share)) = channel.receive_share() {
        work(share);
    }
    assert_eq!(held(), before);
}

#[test]
fn a_thousand_shares_in_another_process_leave_nothing() {
    if process::role().is_some() {
        let (device, _, channel) = at_home();
        return increment_what_comes(&device, &channel);
    }
    each_way(|subject, way, listener| {
        let child = child("importer", subject, way, listener);
        let mut channel = listener.accept(PATIENCE).unwrap();
        channel.set_patience(PATIENCE);
        let cycle = |round: u32| {
            let mine = shared(&subject.device, way, LEN).unwrap();
            mine.write().unwrap().fill(round);
            mine.settle(PATIENCE).unwrap();
            channel.send_share("x", &mine.share().unwrap()).unwrap();
            assert_eq!(channel.receive_note().unwrap(), "done");
            assert!(mine.read().unwrap().iter().all(|&word| word == round + 1), "round {round}");
        };
        let held = || {
            subject.device.wait_idle().unwrap();
            subject.device.trim();
            let memory = subject.device.memory();
            (resources::descriptors(), memory.buffers, memory.live_bytes, subject.device.shared_objects())
        };
        (0..20).for_each(cycle);
        let before = held();
        (20..1020).for_each(cycle);
        assert!(lab::eventually(|| held() == before), "{before:?} became {:?}", held());
        drop(channel);
        process::finish(child, PATIENCE).expect_success();
    });
}

#[test]
fn a_maker_that_lets_go_keeps_the_memory_for_the_others() {
    const BYTES: u64 = 64 << 20;
    if process::role().is_some() {
        let (device, _, channel) = at_home();
        let (_, share) = channel.receive_share().unwrap();
        let theirs = open(&device, &share).unwrap();
        channel.send_note("open").unwrap();
        assert_eq!(channel.receive_note().unwrap(), "the maker let go");
        assert!(theirs.read_to_vec().unwrap().iter().enumerate().all(|(i, &word)| word == i as u32));
        drop((theirs, share));
        device.wait_idle().unwrap();
        device.trim();
        channel.send_note("closed").unwrap();
        assert!(matches!(channel.receive_note(), Err(Error::PeerGone(_))));
        return;
    }
    each_way(|subject, way, listener| {
        let device = &subject.device;
        let child = child("importer", subject, way, listener);
        let mut channel = listener.accept(PATIENCE).unwrap();
        channel.set_patience(PATIENCE);
        // A driver may keep what it opened for its first export of that size.
        drop(shared(device, way, BYTES as usize / 4).unwrap().share().unwrap());
        device.trim();
        let descriptors = resources::descriptors();
        let mine = shared(device, way, BYTES as usize / 4).unwrap();
        let words: Vec<u32> = (0..BYTES as u32 / 4).collect();
        mine.copy_from_slice(&words).unwrap();
        mine.settle(PATIENCE).unwrap();
        channel.send_share("x", &mine.share().unwrap()).unwrap();
        assert_eq!(channel.receive_note().unwrap(), "open");
        drop(mine);
        device.wait_idle().unwrap();
        device.trim();
        // Whatever is allocated now is other memory.
        let others: Vec<Buffer<u32>> = (0..4).map(|_| shared(device, way, 1 << 20).unwrap()).collect();
        others.iter().for_each(|other| other.write().unwrap().fill(0xdead_beef));
        device.wait_idle().unwrap();
        channel.send_note("the maker let go").unwrap();
        assert_eq!(channel.receive_note().unwrap(), "closed");
        drop(others);
        let back = lab::eventually(|| {
            device.trim();
            device.shared_objects() == 0 && resources::descriptors() <= descriptors
        });
        assert!(back, "{descriptors} descriptors became {}", resources::descriptors());
        drop(channel);
        process::finish(child, PATIENCE).expect_success();
    });
}

/// What is said in place of the truth.
type Lie = Box<dyn Fn(&mut Description)>;

/// A share that says something else than the one that came.
fn retold(share: &SharedBuffer, lie: &dyn Fn(&mut Description)) -> onebuf::Result<SharedBuffer> {
    let mut description = share.description().clone();
    lie(&mut description);
    let fds: Vec<_> = share.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    SharedBuffer::new(description, fds)
}

#[test]
fn lies_about_memory_of_another_process_are_refused() {
    if process::role().is_some() {
        let (device, way, channel) = at_home();
        let (_, share) = channel.receive_share().unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        let mut lies: Vec<Lie> = vec![
            Box::new(|d| d.allocation_bytes = 1 << 40),
            Box::new(|d| d.allocation_bytes += 64 * d.granule_bytes),
            Box::new(|d| d.kind = 1000),
        ];
        if way != HandleKind::Memfd {
            lies.push(Box::new(|d| d.device = Some(onebuf::DeviceUuid([3; 16]))));
            lies.push(Box::new(|d| d.driver = [0x5a; 16]));
        } else {
            lies.pop();
        }
        // The driver looks up whose a legacy handle is, and believes the rest; it believes all of a pool's token, and died of
        // a wrong one. So tokens are taken from processes of the same user alone.
        if way == HandleKind::CudaIpc {
            lies.push(Box::new(|d| d.token = Some(Token([0; 64]))));
            lies.push(Box::new(|d| d.token = Some(Token([0xff; 64]))));
            for _ in 0..40 {
                let token = std::array::from_fn(|_| random.u8(..));
                lies.push(Box::new(move |d| d.token = Some(Token(token))));
            }
        }
        if way == HandleKind::CudaPool {
            let lease = share.descriptors()[0].try_clone_to_owned().unwrap();
            let no_pool = std::fs::File::open("/dev/null").unwrap().into();
            let share = SharedBuffer::new(share.description().clone(), [lease, no_pool]).unwrap();
            assert!(matches!(open(&device, &share), Err(Error::InvalidArgument(_))));
        }
        let before = (resources::descriptors(), device.memory().buffers);
        for (i, lie) in lies.iter().enumerate() {
            match retold(&share, lie).and_then(|share| open(&device, &share)) {
                Err(Error::InvalidArgument(_) | Error::OutOfMemory { .. }) => {}
                other => panic!("lie {i}: {:?}", other.map(|_| ())),
            }
        }
        // A driver may keep what it opened for its first import.
        assert!(resources::descriptors() <= before.0 + 2 && device.memory().buffers == before.1);
        // The truth is still taken.
        let theirs = open(&device, &share).unwrap();
        assert!(theirs.read().unwrap().iter().all(|&word| word == 4711));
        drop(theirs);
        channel.send_note("done").unwrap();
        return;
    }
    each_way(|subject, way, listener| {
        let child = child("stranger", subject, way, listener);
        let mut channel = listener.accept(PATIENCE).unwrap();
        channel.set_patience(PATIENCE);
        let mine = shared(&subject.device, way, LEN).unwrap();
        mine.write().unwrap().fill(4711);
        mine.settle(PATIENCE).unwrap();
        channel.send_share("x", &mine.share().unwrap()).unwrap();
        let told = channel.receive_note();
        let finished = process::finish(child, PATIENCE);
        finished.expect_success();
        assert_eq!(told.unwrap(), "done");
        assert!(mine.read().unwrap().iter().all(|&word| word == 4711));
    });
}

/// Where the way needs its maker, what a dead one left says so; else it opens.
#[test]
fn a_share_of_a_dead_maker_opens_or_says_why() {
    if process::role().is_some() {
        let (device, way, channel) = at_home();
        let mine = shared(&device, way, LEN).unwrap();
        mine.write().unwrap().fill(99);
        mine.settle(PATIENCE).unwrap();
        channel.send_share("x", &mine.share().unwrap()).unwrap();
        // Until it is killed.
        let _ = channel.receive_note();
        return;
    }
    each_way(|subject, way, listener| {
        let mut child = child("maker", subject, way, listener);
        let mut channel = listener.accept(PATIENCE).unwrap();
        channel.set_patience(PATIENCE);
        let (_, share) = channel.receive_share().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Descriptors of a dead process go a moment after it.
        std::thread::sleep(Duration::from_millis(50));
        match open(&subject.device, &share) {
            Ok(theirs) => assert!(theirs.read().unwrap().iter().all(|&word| word == 99)),
            Err(Error::PeerGone(why)) => {
                assert!(way.has_token() && why.contains(way.name()), "{why}");
            }
            Err(other) => panic!("{}: {other}", way.name()),
        }
    });
}
