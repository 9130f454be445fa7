//! `process`: a second process opens the same device memory, by each kind of handle that is advertised.
//!
//! The first process makes the memory and sends its handle over a Unix socket. Then the two take turns: one fills a part
//! at an odd place, by kernel and by CPU, and the other one looks at every byte. At the end the first lets go of
//! the memory, and the second must still have it.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use onebuf::{
    Buffer, Device, DeviceUuid, Error, Export, HandleKind, HostAccess, Kernel, Share, Stream, args,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Problem, TestResult, WORK_LIMIT, compare};
use crate::child::{self, How};

/// The device that the second process opens.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerOf {
    device: String,
}

/// An odd number, so that no boundary of the driver's is one of ours: 4 MiB and 3 words.
const WORDS: usize = (1 << 20) + 3;
const ROUNDS: u32 = 3;

/// How long a side waits for the other one.
const PATIENCE: Duration = Duration::from_secs(20);

/// What goes with the descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    handle: HandleKind,
    allocation_bytes: u64,
    size_bytes: u64,
    kind: usize,
    granule_bytes: u64,
    dedicated: bool,
    device: Option<DeviceUuid>,
    driver: [u8; 16],
}

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
    /// It could not be tried: this kind of handle can only leave a process.
    skipped: bool,
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        if refusal.skipped { Problem::Skipped(refusal.why) } else { Problem::Failed(refusal.why) }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        match problem {
            Problem::Failed(why) => Refusal { why, skipped: false },
            Problem::Skipped(why) => Refusal { why, skipped: true },
        }
    }
}

pub(super) fn test(device: &Device) -> TestResult {
    let handles: Vec<HandleKind> = [HandleKind::OpaqueFd, HandleKind::DmaBuf, HandleKind::CudaIpc]
        .into_iter()
        .filter(|handle| device.profile().memory.iter().any(|kind| kind.export.contains(handle)))
        .collect();
    let mut passed: Vec<String> = Vec::new();
    for &handle in &handles {
        let named = |problem| match problem {
            Problem::Failed(why) => Problem::Failed(format!("{}: {why}", handle.name())),
            Problem::Skipped(why) => Problem::Skipped(format!("{}: {why}", handle.name())),
        };
        passed.push(share(device, handle).map_err(named)?);
    }
    if passed.is_empty() {
        return Err(Problem::Failed("no memory of the device can be exported".into()));
    }
    Ok(format!(
        "a second process read and wrote it, and kept it when the first let go: {}",
        passed.join("; ")
    ))
}

/// The first process, for one kind of handle.
fn share(device: &Device, handle: HandleKind) -> TestResult {
    let buffer =
        device.buffer::<u32>(WORDS).host(HostAccess::ReadWrite).share(Share::Process).zeroed().build()?;
    compare(&buffer.read_to_vec()?, &[0; WORDS], "memory that is to be shared, which must begin as zeros")?;
    let placement = format!("{} through {}", handle.name(), buffer.placement().kind);
    let export = buffer.export(handle)?;

    let (mine, its) = UnixStream::pair().map_err(os("a socket"))?;
    let start = Instant::now();
    let id = device.info().id.to_string();
    let peer = child::spawn(&["__child", "peer", &id], Some(its.into())).map_err(skip)?;
    let talk = Talk::new(mine).and_then(|mut talk| converse(device, buffer, export, &mut talk));
    // The socket is closed: the peer, if it still waits, ends.
    let ended = child::finish(peer, start, PATIENCE).map_err(skip)?;
    match (talk, &ended.how) {
        (Ok(()), How::Exited(0)) => Ok(placement),
        (Err(Problem::Failed(why)), How::Exited(0)) => Err(Problem::Failed(why)),
        (Err(Problem::Failed(why)), _) => Err(Problem::Failed(format!("{why} ({})", ended.why()))),
        (Err(skipped), _) => Err(skipped),
        (Ok(()), _) => Err(Problem::Failed(format!("the second process: {}", ended.why()))),
    }
}

fn converse(device: &Device, buffer: Buffer<u32>, export: Export, talk: &mut Talk) -> Result<(), Problem> {
    let hello = Hello {
        handle: export.handle,
        allocation_bytes: export.allocation_bytes,
        size_bytes: export.size_bytes,
        kind: export.kind,
        granule_bytes: export.granule_bytes,
        dedicated: export.dedicated,
        device: export.device,
        driver: export.driver,
    };
    talk.send_with(&hello, &export.fd)?;
    drop(export);
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

/// The second process.
pub(crate) fn here(peer: &PeerOf) -> crate::error::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| crate::error::Error::io("the inherited socket", error))?;
    match answer(&peer.device, UnixStream::from(socket)) {
        Ok(()) => Ok(()),
        Err(Problem::Failed(why) | Problem::Skipped(why)) => Err(crate::error::Error::Failed(why)),
    }
}

fn answer(device: &str, socket: UnixStream) -> Result<(), Problem> {
    let mut talk = Talk::new(socket)?;
    let (hello, fd): (Hello, OwnedFd) = talk.receive_with()?;
    let device = onebuf::Registry::system().open(device)?;
    let mut side = match import(&device, hello, fd).and_then(|buffer| Side::new(&device, buffer)) {
        Ok(side) => side,
        Err(problem) => {
            let _: Turn = talk.receive()?;
            return talk.send(&Answer::Err(problem.into()));
        }
    };
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

#[allow(unsafe_code)]
fn import(device: &Device, hello: Hello, fd: OwnedFd) -> Result<Buffer<u32>, Problem> {
    let Hello { handle, allocation_bytes, size_bytes, kind, device: uuid, driver, .. } = hello;
    let export = Export {
        fd,
        handle,
        allocation_bytes,
        size_bytes,
        kind,
        granule_bytes: hello.granule_bytes,
        dedicated: hello.dedicated,
        device: uuid,
        driver,
    };
    // SAFETY: the two processes take turns. Each touches the memory only between a message that it received and the one
    // that it sends next, and has waited for its device before it sends.
    match unsafe { device.import_buffer(export, WORDS) } {
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

/// Messages of one line each over a socket, the first one with a descriptor.
struct Talk {
    socket: UnixStream,
    lines: BufReader<UnixStream>,
}

/// No message is longer.
const LINE_BYTES: usize = 4096;

impl Talk {
    fn new(socket: UnixStream) -> Result<Talk, Problem> {
        socket.set_read_timeout(Some(PATIENCE)).map_err(os("a time limit on a socket"))?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(os("a time limit on a socket"))?;
        let lines = BufReader::new(socket.try_clone().map_err(os("a second handle of a socket"))?);
        Ok(Talk { socket, lines })
    }

    fn send(&mut self, message: &impl Serialize) -> Result<(), Problem> {
        self.socket.write_all(&line(message)?).map_err(gone)
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        let mut text = String::new();
        (&mut self.lines).take(LINE_BYTES as u64).read_line(&mut text).map_err(gone)?;
        if text.is_empty() {
            return Err(Problem::Failed("the other process ended in the middle of the test".into()));
        }
        parse(text.as_bytes())
    }

    fn send_with(&mut self, message: &impl Serialize, fd: &OwnedFd) -> Result<(), Problem> {
        let text = line(message)?;
        let fds = [fd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Problem::Failed("no room for a descriptor in a message".into()));
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL);
        match sent.map_err(|errno| gone(errno.into()))? {
            all if all == text.len() => Ok(()),
            part => Err(Problem::Failed(format!("{part} of {} bytes were sent", text.len()))),
        }
    }

    fn receive_with<T: DeserializeOwned>(&mut self) -> Result<(T, OwnedFd), Problem> {
        // The other side sends nothing more until it is answered, so one message is all there is.
        let mut text = [0; LINE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .map_err(|errno| gone(errno.into()))?;
        let mut fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.next().and_then(|mut fds| fds.next());
        let fd = fd.ok_or_else(|| Problem::Failed("no descriptor came over the socket".into()))?;
        Ok((parse(&text[..got.bytes])?, fd))
    }
}

fn line(message: &impl Serialize) -> Result<Vec<u8>, Problem> {
    let mut text = serde_json::to_vec(message).map_err(|error| Problem::Failed(error.to_string()))?;
    text.push(b'\n');
    Ok(text)
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(text).map_err(|error| {
        Problem::Failed(format!("a message of the other process cannot be understood: {error}"))
    })
}

fn gone(error: std::io::Error) -> Problem {
    Problem::Failed(format!("no answer of the other process: {error}"))
}

fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> Problem {
    move |error| Problem::Skipped(format!("{what}: {error}"))
}

fn skip(error: crate::error::Error) -> Problem {
    Problem::Skipped(error.to_string())
}
