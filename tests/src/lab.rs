//! The devices under test, and what every case is held to: no message of the validation layer, no buffer left, no
//! thread left.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use onebuf::core::backend::MemoryStats;
use onebuf::{Adapter, Backend, Device, Error, Registry};
use onebuf_vulkan::{Vulkan, VulkanOptions};
use parking_lot::Mutex;

use crate::{Subject, resources};

/// How long what ends by itself (a stream's thread, memory behind queued work) may take to do so.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The name of the threads that hand gathered work over.
const STREAM_THREAD: &str = "onebuf-stream";

/// A backend under test.
pub struct Tested {
    /// Its name in device ids.
    pub name: &'static str,
    /// The backend, or why it cannot start.
    pub backend: Result<Arc<dyn Backend>, Error>,
    /// Takes what its driver's checks have complained of.
    complaints: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

fn backends() -> Vec<Tested> {
    vec![vulkan()]
}

fn vulkan() -> Tested {
    let name = "vulkan";
    match Vulkan::new(VulkanOptions::from_env()) {
        Ok(vulkan) => {
            let vulkan = Arc::new(vulkan);
            let told = vulkan.clone();
            Tested { name, backend: Ok(vulkan), complaints: Box::new(move || told.validation_messages()) }
        }
        Err(error) => Tested { name, backend: Err(error), complaints: Box::new(Vec::new) },
    }
}

/// The backends under test, opened once a process.
pub fn tested() -> &'static [Tested] {
    static TESTED: OnceLock<Vec<Tested>> = OnceLock::new();
    TESTED.get_or_init(|| {
        keep_caches_apart();
        let tested = backends();
        introduce(&tested);
        tested
    })
}

/// Compiled pipelines of the suite go to a place of their own, unless the environment names one.
fn keep_caches_apart() {
    if std::env::var_os("ONEBUF_CACHE_DIR").is_none() {
        set_cache_directory(&std::env::temp_dir().join("onebuf-tests-cache"));
    }
}

/// Keeps no compiled pipelines in this process, so that thousands of generated kernels leave no files. To be called
/// before the first case.
pub fn without_cache() {
    set_cache_directory("off".as_ref());
}

fn set_cache_directory(directory: &std::path::Path) {
    // SAFETY: tests of a program run one at a time behind `SERIAL`, and whoever reads variables reads them through the
    // standard library, which locks. C code of a driver that reads others concurrently is not running yet.
    unsafe { std::env::set_var("ONEBUF_CACHE_DIR", directory) };
}

/// A line that shows whether or not the harness captures output.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints what the suite runs on, once.
fn introduce(tested: &[Tested]) {
    let validation = VulkanOptions::from_env().validation;
    for one in tested {
        match adapters(one) {
            Ok(adapters) => {
                for Adapter { info, rejected } in adapters {
                    let verdict =
                        rejected.map_or_else(|| "tested".to_owned(), |why| format!("rejected: {why}"));
                    let layer = if validation { ", validation on" } else { "" };
                    say(&format!(
                        "device {}: {} ({}, {}){layer}: {verdict}",
                        info.id, info.name, info.kind, info.driver
                    ));
                }
            }
            Err(error) => say(&format!("no devices of {}: {error}", one.name)),
        }
    }
}

fn adapters(one: &Tested) -> Result<Vec<Adapter>, Error> {
    one.backend.clone().and_then(|backend| backend.adapters())
}

/// True where `ONEBUF_REQUIRE` lists the backend.
fn required(name: &str) -> bool {
    std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|one| one.trim() == name))
}

/// A registry of the backends under test.
pub fn registry() -> Registry {
    Registry::with(tested().iter().filter_map(|one| one.backend.clone().ok()).collect())
}

static SERIAL: Mutex<()> = Mutex::new(());

/// Runs a case on every real device, opened anew.
pub fn on_real_devices(case: impl Fn(&Subject)) {
    run(&[Variant::Real], &case);
}

/// Runs a case on every real device, and on the simulated ones around it.
pub fn on_every_device(case: impl Fn(&Subject)) {
    run(&Variant::ALL, &case);
}

/// Runs a case on the simulated devices around every real device.
pub fn on_simulated_devices(case: impl Fn(&Subject)) {
    run(&Variant::ALL[1..], &case);
}

/// Runs a case on these variants of every real device.
pub fn on(variants: &[Variant], case: impl Fn(&Subject)) {
    run(variants, &case);
}

/// Runs a case that opens what it needs itself, alone, and under the same rules.
pub fn alone(case: impl Fn()) {
    let _serial = SERIAL.lock();
    tested();
    let outcome = catch_unwind(AssertUnwindSafe(case));
    let problems = after_case();
    finish(outcome.err().into_iter().collect(), problems);
}

fn run(variants: &[Variant], case: &dyn Fn(&Subject)) {
    let _serial = SERIAL.lock();
    let mut panics = Vec::new();
    let mut problems = Vec::new();
    for one in tested() {
        let mut ran = 0;
        let found = adapters(one);
        if let (Err(error), true) = (&found, required(one.name)) {
            problems.push(format!("{} is required: {error}", one.name));
        }
        for adapter in found.unwrap_or_default().iter().filter(|adapter| adapter.rejected.is_none()) {
            for variant in variants {
                run_on(one, adapter, *variant, case, &mut panics, &mut problems);
                ran += 1;
            }
        }
        if ran == 0 && !variants.is_empty() && required(one.name) {
            problems.push(format!("{} is required, and has no usable device", one.name));
        }
    }
    finish(panics, problems);
}

fn run_on(
    one: &Tested,
    adapter: &Adapter,
    variant: Variant,
    case: &dyn Fn(&Subject),
    panics: &mut Vec<Box<dyn Any + Send>>,
    problems: &mut Vec<String>,
) {
    let name = variant.describe(&adapter.info.id.to_string(), &adapter.info.name);
    let mut fail = |problem: String| problems.push(format!("on {name}: {problem}"));
    let opened = one.backend.clone().and_then(|backend| variant.open(&backend, adapter));
    let subject = match opened {
        Ok(device) => Subject::new(device, name.clone()),
        Err(error) => return fail(format!("it does not open: {error}")),
    };
    let device = subject.device.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| case(&subject)));
    drop(subject);
    match outcome {
        Ok(()) => {
            for problem in left_over(&device) {
                fail(problem);
            }
        }
        Err(panic) => {
            say(&format!("failed on {name}"));
            panics.push(panic);
        }
    }
    drop(device);
    for problem in after_case() {
        fail(problem);
    }
}

/// What a case left on its device.
fn left_over(device: &Device) -> Vec<String> {
    let mut problems = Vec::new();
    match device.wait_idle() {
        Ok(()) | Err(Error::DeviceLost(_)) => {}
        Err(error) => problems.push(format!("the device does not come to rest: {error}")),
    }
    device.trim();
    let memory = device.memory();
    if memory.buffers != 0 || memory.live_bytes != 0 {
        problems.push(format!("{} buffer(s) of {} bytes are left", memory.buffers, memory.live_bytes));
    }
    if !eventually(|| backend_memory(device).buffers == 0) {
        let stats = backend_memory(device);
        problems.push(format!("the backend still holds {} buffer(s)", stats.buffers));
    }
    problems
}

/// What the backend itself holds for a device.
pub fn backend_memory(device: &Device) -> MemoryStats {
    // SAFETY: the backend's device is asked, and nothing is done with it.
    unsafe { device.raw() }.memory_stats()
}

/// What a case left in the process, and what the drivers' checks said of it.
fn after_case() -> Vec<String> {
    let mut problems = Vec::new();
    if !eventually(|| resources::threads_named(STREAM_THREAD) == 0) {
        problems.push(format!("{} stream thread(s) are left", resources::threads_named(STREAM_THREAD)));
    }
    for one in tested() {
        problems
            .extend((one.complaints)().into_iter().map(|message| format!("{} says: {message}", one.name)));
    }
    problems
}

/// The messages of the drivers' checks since the last look, for cases that look more than once.
pub fn complaints() -> Vec<String> {
    tested().iter().flat_map(|one| (one.complaints)()).collect()
}

fn finish(mut panics: Vec<Box<dyn Any + Send>>, problems: Vec<String>) {
    if problems.is_empty() {
        // The harness shows where it happened, so the panic itself goes on.
        if let Some(panic) = panics.pop() {
            resume_unwind(panic);
        }
        return;
    }
    panic!("{}", problems.join("\n"));
}

/// Waits, up to [`PATIENCE`], until something is so.
pub fn eventually(mut so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !so() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// What stands between a case and the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Real,
}

impl Variant {
    /// Every variant.
    pub const ALL: [Variant; 1] = [Variant::Real];

    fn describe(self, id: &str, name: &str) -> String {
        match self {
            Variant::Real => format!("{id} ({name})"),
        }
    }

    fn open(self, backend: &Arc<dyn Backend>, adapter: &Adapter) -> Result<Device, Error> {
        let why = "the suite runs on every device";
        match self {
            Variant::Real => Ok(Device::from_backend(backend.open(adapter.info.id.ordinal)?, why)),
        }
    }
}
