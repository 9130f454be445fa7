//! onebuf's side of `dlpack.py` and `handles.py`, as functions of C: buffers of each kind go out as DLPack tensors, and tensors of Python's
//! array libraries come in. What a function could not do is text, which [`peer_error`] gives.

pub mod handles;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};

use onebuf::dlpack::{ConsumerStream, Managed, View};
use onebuf::{Buffer, Device, DeviceUse, Error, HostAccess, Semantic, Share, Stream, Ticket, args};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// An open device, and the buffer that was handed out last.
pub struct Peer {
    device: Device,
    buffer: Option<Buffer<u32>>,
    /// Work that [`peer_start`] began.
    under_way: Option<(Stream, Ticket)>,
}

const INCREMENT: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64)
    fn increment(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&data) { data[id.x] += 1u; }
    }";

const SLOW: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    var<immediate> steps: u32;
    @compute @workgroup_size(64)
    fn slow(@builtin(global_invocation_id) id: vec3<u32>) {
        var x = id.x;
        for (var i = 0u; i < steps; i++) { x = x * 1664525u + 1013904223u; }
        if id.x < arrayLength(&data) { data[id.x] = select(3u * id.x, 0u, x == 1u); }
    }";

fn told<T>(result: Result<T, Error>) -> Option<T> {
    result
        .map_err(|error| {
            let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
            ERROR.with(|place| place.replace(text));
        })
        .ok()
}

/// Why the last call of this thread did not work. Valid until the next one that does not.
#[unsafe(no_mangle)]
pub extern "C" fn peer_error() -> *const c_char {
    ERROR.with(|place| place.borrow().as_ptr())
}

/// Opens a device; null where that does not work.
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_open(name: *const c_char) -> *mut Peer {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    told(Device::open(&name)).map_or(std::ptr::null_mut(), |device| {
        Box::into_raw(Box::new(Peer { device, buffer: None, under_way: None }))
    })
}

/// Closes a device.
///
/// # Safety
/// `peer` is of [`peer_open`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_close(peer: *mut Peer) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(peer) });
}

fn buffer(device: &Device, kind: u32, len: usize) -> Result<Buffer<u32>, Error> {
    let builder = device.buffer::<u32>(len);
    let builder = match kind {
        0 => builder.device_use(DeviceUse::Heavy),
        1 => builder.host(HostAccess::ReadWrite).require(Semantic::HostMapped),
        2 => builder.host(HostAccess::ReadWrite).require(Semantic::Unified),
        _ => builder.share(Share::Process),
    };
    builder.init_with(|i| i as u32 * 3)
}

/// A new buffer of `len` words, each three times its index, as a DLPack tensor of two rows: of `kind` 0 device, 1
/// page-locked, 2 managed, 3 exportable memory; for `view` 0 what it is, 1 the device, 2 the CPU. Null where that is
/// refused. The tensor is of the caller, who calls its deleter.
///
/// # Safety
/// `peer` is of [`peer_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_export(
    peer: *mut Peer,
    kind: u32,
    view: u32,
    versioned: bool,
    read_only: bool,
    len: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    let view = [View::Placement, View::Device, View::Host][view as usize % 3];
    let exported = buffer(&peer.device, kind, len).and_then(|buffer| {
        // SAFETY: Python uses the tensor while nothing here uses the buffer, and the other way round.
        let tensor = unsafe { buffer.to_dlpack(view, &[2, len / 2], read_only)? };
        peer.buffer = Some(buffer);
        raw(tensor, versioned)
    });
    told(exported).unwrap_or(std::ptr::null_mut())
}

fn raw(tensor: Managed, versioned: bool) -> Result<*mut c_void, Error> {
    if versioned {
        return Ok(tensor.into_versioned().as_ptr().cast());
    }
    let legacy = tensor.into_legacy().map_err(|error| Error::unsupported("export", error.to_string()))?;
    Ok(legacy.as_ptr().cast())
}

/// Begins work on a new buffer of `len` words, of a kind as for [`peer_export`]: after `steps` steps each word is three times
/// its index, and zero before. Nothing waits for it.
///
/// # Safety
/// `peer` is of [`peer_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_start(peer: *mut Peer, kind: u32, steps: u32, len: usize) -> bool {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    let started = (|| {
        let buffer = buffer(&peer.device, kind, len)?;
        let stream = peer.device.stream()?;
        stream.fill(&buffer, 0)?;
        stream.wait()?;
        let kernel = peer.device.kernel(SLOW)?.build()?;
        let ticket = stream.launch(&kernel, kernel.groups_for([len as u32, 1, 1]), args![&buffer, steps])?;
        stream.flush()?;
        peer.buffer = Some(buffer);
        peer.under_way = Some((stream, ticket));
        Ok(())
    })();
    told(started).is_some()
}

/// Whether the work of [`peer_start`] is done: 1, or 0; -1 for an error.
///
/// # Safety
/// `peer` is of [`peer_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_is_done(peer: *mut Peer) -> i32 {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    let ticket = peer.under_way.as_ref().map(|(_, ticket)| *ticket);
    ticket.and_then(|ticket| told(peer.device.is_done(ticket))).map_or(-1, i32::from)
}

/// The buffer of [`peer_start`] as a tensor, for a consumer that says on which stream it uses it: what `__dlpack__` is
/// given, where `is_said`, and `None` otherwise. Null where that is refused.
///
/// # Safety
/// `peer` is of [`peer_open`]. The stream is a live one, where it is an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_export_on(
    peer: *mut Peer,
    view: u32,
    versioned: bool,
    is_said: bool,
    stream: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    let view = [View::Placement, View::Device, View::Host][view as usize % 3];
    let exported = (|| {
        let stream = ConsumerStream::from_python(is_said.then_some(stream.into()))
            .map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let buffer =
            peer.buffer.as_ref().ok_or_else(|| Error::InvalidArgument("nothing was begun".into()))?;
        // SAFETY: the caller's promise; Python uses the tensor while nothing here uses the buffer.
        raw(unsafe { buffer.to_dlpack_on(view, &[buffer.len()], false, stream)? }, versioned)
    })();
    told(exported).unwrap_or(std::ptr::null_mut())
}

/// The address of the buffer that was handed out last, as the CPU or CUDA has it; 0 where there is none.
///
/// # Safety
/// `peer` is of [`peer_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_address(peer: *mut Peer) -> u64 {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    let buffer = peer.buffer.as_ref();
    // SAFETY: the tensor is looked at and dropped.
    let tensor =
        buffer.and_then(|buffer| unsafe { buffer.to_dlpack(View::Placement, &[buffer.len()], true) }.ok());
    tensor.map_or(0, |tensor| tensor.extent().address)
}

/// Whether each word of the buffer that was handed out last is three times its index, and `more`.
///
/// # Safety
/// `peer` is of [`peer_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_check(peer: *mut Peer, more: u32) -> bool {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    let Some(words) = peer.buffer.as_ref().and_then(|buffer| told(buffer.read_to_vec())) else {
        return false;
    };
    words.iter().enumerate().all(|(i, &word)| word == i as u32 * 3 + more)
}

/// Lets go of the buffer that was handed out last. Returns the number of buffers that live on the device.
///
/// # Safety
/// `peer` is of [`peer_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_live(peer: *mut Peer) -> u64 {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    peer.buffer = None;
    if let Some((stream, _)) = peer.under_way.take() {
        let _ = told(stream.wait());
    }
    peer.device.memory().buffers
}

/// Takes a tensor of 32-bit words from another library, and adds 1 to each word by a kernel.
///
/// # Safety
/// `peer` is of [`peer_open`]; `tensor` is a structure of that form that nobody else took.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_import(peer: *mut Peer, tensor: *mut c_void, versioned: bool) -> bool {
    // SAFETY: the caller's promise.
    let peer = unsafe { &mut *peer };
    // SAFETY: the caller's promise.
    let taken = unsafe {
        match versioned {
            true => Managed::import_versioned(tensor.cast()),
            false => Managed::import_legacy(tensor.cast()),
        }
    };
    let added = taken.map_err(|error| Error::InvalidArgument(error.to_string())).and_then(|tensor| {
        // SAFETY: Python waited for its work, and uses the memory again when this returned.
        let buffer: Buffer<u32> = unsafe { peer.device.import_dlpack(tensor)? };
        let kernel = peer.device.kernel(INCREMENT)?.build()?;
        let groups = kernel.groups_for([buffer.len() as u32, 1, 1]);
        let ticket = peer.device.default_stream()?.launch(&kernel, groups, args![&buffer])?;
        peer.device.wait(ticket)
    });
    told(added).is_some()
}
