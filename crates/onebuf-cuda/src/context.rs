//! A device's primary context: the one that CUDA's runtime, torch, CuPy and JAX use too, so that their memory and streams
//! are ours and ours theirs.

use std::marker::PhantomData;

use cudarc::driver::sys::{self, CUcontext, CUresult};
use onebuf_core::{Error, Result};

use crate::{driver, fork};

/// A hold on the primary context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) raw: CUcontext,
    pub(crate) device: sys::CUdevice,
    /// The device that CUDA's runtime uses when nobody chose one.
    is_default: bool,
}

// SAFETY: a context is a handle that may be made current on any thread, and the driver's calls are thread-safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Holds the primary context of a device, which is made where there is none.
    pub(crate) fn retain(device: sys::CUdevice, ordinal: u32) -> Result<Context> {
        fork::check()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is started, and the pointer is to a live handle.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) };
        if code == CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE {
            return Err(Error::NoDevice(format!(
                "cuda:{ordinal} is in exclusive use by another process, or its compute mode is prohibited; see `nvidia-smi -q -d COMPUTE`"
            )));
        }
        driver::check("cuDevicePrimaryCtxRetain", code)?;
        let context = Context { raw, device, is_default: ordinal == 0 };
        context.probe(ordinal)?;
        Ok(context)
    }

    /// An error where the context died earlier in this process.
    fn probe(&self, ordinal: u32) -> Result<()> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0usize, 0usize);
        // A call that waits for nothing: others may have work on this context.
        // SAFETY: the context is current, and both pointers are to live integers.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        match driver::error("cuMemGetInfo", code) {
            _ if code == CUresult::CUDA_SUCCESS => Ok(()),
            Error::DeviceLost(why) => Err(Error::DeviceLost(format!(
                "cuda:{ordinal} failed earlier in this process ({why}), and CUDA keeps its context in that state; drop everything of the device and open it again, or restart the process"
            ))),
            other => Err(other),
        }
    }

    /// Makes the context current on this thread until the returned value is dropped.
    ///
    /// A thread's current context also decides which device CUDA's runtime uses there, so another one comes back when we
    /// are done. Where there was none, that of the runtime's default device stays: the runtime would set it anyway.
    pub(crate) fn enter(&self) -> Result<Entered> {
        fork::check()?;
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is started, and the pointer is to a live handle.
        driver::check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == self.raw {
            return Ok(Entered::new(false));
        }
        if current.is_null() && self.is_default {
            // SAFETY: the context is held by `self`.
            driver::check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })?;
            return Ok(Entered::new(false));
        }
        // SAFETY: as above.
        driver::check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.raw) })?;
        Ok(Entered::new(true))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if fork::is_forked() {
            return;
        }
        // SAFETY: retained once, released once. The thread's current context may be this one; the driver allows that.
        let code = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        if code != CUresult::CUDA_SUCCESS {
            tracing::debug!(code = driver::name(code), "a primary context could not be released");
        }
    }
}

/// The context is current on this thread.
#[must_use = "the context is current until this is dropped"]
pub(crate) struct Entered {
    pop: bool,
    /// What is current is a matter of one thread.
    stays: PhantomData<*const ()>,
}

impl Entered {
    fn new(pop: bool) -> Entered {
        Entered { pop, stays: PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pop {
            let mut popped = std::ptr::null_mut();
            // SAFETY: this thread pushed it, and everything that was entered since has left in between.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
