//! What the fuzz tests have in common: a tally of what came, what must hold for a share that was taken, and the
//! descriptors that go with messages.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};

use fastrand::Rng;
use onebuf_core::HandleKind;
use onebuf_ipc::memfd::map_export;
use onebuf_ipc::{BootId, Description, SharedBuffer};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::Value;

use super::share;

pub(crate) const BYTES: u64 = 8192;
/// After this many messages each check must have been met.
pub(crate) const ENOUGH: u64 = 60_000;

/// What came of the messages: how often each refusal was given, without the numbers in it.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) seed: u64,
    pub(crate) sent: u64,
    pub(crate) taken: u64,
    reasons: BTreeMap<String, u64>,
}

impl Tally {
    pub(crate) fn start() -> (Tally, Rng) {
        let given = std::env::var("ONEBUF_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        (Tally { seed, ..Tally::default() }, Rng::with_seed(seed))
    }

    pub(crate) fn refused(&mut self, why: &str) {
        // Without what the message itself said.
        let text: String = why.split('`').step_by(2).collect::<Vec<_>>().join("_");
        let text: String = text.chars().filter(|c| !c.is_ascii_digit()).take(140).collect();
        *self.reasons.entry(text).or_default() += 1;
    }

    /// Prints what came, and holds it against the reasons that must have.
    pub(crate) fn end(&self, wanted: &[&[&str]]) {
        let Tally { seed, sent, taken, reasons } = self;
        let refused: u64 = reasons.values().sum();
        let kinds = reasons.len();
        let mut out = std::io::stderr();
        let _ = writeln!(
            out,
            "seed {seed}: {sent} messages, {taken} taken, {refused} refused for {kinds} reasons"
        );
        assert!(*taken > 0 && refused > 0, "{taken} taken, {refused} refused");
        if *sent >= ENOUGH {
            for want in wanted.iter().copied().flatten() {
                let met = reasons.keys().any(|reason| reason.contains(want));
                assert!(met, "seed {seed}: nothing was refused for `{want}`, but for {reasons:#?}");
            }
        }
    }
}

/// What an importer relies on holds for a share that was taken, whatever was said of it.
pub(crate) fn check_sound(share: &SharedBuffer) {
    let told: &Description = share.description();
    let end = u128::from(told.view_offset_bytes) + u128::from(told.view_bytes);
    assert!(end <= told.buffer_bytes.into(), "a view past its buffer: {told:?}");
    assert!(told.buffer_bytes <= told.size_bytes && told.size_bytes <= told.allocation_bytes, "{told:?}");
    assert!(told.size_bytes > 0 && told.granule_bytes > 0, "{told:?}");
    assert_eq!(told.allocation_bytes % told.granule_bytes, 0, "{told:?}");
    assert_eq!(told.boot, BootId::current().unwrap(), "{told:?}");
    let stat = rustix::fs::fstat(share).unwrap();
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    if told.way == HandleKind::Memfd {
        assert!(
            is_file && stat.st_size as u64 >= told.allocation_bytes,
            "{} bytes for {told:?}",
            stat.st_size
        );
        let seals = rustix::fs::fcntl_get_seals(share).unwrap();
        assert!(seals.contains(SealFlags::SHRINK) && !seals.contains(SealFlags::WRITE), "{seals:?}");
        assert_eq!(rustix::fs::fcntl_getfl(share).unwrap() & OFlags::RWMODE, OFlags::RDWR);
        let pages = map_export(&share.to_export().unwrap(), 4096).unwrap();
        for at in [0, told.allocation_bytes as usize - 1] {
            // SAFETY: the byte is in the mapping; if its file is too short, the test dies, as it should.
            unsafe { pages.pointer().add(at).read_volatile() };
        }
    }
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    assert_eq!(
        (told.way.has_token(), told.way.has_token()),
        (told.token.is_some(), kind.is_fifo()),
        "{told:?}"
    );
    let descriptors = share.descriptors();
    assert_eq!(descriptors.len(), if told.way == HandleKind::CudaPool { 2 } else { 1 }, "{told:?}");
    if kind.is_fifo() {
        // A lease: its maker waits for it to go.
        assert_eq!(rustix::fs::fcntl_getfl(share).unwrap() & OFlags::RWMODE, OFlags::WRONLY);
    }
    for pool in &descriptors[1..] {
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(pool).unwrap().st_mode);
        assert!(!(kind.is_file() || kind.is_fifo() || kind.is_socket() || kind.is_dir()), "{kind:?}");
    }
}

/// A memfd that somebody cuts short and then seals, while it is looked at.
pub(crate) struct Shrinker {
    files: Sender<OwnedFd>,
    thread: std::thread::JoinHandle<()>,
}

impl Shrinker {
    pub(crate) fn start() -> Shrinker {
        let (files, cut) = channel::<OwnedFd>();
        let thread = std::thread::spawn(move || {
            let mut random = Rng::new();
            for file in cut {
                for _ in 0..random.usize(0..4000) {
                    std::hint::spin_loop();
                }
                let _ = ftruncate(&file, 0);
                let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
            }
        });
        Shrinker { files, thread }
    }

    /// The file, which is cut at any moment from now on.
    pub(crate) fn file(&self) -> OwnedFd {
        let file = memfd_create("shrinks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, BYTES).unwrap();
        self.files.send(file.try_clone().unwrap()).unwrap();
        file
    }

    fn end(self) {
        drop(self.files);
        self.thread.join().unwrap();
    }
}

/// What goes with a message: mostly what it should, or else anything.
pub(crate) struct Objects {
    pub(crate) good: SharedBuffer,
    pub(crate) wrong: Vec<(&'static str, OwnedFd)>,
    pub(crate) shrinker: Shrinker,
    /// What goes with memory that a token opens.
    lease: OwnedFd,
    pool: OwnedFd,
    /// The last file that shrinks.
    pub(crate) shrinking: Option<OwnedFd>,
}

impl Objects {
    pub(crate) fn new() -> Objects {
        let good = share(BYTES);
        Objects {
            good,
            wrong: super::wrong_descriptors(BYTES),
            shrinker: Shrinker::start(),
            // Nobody reads: a lease is only held.
            lease: std::io::pipe().unwrap().1.into(),
            pool: std::fs::File::open("/dev/null").unwrap().into(),
            shrinking: None,
        }
    }

    /// Lets go of all.
    pub(crate) fn end(self) {
        self.shrinker.end();
    }

    /// Descriptors for a message.
    pub(crate) fn pick(&mut self, random: &mut Rng, message: &Value) -> Vec<BorrowedFd<'_>> {
        let (good, lease, pool) = (self.good.as_fd(), self.lease.as_fd(), self.pool.as_fd());
        let mut fds = match way(message) {
            Some("cuda-ipc") => vec![lease],
            Some("cuda-pool") => vec![lease, pool],
            Some(_) => vec![good],
            None => Vec::new(),
        };
        if random.u8(0..12) == 0 {
            fds.resize([0, 1, 2, 5, 60][random.usize(0..5)], good);
        }
        if !fds.is_empty() && random.u8(0..10) == 0 {
            self.shrinking = Some(self.shrinker.file());
            return self.shrinking.iter().map(AsFd::as_fd).collect();
        }
        for fd in &mut fds {
            if random.u8(0..3) == 0 {
                *fd = self.wrong[random.usize(0..self.wrong.len())].1.as_fd();
            }
        }
        fds
    }
}

/// By which way the object of a message is opened, where it has one.
pub(crate) fn way(message: &Value) -> Option<&str> {
    let with = ["/share/description", "/request/publish/description", "/answer/share/description"];
    let described = with.iter().find_map(|path| message.pointer(path)).and_then(|told| told["way"].as_str());
    described.or_else(|| message.get("ring").map(|_| "memfd"))
}
