//! NVTX: names for what a profiler sees between calls of the driver.
//!
//! A profiler sets `NVTX_INJECTION64_PATH` to a library of its own. It is loaded at the first range, called once, and asks for
//! a table of places, in which it puts its functions (the loading sequence of NVTX 3, `nvtxInit.h`). Without a profiler
//! a range costs one load of a word, and nothing is linked.

use std::ffi::{CString, OsString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// The variable that names a profiler's library.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// Modules of the interface, 1 to 6, with the number of functions of each; the places from 0 on.
const FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// More than any module has.
const PLACES: usize = 17;
const CORE: usize = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

type Place = AtomicPtr<c_void>;
type RangePush = unsafe extern "C" fn(*const c_char) -> c_int;
type RangePop = unsafe extern "C" fn() -> c_int;
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// Where a profiler puts its functions.
static FOUND: [[Place; PLACES]; 7] = [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; PLACES] }; 7];

/// The addresses of the places, as the interface wants them: none for function 0, a null at the end.
#[repr(transparent)]
struct Tables([[*const Place; PLACES]; 7]);

// SAFETY: the addresses are of a static, and are not changed.
unsafe impl Sync for Tables {}
// SAFETY: as above.
unsafe impl Send for Tables {}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = [[std::ptr::null(); PLACES]; 7];
        for (module, count) in FUNCTIONS.into_iter().enumerate() {
            for function in 1..count {
                tables[module][function] = &raw const FOUND[module][function];
            }
        }
        Tables(tables)
    })
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    get_module_function_table: unsafe extern "C" fn(c_int, *mut *const *const Place, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks =
    Callbacks { size: size_of::<Callbacks>(), get_module_function_table: module_table };
static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: 3,
    reserved: 0,
    set_injection_version: ignore_version,
};

extern "C" fn ignore_version(_: u32) {}

/// Gives the profiler what it asks for by number: 1 is the callbacks, 3 the version.
unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

unsafe extern "C" fn module_table(
    module: c_int,
    table: *mut *const *const Place,
    size: *mut c_uint,
) -> c_int {
    let known = usize::try_from(module).ok().filter(|&module| module >= 1 && module < FUNCTIONS.len());
    let Some(module) = known else { return 0 };
    // SAFETY: the profiler gives null or pointers to live variables of its own.
    unsafe {
        if !table.is_null() {
            table.write(tables().0[module].as_ptr());
        }
        if !size.is_null() {
            size.write(FUNCTIONS[module] as c_uint);
        }
    }
    1
}

/// The functions of the profiler that listens.
struct Listener {
    push: RangePush,
    pop: RangePop,
    /// Never unloaded: its functions may be called until the process ends.
    _library: Option<Library>,
}

fn listener() -> Option<&'static Listener> {
    static LISTENER: OnceLock<Option<Listener>> = OnceLock::new();
    LISTENER
        .get_or_init(|| std::env::var_os(INJECTION).filter(|path| !path.is_empty()).and_then(load))
        .as_ref()
}

fn load(path: OsString) -> Option<Listener> {
    // SAFETY: whoever sets the variable wants this library's code to run in this process.
    let library = unsafe { Library::new(&path) };
    let library = library
        .inspect_err(|error| tracing::warn!(%error, ?path, "{INJECTION} names no library that can be loaded"))
        .ok()?;
    // SAFETY: the function has this signature by the interface.
    let initialize = *unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }
        .inspect_err(|error| tracing::warn!(%error, ?path, "{INJECTION} names no library for NVTX"))
        .ok()?;
    attach(initialize, Some(library))
}

/// Has the profiler fill in its functions. `None` where it does not want to, or does not listen to ranges.
fn attach(initialize: Initialize, library: Option<Library>) -> Option<Listener> {
    // SAFETY: the function has this signature, and may be called once, on any thread.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    let found = |function: usize| FOUND[CORE][function].load(Ordering::Acquire);
    let (push, pop) = (found(RANGE_PUSH), found(RANGE_POP));
    if push.is_null() || pop.is_null() {
        return None;
    }
    // SAFETY: the profiler put a function of the type of its place there, and the pointers are not null.
    let (push, pop) = unsafe {
        (
            std::mem::transmute::<*mut c_void, RangePush>(push),
            std::mem::transmute::<*mut c_void, RangePop>(pop),
        )
    };
    Some(Listener { push, pop, _library: library })
}

/// A range of this thread's time, until it is dropped.
#[must_use = "the range ends when this is dropped"]
pub(crate) struct Range {
    listener: &'static Listener,
    /// Ranges nest on one thread.
    _here: PhantomData<*const ()>,
}

/// Begins a range where a profiler listens. The name is made only then.
pub(crate) fn range(name: impl FnOnce() -> String) -> Option<Range> {
    listener().map(|listener| begin(listener, name()))
}

fn begin(listener: &'static Listener, name: String) -> Range {
    let name = CString::new(name.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the profiler's function takes a string of C, and copies it.
    unsafe { (listener.push)(name.as_ptr()) };
    Range { listener, _here: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range of `begin` is the innermost of this thread, since ranges are dropped in reverse.
        unsafe { (self.listener.pop)() };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use parking_lot::Mutex;

    use super::*;

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    unsafe extern "C" fn push(name: *const c_char) -> c_int {
        // SAFETY: the name is a string of C.
        SEEN.lock().push(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        SEEN.lock().push("end".into());
        0
    }

    /// A profiler, as the interface has it.
    unsafe extern "C" fn initialize(export_table: GetExportTable) -> c_int {
        // SAFETY: each table is what the interface says it is.
        unsafe {
            assert!(export_table(2).is_null() && export_table(99).is_null());
            let version = &*export_table(3).cast::<VersionInfo>();
            assert_eq!((version.size, version.version), (24, 3));
            (version.set_injection_version)(3);
            let callbacks = &*export_table(1).cast::<Callbacks>();
            assert_eq!(callbacks.size, 16);
            let (mut table, mut size) = (std::ptr::null(), 0);
            for wrong in [-1, 0, 7] {
                assert_eq!((callbacks.get_module_function_table)(wrong, &mut table, &mut size), 0);
            }
            for (module, count) in FUNCTIONS.into_iter().enumerate().skip(1) {
                assert_eq!((callbacks.get_module_function_table)(module as c_int, &mut table, &mut size), 1);
                assert_eq!(size as usize, count);
                assert!(
                    (*table).is_null() && (*table.add(count)).is_null() && !(*table.add(count - 1)).is_null()
                );
            }
            assert_eq!((callbacks.get_module_function_table)(1, &mut table, std::ptr::null_mut()), 1);
            (**table.add(RANGE_PUSH)).store(push as *mut c_void, Ordering::Release);
            (**table.add(RANGE_POP)).store(pop as *mut c_void, Ordering::Release);
        }
        1
    }

    unsafe extern "C" fn refuse(_: GetExportTable) -> c_int {
        0
    }

    #[test]
    fn a_profiler_sees_ranges_that_nest() {
        assert!(attach(refuse, None).is_none());
        let listener: &'static Listener = Box::leak(Box::new(attach(initialize, None).unwrap()));
        {
            let _outer = begin(listener, "launch `saxpy`".into());
            let _inner = begin(listener, "com\0pile".into());
        }
        assert_eq!(*SEEN.lock(), ["launch `saxpy`", "com pile", "end", "end"]);
    }

    #[test]
    fn nobody_listens_to_a_library_that_is_none() {
        assert!(load("/proc/self/cmdline".into()).is_none());
        assert!(load("libm.so.6".into()).is_none());
        assert!(
            range(|| unreachable!("no profiler runs these tests")).is_none()
                || std::env::var_os(INJECTION).is_some()
        );
    }
}
