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
    } else {
        assert!(!rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo(), "{told:?}");
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

    pub(crate) fn end(self) {
        drop(self.files);
        self.thread.join().unwrap();
    }
}

/// What goes with a message: mostly what it should, or else anything.
pub(crate) struct Objects {
    pub(crate) good: SharedBuffer,
    pub(crate) wrong: Vec<(&'static str, OwnedFd)>,
    pub(crate) shrinker: Shrinker,
    /// The last file that shrinks.
    pub(crate) shrinking: Option<OwnedFd>,
}

impl Objects {
    pub(crate) fn new() -> Objects {
        let good = share(BYTES);
        Objects { good, wrong: super::wrong_descriptors(BYTES), shrinker: Shrinker::start(), shrinking: None }
    }

    pub(crate) fn pick(&mut self, random: &mut Rng, wanted: usize) -> Vec<BorrowedFd<'_>> {
        let count = if random.u8(0..12) == 0 { [0, 1, 2, 5, 60][random.usize(0..5)] } else { wanted };
        let picks: Vec<usize> = (0..count).map(|_| random.usize(0..3 * self.wrong.len())).collect();
        if count > 0 && random.u8(0..10) == 0 {
            self.shrinking = Some(self.shrinker.file());
            return self.shrinking.iter().map(AsFd::as_fd).collect();
        }
        let good = &self.good;
        picks.into_iter().map(|at| self.wrong.get(at).map_or(good.as_fd(), |(_, fd)| fd.as_fd())).collect()
    }
}
