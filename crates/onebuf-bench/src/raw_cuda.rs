//! CUDA by hand, as a careful engineer writes it for one program: the driver API, one stream, memory of the kinds that
//! onebuf takes, and the same CUDA C++ that onebuf makes of the WGSL. Nothing is checked, counted or kept alive for
//! anybody: handles live until [`RawCuda`] goes.

use std::cell::RefCell;
use std::ffi::{CString, c_int, c_void};
use std::ptr::NonNull;

use cudarc::driver::sys::{
    self, CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUresult, CUstream,
};
use onebuf_wgsl::nvrtc::Nvrtc;
use onebuf_wgsl::{CudaOptions, CudaParam, Module};

use crate::error::{Error, Result};

/// The other program, on the device's primary context, which onebuf uses too: two contexts would be compared along with
/// what is measured.
pub(crate) struct RawCuda {
    context: CUcontext,
    device: sys::CUdevice,
    stream: CUstream,
    architecture: String,
    garbage: RefCell<Garbage>,
}

/// What is freed at the end.
#[derive(Default)]
struct Garbage {
    pinned: Vec<*mut c_void>,
    device: Vec<CUdeviceptr>,
    modules: Vec<CUmodule>,
    graphs: Vec<(CUgraph, CUgraphExec)>,
}

/// Memory at an address that kernels use, and the CPU too where it sees it.
#[derive(Clone, Copy)]
pub(crate) struct CudaBuffer {
    pub(crate) pointer: CUdeviceptr,
    host: Option<NonNull<u8>>,
    pub(crate) bytes: u64,
}

/// A kernel with one buffer, and maybe one 32-bit immediate.
pub(crate) struct CudaKernel {
    function: CUfunction,
    params: Vec<CudaParam>,
    threads: u32,
}

/// The values that a launch's parameters point to.
struct Values {
    pointer: CUdeviceptr,
    length: u32,
    immediate: u32,
}

/// `Ok` for success.
fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Raw(format!("{call} answered {code:?}")))
}

impl RawCuda {
    /// `None` where the device is not of the CUDA backend.
    pub(crate) fn beside(device: &onebuf::Device) -> Result<Option<RawCuda>> {
        let id = &device.info().id;
        if id.backend != "cuda" {
            return Ok(None);
        }
        let (mut device, mut context, mut stream) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut capability = [0; 2];
        // SAFETY: onebuf has loaded and started the driver; each pointer is to a live value of the type that is written;
        // the context is current on this thread from here on, which the benchmarks do not leave.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, id.ordinal as c_int))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            check("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags))?;
            use sys::CUdevice_attribute::*;
            let asked =
                [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
            for (value, attribute) in capability.iter_mut().zip(asked) {
                check("cuDeviceGetAttribute", sys::cuDeviceGetAttribute(value, attribute, device))?;
            }
        }
        let architecture = format!("sm_{}{}", capability[0], capability[1]);
        Ok(Some(RawCuda { context, device, stream, architecture, garbage: RefCell::default() }))
    }

    /// The driver's number of the device.
    pub(crate) fn device(&self) -> sys::CUdevice {
        self.device
    }

    /// Page-locked memory of the CPU, which the device reads over the bus.
    pub(crate) fn pinned(&self, bytes: u64) -> Result<CudaBuffer> {
        let (mut host, mut pointer) = (std::ptr::null_mut(), 0);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current, and the pointers are to live values; freed with `self`.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut host, bytes as usize, flags))?;
            self.garbage.borrow_mut().pinned.push(host);
            let code = sys::cuMemHostGetDevicePointer_v2(&mut pointer, host, 0);
            check("cuMemHostGetDevicePointer", code)?;
            host.cast::<u8>().write_bytes(0, bytes as usize);
        }
        Ok(CudaBuffer { pointer, host: NonNull::new(host.cast()), bytes })
    }

    /// The device's own memory.
    pub(crate) fn own(&self, bytes: u64) -> Result<CudaBuffer> {
        let mut pointer = 0;
        // SAFETY: the context is current, and the pointer is to a live integer; freed with `self`.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut pointer, bytes as usize) })?;
        self.garbage.borrow_mut().device.push(pointer);
        Ok(CudaBuffer { pointer, host: None, bytes })
    }

    /// Managed memory, whose pages move when somebody touches them.
    pub(crate) fn managed(&self, bytes: u64) -> Result<CudaBuffer> {
        let mut pointer = 0;
        let attach = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: as above.
        check("cuMemAllocManaged", unsafe { sys::cuMemAllocManaged(&mut pointer, bytes as usize, attach) })?;
        self.garbage.borrow_mut().device.push(pointer);
        let host = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(pointer as usize));
        Ok(CudaBuffer { pointer, host, bytes })
    }

    /// What a program with the driver's pool does for a buffer's life.
    pub(crate) fn allocate_and_free(&self, bytes: u64) -> Result<()> {
        let mut pointer = 0;
        // SAFETY: the stream is live, nothing uses the memory between the calls.
        unsafe {
            check("cuMemAllocAsync", sys::cuMemAllocAsync(&mut pointer, bytes as usize, self.stream))?;
            check("cuMemFreeAsync", sys::cuMemFreeAsync(pointer, self.stream))
        }
    }

    /// Lets the driver's pool keep what is freed.
    pub(crate) fn keep_pool(&self) -> Result<()> {
        let (mut pool, mut all) = (std::ptr::null_mut(), u64::MAX);
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pointer is to a live handle, and the attribute is a 64-bit integer.
        unsafe {
            check("cuDeviceGetDefaultMemPool", sys::cuDeviceGetDefaultMemPool(&mut pool, self.device))?;
            let value = (&raw mut all).cast::<c_void>();
            check("cuMemPoolSetAttribute", sys::cuMemPoolSetAttribute(pool, threshold, value))
        }
    }

    /// The kernel of a WGSL source with one entry point, from the CUDA C++ that onebuf makes of it.
    pub(crate) fn kernel(&self, wgsl: &str) -> Result<CudaKernel> {
        let bad = |error: onebuf_wgsl::Error| Error::Raw(error.to_string());
        let kernel = Module::parse(wgsl).and_then(|module| module.specialize(None, &[])).map_err(bad)?;
        let source = kernel.to_cuda(&CudaOptions::default()).map_err(bad)?;
        let compiled = Nvrtc::load().and_then(|nvrtc| nvrtc.compile(&source, &self.architecture, &[]));
        let cubin = compiled.map_err(|error| Error::Raw(error.to_string()))?.cubin;
        let name = CString::new(source.kernel_name).map_err(|error| Error::Raw(error.to_string()))?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the cubin is whole, the name ends in NUL, the pointers are to live handles; unloaded with `self`.
        unsafe {
            check("cuModuleLoadData", sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()))?;
            self.garbage.borrow_mut().modules.push(module);
            check("cuModuleGetFunction", sys::cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
        }
        let threads = kernel.interface().invocations() as u32;
        Ok(CudaKernel { function, params: source.params, threads })
    }

    /// Runs a kernel on a buffer.
    pub(crate) fn launch(
        &self,
        kernel: &CudaKernel,
        buffer: &CudaBuffer,
        immediate: u32,
        groups: u32,
    ) -> Result<()> {
        let mut values = Values { pointer: buffer.pointer, length: (buffer.bytes / 4) as u32, immediate };
        let mut pointers = kernel.pointers(&mut values);
        // SAFETY: function and stream are live; each pointer is to a value of the parameter's type, which the driver copies.
        let code = unsafe {
            sys::cuLaunchKernel(
                kernel.function,
                groups,
                1,
                1,
                kernel.threads,
                1,
                1,
                0,
                self.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", code)
    }

    /// A graph of launches of one workgroup; each with a buffer, an immediate and the node that it follows.
    pub(crate) fn graph(
        &self,
        kernel: &CudaKernel,
        nodes: &[(CudaBuffer, u32, Option<usize>)],
    ) -> Result<CUgraphExec> {
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
        let mut made: Vec<CUgraphNode> = Vec::with_capacity(nodes.len());
        for (buffer, immediate, after) in nodes {
            let mut values =
                Values { pointer: buffer.pointer, length: (buffer.bytes / 4) as u32, immediate: *immediate };
            let mut pointers = kernel.pointers(&mut values);
            let params = sys::CUDA_KERNEL_NODE_PARAMS {
                func: kernel.function,
                gridDimX: 1,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: kernel.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: 0,
                kernelParams: pointers.as_mut_ptr(),
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: self.context,
            };
            let after: Vec<CUgraphNode> = after.iter().map(|&place| made[place]).collect();
            let mut node = std::ptr::null_mut();
            // SAFETY: as for `launch`; the nodes before are of the same graph. The driver copies the values.
            let code = unsafe {
                sys::cuGraphAddKernelNode_v2(&mut node, graph, after.as_ptr(), after.len(), &params)
            };
            check("cuGraphAddKernelNode", code)?;
            made.push(node);
        }
        // SAFETY: the graph is whole, and the pointer is to a live handle; both are destroyed with `self`.
        unsafe {
            check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
            self.garbage.borrow_mut().graphs.push((graph, exec));
            check("cuGraphUpload", sys::cuGraphUpload(exec, self.stream))?;
        }
        self.wait()?;
        Ok(exec)
    }

    /// Runs a graph.
    pub(crate) fn replay(&self, graph: CUgraphExec) -> Result<()> {
        // SAFETY: graph and stream are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph, self.stream) })
    }

    /// Copies all bytes of one buffer to another of the same size.
    pub(crate) fn copy(&self, from: &CudaBuffer, to: &CudaBuffer) -> Result<()> {
        // SAFETY: both are live, of one size, and the device reaches both by these addresses.
        let code = unsafe { sys::cuMemcpyAsync(to.pointer, from.pointer, from.bytes as usize, self.stream) };
        check("cuMemcpyAsync", code)
    }

    /// Waits for all that was given to the stream.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl CudaKernel {
    fn pointers(&self, values: &mut Values) -> [*mut c_void; 4] {
        let mut pointers = [std::ptr::null_mut(); 4];
        for (slot, param) in pointers.iter_mut().zip(&self.params) {
            *slot = match param {
                CudaParam::Buffer { .. } => (&raw mut values.pointer).cast(),
                CudaParam::Length { .. } => (&raw mut values.length).cast(),
                _ => (&raw mut values.immediate).cast(),
            };
        }
        pointers
    }
}

impl CudaBuffer {
    /// The words, where the CPU sees them.
    pub(crate) fn words(&mut self) -> &mut [u32] {
        let Some(host) = self.host else { return &mut [] };
        // SAFETY: the memory lives as long as `RawCuda`, which outlives what is made of it, and no work is pending while the
        // program looks.
        unsafe { std::slice::from_raw_parts_mut(host.cast::<u32>().as_ptr(), self.bytes as usize / 4) }
    }

    /// The first word, as the device left it.
    pub(crate) fn word(&self) -> u32 {
        let Some(host) = self.host else { return 0 };
        // SAFETY: as above; the read is volatile, since the device writes it between reads.
        unsafe { host.cast::<u32>().as_ptr().read_volatile() }
    }

    /// Writes the first word.
    pub(crate) fn set_word(&self, word: u32) {
        if let Some(host) = self.host {
            // SAFETY: as above.
            unsafe { host.cast::<u32>().as_ptr().write_volatile(word) };
        }
    }
}

impl Drop for RawCuda {
    fn drop(&mut self) {
        let _ = self.wait();
        let garbage = self.garbage.get_mut();
        // SAFETY: the work is done, everything below was made from this context, and is freed once.
        unsafe {
            for &(graph, exec) in &garbage.graphs {
                let _ = sys::cuGraphExecDestroy(exec);
                let _ = sys::cuGraphDestroy(graph);
            }
            for &module in &garbage.modules {
                let _ = sys::cuModuleUnload(module);
            }
            for &pointer in &garbage.device {
                let _ = sys::cuMemFree_v2(pointer);
            }
            for &host in &garbage.pinned {
                let _ = sys::cuMemFreeHost(host);
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuCtxSetCurrent(std::ptr::null_mut());
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
