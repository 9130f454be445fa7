//! onebuf's side of `handles.py`: buffers go out as what CUDA programs open, and what those export comes in.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use onebuf::{Buffer, CudaHandle, Error, HandleKind, HostAccess, Share, args};

use crate::{INCREMENT, Peer, told};

/// Memory that leaves, or came from, a process. Descriptors are the structure's reader's to close; -1 is none.
#[repr(C)]
pub struct Given {
    /// A legacy handle, or the memory in a pool.
    token: [u8; 64],
    /// The memory, or the lease of a token's.
    fd: i32,
    /// The pool.
    pool: i32,
    /// Size of the allocation.
    bytes: u64,
}

const WAYS: [HandleKind; 3] = [HandleKind::CudaIpc, HandleKind::OpaqueFd, HandleKind::CudaPool];

/// A new buffer of `len` words, each three times its index, by way 0 legacy handle, 1 descriptor, 2 pool.
///
/// # Safety
/// `peer` is of `peer_open`, and `given` is a structure to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_give(peer: *mut Peer, way: u32, len: usize, given: *mut Given) -> bool {
    // SAFETY: the caller's promise.
    let (peer, given) = unsafe { (&mut *peer, &mut *given) };
    let way = WAYS[way as usize % 3];
    let mut made = || -> Result<(), Error> {
        let builder = peer.device.buffer::<u32>(len).host(HostAccess::ReadWrite).share(Share::Process);
        let buffer = builder.ways([way]).init_with(|i| i as u32 * 3)?;
        buffer.settle(Duration::from_secs(10))?;
        let export = buffer.export(way)?;
        given.token = export.token.map_or([0; 64], |token| token.0);
        given.fd = export.fd.into_raw_fd();
        given.pool = export.pool.map_or(-1, IntoRawFd::into_raw_fd);
        given.bytes = export.allocation_bytes;
        peer.buffer = Some(buffer);
        Ok(())
    };
    told(made()).is_some()
}

/// Whether each word of the buffer that was given last is `factor` times its index, and `more`.
///
/// # Safety
/// `peer` is of `peer_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_holds(peer: *mut Peer, factor: u32, more: u32) -> bool {
    // SAFETY: the caller's promise.
    let peer = unsafe { &*peer };
    peer.buffer.as_ref().and_then(|buffer| told(buffer.read_to_vec())).is_some_and(|words| {
        words.iter().enumerate().all(|(i, &word)| word == (i as u32).wrapping_mul(factor).wrapping_add(more))
    })
}

/// Opens what another program exported, of which the `len` words from `offset` bytes on are `factor` times their index,
/// and adds 1 to each of them by a kernel. The descriptors of `given` are spent.
///
/// # Safety
/// `peer` is of `peer_open`. `given` tells the truth, and nobody else uses the memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_take(
    peer: *mut Peer,
    way: u32,
    given: *const Given,
    offset: u64,
    len: usize,
    factor: u32,
) -> bool {
    // SAFETY: the caller's promise.
    let (peer, given) = unsafe { (&mut *peer, &*given) };
    // SAFETY: the caller gives the descriptor away.
    let fd = |raw: i32| unsafe { OwnedFd::from_raw_fd(raw) };
    let handle = match way {
        0 => CudaHandle::Ipc(given.token),
        1 => CudaHandle::Fd(fd(given.fd)),
        _ => CudaHandle::Pool { fd: fd(given.pool), pointer: given.token },
    };
    let added = || -> Result<(), Error> {
        let all = (given.bytes / 4) as usize;
        // SAFETY: the caller's promise.
        let whole: Buffer<u32> = unsafe { peer.device.import_cuda(handle, given.bytes, all)? };
        let start = (offset / 4) as usize;
        let part = whole.slice(start..start + len)?;
        let mut words = vec![0; len];
        part.copy_to_slice(&mut words)?;
        if let Some(i) = (0..len).find(|&i| words[i] != (i as u32).wrapping_mul(factor)) {
            return Err(Error::InvalidArgument(format!("word {i} is {}", words[i])));
        }
        let kernel = peer.device.kernel(INCREMENT)?.build()?;
        let groups = kernel.groups_for([len as u32, 1, 1]);
        let ticket = peer.device.default_stream()?.launch(&kernel, groups, args![part])?;
        peer.device.wait(ticket)
    };
    told(added()).is_some()
}
