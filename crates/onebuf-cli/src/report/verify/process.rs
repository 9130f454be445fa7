//! `process`: a second process opens the same device memory, by each way that it may leave a process.
//!
//! The two processes take turns: one fills a part at an odd place, by kernel and by CPU, and the other one looks at every
//! byte. At the end the first lets go of the memory, and the second must still have it: where the driver counts no
//! references across processes, by the lease that comes with the share. Then each side is killed while both
//! hold it: the other must be told, and keep memory, descriptors and its head.

use std::os::fd::AsFd;
use std::process::Child;
use std::time::{Duration, Instant};

use onebuf::ipc::{Channel, Peers};
use onebuf::{Buffer, Device, Error, HandleKind, HostAccess, Kernel, Share, SharedBuffer, Stream, args};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Problem, TestResult, WORK_LIMIT, compare};
use crate::child::{self, How};

/// The device that the second process opens, and what it does there.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerOf {
    device: String,
    #[arg(value_enum)]
    role: Role,
    /// By which way the memory leaves.
    way: String,
}

/// What the second process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// It opens the memory, and takes its turns.
    Turns,
    /// It opens the memory, holds it, and waits to be killed.
    Holder,
    /// It makes the memory, shares it, and waits to be killed.
    Maker,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Turns => "turns",
            Role::Holder => "holder",
            Role::Maker => "maker",
        }
    }
}

/// An odd number, so that no boundary of the driver's is one of ours: 4 MiB and 3 words.
const WORDS: usize = (1 << 20) + 3;
const ROUNDS: u32 = 3;

/// How long a side waits for the other one.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a survivor may take to be told.
const TOLD_LIMIT: Duration = Duration::from_secs(2);

/// The change that is there when a process is killed.
const SALT: u32 = 77;

/// What the first process says.
#[derive(Debug, Serialize, Deserialize)]
enum Turn {
    /// The memory is what `salt` makes it: look, change it, and answer.
    Yours { salt: u32 },
    /// The first process holds the memory no longer.
    Alone { salt: u32 },
}

/// What the second process answers: the salt of its change, or what is wrong.
type Answer = Result<u32, Refusal>;

/// Why the second process does not go on.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    why: String,
    /// It could not be tried: this way only leads out of a process.
    skipped: bool,
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        if refusal.skipped { Problem::Skipped(refusal.why) } else { Problem::Failed(refusal.why) }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        // A note has its limits.
        let cut = |why: String| why.chars().take(200).collect();
        match problem {
            Problem::Failed(why) => Refusal { why: cut(why), skipped: false },
            Problem::Skipped(why) => Refusal { why: cut(why), skipped: true },
        }
    }
}

pub(super) fn test(device: &Device) -> TestResult {
    let profile = device.profile();
    let ways = HandleKind::ALL.into_iter().filter(|way| match way {
        HandleKind::Memfd => device.info().limits.host_import_alignment_bytes > 0,
        way => profile.memory.iter().any(|kind| kind.export.contains(way)),
    });
    let mut passed: Vec<String> = Vec::new();
    let mut skipped: Vec<String> = Vec::new();
    for way in ways {
        let name = way.name();
        match share(device, way) {
            Ok(placement) => passed.push(placement),
            Err(Problem::Failed(why)) => return Err(Problem::Failed(format!("{name}: {why}"))),
            Err(Problem::Skipped(why)) => skipped.push(format!("{name}: {why}")),
        }
    }
    if passed.is_empty() && skipped.is_empty() {
        return Err(Problem::Failed("no memory of the device can be exported".into()));
    }
    if passed.is_empty() {
        return Err(Problem::Skipped(skipped.join("; ")));
    }
    let mut told = format!(
        "a second process read and wrote it, kept it when the first let go, and either was killed while both held it: {}",
        passed.join("; ")
    );
    if !skipped.is_empty() {
        told += &format!("; not tried: {}", skipped.join("; "));
    }
    Ok(told)
}

/// The first process, for one way.
fn share(device: &Device, way: HandleKind) -> TestResult {
    let buffer = build(device, way)?;
    compare(&buffer.read_to_vec()?, &[0; WORDS], "memory that is to be shared, which must begin as zeros")?;
    let placement = format!("{} through {}", way.name(), buffer.placement().kind);
    let (peer, talk) = Peer::start(device, Role::Turns, way)?;
    let spoken = talk.and_then(|talk| converse(device, buffer, &talk));
    // The socket is closed: the peer, if it still waits, ends.
    let ended = child::finish(peer.child, peer.start, PATIENCE).map_err(skip)?;
    match (spoken, &ended.how) {
        (Ok(()), How::Exited(0)) => {}
        (Err(Problem::Failed(why)), How::Exited(0)) => return Err(Problem::Failed(why)),
        (Err(Problem::Failed(why)), _) => return Err(Problem::Failed(format!("{why} ({})", ended.why()))),
        (Err(skipped), _) => return Err(skipped),
        (Ok(()), _) => return Err(Problem::Failed(format!("the second process: {}", ended.why()))),
    }
    for role in [Role::Holder, Role::Maker] {
        survives(device, role, way)?;
    }
    Ok(placement)
}

/// Kills the second process until a time that leaves this one with no more than it had. A driver may keep what it opened
/// first, once; a leak shows each time.
fn survives(device: &Device, role: Role, way: HandleKind) -> Result<(), Problem> {
    let mut seen = Vec::new();
    for _ in 0..3 {
        device.wait_idle()?;
        let before = held(device);
        killed(device, role, way)?;
        device.wait_idle()?;
        let after = held(device);
        if after.0 <= before.0 && after.1 == before.1 {
            return Ok(());
        }
        seen.push(format!(
            "{} descriptors and {} buffers became {} and {}",
            before.0, before.1, after.0, after.1
        ));
    }
    let (role, seen) = (role.name(), seen.join(", then "));
    Err(Problem::Failed(format!("each time the {role} was killed this process held more: {seen}")))
}

/// Descriptors and live buffers of this process.
fn held(device: &Device) -> (usize, u64) {
    device.trim();
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    (descriptors, device.memory().buffers)
}

fn build(device: &Device, way: HandleKind) -> Result<Buffer<u32>, Problem> {
    let builder = device.buffer::<u32>(WORDS).host(HostAccess::ReadWrite).share(Share::Process);
    match builder.ways([way]).zeroed().build() {
        Err(error @ (Error::NoPlacement { .. } | Error::Unsupported { .. })) if way == HandleKind::Memfd => {
            Err(Problem::Skipped(error.to_string()))
        }
        other => Ok(other?),
    }
}

/// A second process, and when it was started.
struct Peer {
    child: Child,
    start: Instant,
}

impl Peer {
    fn start(device: &Device, role: Role, way: HandleKind) -> Result<(Peer, Result<Talk, Problem>), Problem> {
        let (mine, its) = Channel::socket_pair().map_err(|error| Problem::Skipped(error.to_string()))?;
        let start = Instant::now();
        let id = device.info().id.to_string();
        let args = ["__child", "peer", &id, role.name(), way.name()];
        let child = child::spawn(&args, Some(its)).map_err(skip)?;
        Ok((Peer { child, start }, Talk::new(mine)))
    }
}

fn converse(device: &Device, buffer: Buffer<u32>, talk: &Talk) -> Result<(), Problem> {
    talk.channel.send_share("turns", &buffer.share()?)?;
    let mut side = Side::new(device, buffer)?;
    let mut salt = 1;
    for round in 0..ROUNDS {
        salt = side.change(salt ^ round)?;
        talk.send(&Turn::Yours { salt })?;
        let answer: Answer = talk.receive()?;
        salt = answer?;
        side.mirror(salt);
        side.check("what the second process wrote")?;
    }
    drop(side);
    device.trim();
    talk.send(&Turn::Alone { salt })?;
    let answer: Answer = talk.receive()?;
    answer.map(|_| ()).map_err(Problem::from)
}

/// The first process, when the second one is killed while both hold the memory.
fn killed(device: &Device, role: Role, way: HandleKind) -> Result<(), Problem> {
    let (mut peer, talk) = Peer::start(device, role, way)?;
    let talk = talk?;
    let mut side = if role == Role::Holder {
        let buffer = build(device, way)?;
        let share = buffer.share()?;
        let mut side = Side::new(device, buffer)?;
        side.change(SALT)?;
        talk.channel.send_share("held", &share)?;
        side
    } else {
        let (_, share) = talk.channel.receive_share()?;
        let mut side = Side::new(device, open(device, &share)?)?;
        side.mirror(SALT);
        side
    };
    let answer: Answer = talk.receive()?;
    answer.map_err(Problem::from)?;
    peer.child.kill().map_err(|error| Problem::Skipped(format!("a kill: {error}")))?;
    let begin = Instant::now();
    let told = talk.channel.receive_note();
    let after = begin.elapsed();
    child::finish(peer.child, peer.start, PATIENCE).map_err(skip)?;
    if !matches!(told, Err(Error::PeerGone(_))) || after > TOLD_LIMIT {
        let name = role.name();
        return Err(Problem::Failed(format!(
            "{after:?} after the {name} was killed, this process is told {told:?}"
        )));
    }
    side.check("after the second process was killed")?;
    side.change(SALT + 1)?;
    side.check("what was written after the second process was killed")
}

/// The second process.
pub(crate) fn here(peer: &PeerOf) -> crate::error::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| crate::error::Error::io("the inherited socket", error))?;
    let talk = Talk::new(socket);
    let done = talk.and_then(|talk| match peer.role {
        Role::Turns => answer(&peer.device, &talk),
        Role::Holder | Role::Maker => wait_to_be_killed(peer, &talk),
    });
    match done {
        Ok(()) => Ok(()),
        Err(Problem::Failed(why) | Problem::Skipped(why)) => Err(crate::error::Error::Failed(why)),
    }
}

fn answer(device: &str, talk: &Talk) -> Result<(), Problem> {
    let (_, share) = talk.channel.receive_share()?;
    let device = onebuf::Registry::system().open(device)?;
    let mut side = match open(&device, &share).and_then(|buffer| Side::new(&device, buffer)) {
        Ok(side) => side,
        Err(problem) => {
            let _: Turn = talk.receive()?;
            return talk.send(&Answer::Err(problem.into()));
        }
    };
    drop(share);
    loop {
        let (turn, alone) = match talk.receive()? {
            Turn::Yours { salt } => (side.look_and_change(salt), false),
            Turn::Alone { salt } => (side.check("after the first process let go").map(|()| salt), true),
        };
        let failed = turn.is_err();
        talk.send(&turn.map_err(Refusal::from))?;
        if alone || failed {
            return Ok(());
        }
    }
}

fn wait_to_be_killed(peer: &PeerOf, talk: &Talk) -> Result<(), Problem> {
    let device = onebuf::Registry::system().open(&peer.device)?;
    let way = HandleKind::ALL.into_iter().find(|way| way.name() == peer.way);
    let way = way.ok_or_else(|| Problem::Failed(format!("there is no way `{}`", peer.way)))?;
    let mut side = if peer.role == Role::Holder {
        let (_, share) = talk.channel.receive_share()?;
        Side::new(&device, open(&device, &share)?)?
    } else {
        Side::new(&device, build(&device, way)?)?
    };
    let ready = if peer.role == Role::Holder {
        side.mirror(SALT);
        side.check("what the first process wrote").map(|()| 0)
    } else {
        side.change(SALT)?;
        talk.channel.send_share("made", &side.buffer.share()?)?;
        Ok(0)
    };
    talk.send(&ready.map_err(Refusal::from))?;
    // The end comes from outside; where it does not, the first process closes the socket.
    match talk.channel.receive_note() {
        Err(Error::PeerGone(_)) => Ok(()),
        other => Err(Problem::Failed(format!("{other:?} in place of the end"))),
    }
}

#[allow(unsafe_code)]
fn open(device: &Device, share: &SharedBuffer) -> Result<Buffer<u32>, Problem> {
    // SAFETY: the two processes take turns. Each touches the memory only between a message that it received and the one
    // that it sends next, and has waited for its device before it sends.
    match unsafe { device.open_shared(share) } {
        Err(error @ Error::Unsupported { .. }) => Err(Problem::Skipped(error.to_string())),
        Err(error) => Err(Problem::Failed(format!("the second process could not open it: {error}"))),
        Ok(buffer) => Ok(buffer),
    }
}

/// One process's hold on the memory, with a model of what it must hold.
struct Side {
    stream: Stream,
    kernel: Kernel,
    buffer: Buffer<u32>,
    /// Where the kernel may begin, in words.
    alignment: usize,
    model: Vec<u32>,
}

impl Side {
    fn new(device: &Device, buffer: Buffer<u32>) -> Result<Side, Problem> {
        let kernel = device.kernel(include_str!("transform.wgsl"))?.build()?;
        let alignment = device.info().limits.storage_offset_alignment_bytes.div_ceil(4).max(1);
        let alignment = usize::try_from(alignment).unwrap_or(1);
        Ok(Side { stream: device.stream()?, kernel, buffer, alignment, model: vec![0; WORDS] })
    }

    /// Changes the memory as `salt` says, and the model with it.
    fn change(&mut self, salt: u32) -> Result<u32, Problem> {
        let (kernels, hosts) = self.mirror(salt);
        let params = [kernels.len() as u32, salt];
        self.stream.launch(&self.kernel, [1024, 1, 1], args![self.buffer.slice(kernels)?, params])?;
        self.stream.wait_timeout(WORK_LIMIT)?;
        self.buffer.slice(hosts.clone())?.copy_from_slice(&self.model[hosts])?;
        // Where the CPU's words went through a copy, the device must be done with it.
        self.buffer.device().wait_idle()?;
        Ok(salt)
    }

    /// What `change` does, in the model. The parts that kernel and CPU changed.
    fn mirror(&mut self, salt: u32) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let mut random = fastrand::Rng::with_seed(u64::from(salt));
        let start = random.usize(0..WORDS / 2) / self.alignment * self.alignment;
        let kernels = start..random.usize(start + 1..=WORDS);
        for (i, word) in self.model[kernels.clone()].iter_mut().enumerate() {
            *word = word.wrapping_mul(2_654_435_761).wrapping_add(i as u32 ^ salt);
        }
        let start = random.usize(0..WORDS - 64) | 1;
        let hosts = start..start + 61;
        for (i, word) in self.model[hosts.clone()].iter_mut().enumerate() {
            *word = salt.rotate_left(7) ^ i as u32;
        }
        (kernels, hosts)
    }

    fn look_and_change(&mut self, salt: u32) -> Result<u32, Problem> {
        self.mirror(salt);
        self.check("what the first process wrote")?;
        self.change(salt.wrapping_mul(747_796_405).wrapping_add(1))
    }

    fn check(&self, when: &str) -> Result<(), Problem> {
        compare(&self.buffer.read_to_vec()?, &self.model, when)
    }
}

/// Messages between the two.
struct Talk {
    channel: Channel,
}

impl Talk {
    fn new(socket: std::os::fd::OwnedFd) -> Result<Talk, Problem> {
        let mut channel = Channel::from_socket(socket, &Peers::SameUser)?;
        channel.set_patience(PATIENCE);
        Ok(Talk { channel })
    }

    fn send(&self, message: &impl Serialize) -> Result<(), Problem> {
        let text = serde_json::to_string(message).map_err(|error| Problem::Failed(error.to_string()))?;
        Ok(self.channel.send_note(&text)?)
    }

    fn receive<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_str(&self.channel.receive_note()?).map_err(|error| {
            Problem::Failed(format!("a message of the other process cannot be understood: {error}"))
        })
    }
}

fn skip(error: crate::error::Error) -> Problem {
    Problem::Skipped(error.to_string())
}
