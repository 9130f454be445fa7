//! The devices under test, and what every case is held to: no message of the validation layer, no buffer left, no
//! thread left.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use onebuf::core::backend::MemoryStats;
use onebuf::{Adapter, Backend, Device, Error, Registry};
use onebuf_cuda::{Cuda, CudaOptions};
use onebuf_sim::{Options, Simulated};
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
    /// Devices that stay open for all cases.
    _kept_open: Vec<Arc<dyn onebuf::core::backend::Device>>,
}

fn backends() -> Vec<Tested> {
    let only = std::env::var("ONEBUF_TEST_BACKENDS").ok();
    let asked = |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one.trim() == name));
    let mut all = Vec::new();
    all.extend(asked("cuda").then(cuda));
    all.extend(asked("vulkan").then(vulkan));
    all
}

/// Whether cases run on simulated devices too.
fn simulates() -> bool {
    std::env::var("ONEBUF_TEST_SIMULATED").as_deref() != Ok("0")
}

fn cuda() -> Tested {
    let backend = Cuda::new(CudaOptions::from_env()).map(|cuda| Arc::new(cuda) as Arc<dyn Backend>);
    // The driver's context goes with the last device that is open, and a new one takes a fifth of a second. So one device
    // stays open for all cases.
    let open = |backend: &Arc<dyn Backend>| {
        let adapters = backend.adapters().unwrap_or_default();
        let usable = adapters.into_iter().filter(|adapter| adapter.rejected.is_none());
        usable.filter_map(|adapter| backend.open(adapter.info.id.ordinal).ok()).collect()
    };
    let kept_open = backend.as_ref().map(open).unwrap_or_default();
    Tested { name: "cuda", backend, complaints: Box::new(Vec::new), _kept_open: kept_open }
}

fn vulkan() -> Tested {
    let name = "vulkan";
    match Vulkan::new(VulkanOptions::from_env()) {
        Ok(vulkan) => {
            let vulkan = Arc::new(vulkan);
            let told = vulkan.clone();
            let complaints = Box::new(move || told.validation_messages());
            Tested { name, backend: Ok(vulkan), complaints, _kept_open: Vec::new() }
        }
        Err(error) => {
            Tested { name, backend: Err(error), complaints: Box::new(Vec::new), _kept_open: Vec::new() }
        }
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
    for one in tested {
        let validation = one.name == "vulkan" && VulkanOptions::from_env().validation;
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

/// Runs a case on every device but the simulated one whose memory the CPU and the device use in turn: there, a guard
/// on one buffer refuses work on all.
pub fn on_concurrent_devices(case: impl Fn(&Subject)) {
    let concurrent: Vec<Variant> = Variant::ALL.into_iter().filter(|v| *v != Variant::Exclusive).collect();
    run(&concurrent, &case);
}

/// Runs a case on the simulated devices around every real device.
pub fn on_simulated_devices(case: impl Fn(&Subject)) {
    run(&Variant::ALL[1..], &case);
}

/// Runs a case on these variants of every real device.
pub fn on(variants: &[Variant], case: impl Fn(&Subject)) {
    run(variants, &case);
}

/// Runs a case on real devices changed by `options`.
pub fn on_simulation(what: &str, options: impl Fn() -> Options, case: impl Fn(&Subject)) {
    if !simulates() {
        return say(&format!("skipped with {what}: ONEBUF_TEST_SIMULATED is 0"));
    }
    let _serial = SERIAL.lock();
    let mut outcome = Outcome::default();
    for one in tested() {
        for adapter in usable(one, &mut outcome) {
            let name = format!("{} ({}) with {what}", adapter.info.id, adapter.info.name);
            let open = |backend: &Arc<dyn Backend>, adapter: &Adapter, name| {
                simulate(backend, adapter, options(), Variant::Other, name)
            };
            run_on(one, &adapter, name, &open, &case, &mut outcome);
        }
    }
    outcome.finish();
}

/// Runs a case that opens what it needs itself, alone, and under the same rules.
pub fn alone(case: impl Fn()) {
    let _serial = SERIAL.lock();
    tested();
    let panics = catch_unwind(AssertUnwindSafe(case)).err().into_iter().collect();
    Outcome { panics, problems: after_case() }.finish();
}

/// What went wrong in a case.
#[derive(Default)]
struct Outcome {
    panics: Vec<Box<dyn Any + Send>>,
    problems: Vec<String>,
}

impl Outcome {
    fn finish(mut self) {
        if self.problems.is_empty() {
            // The harness shows where it happened, so the panic itself goes on.
            if let Some(panic) = self.panics.pop() {
                resume_unwind(panic);
            }
            return;
        }
        panic!("{}", self.problems.join("\n"));
    }
}

/// The usable devices of a backend. That there are none is a problem where it is required.
fn usable(one: &Tested, outcome: &mut Outcome) -> Vec<Adapter> {
    let found = adapters(one);
    let mut usable = found.as_ref().cloned().unwrap_or_default();
    usable.retain(|adapter| adapter.rejected.is_none());
    if usable.is_empty() && required(one.name) {
        let why = found.err().map_or_else(|| "it has no usable device".to_owned(), |error| error.to_string());
        outcome.problems.push(format!("{} is required: {why}", one.name));
    }
    usable
}

fn run(variants: &[Variant], case: &dyn Fn(&Subject)) {
    let _serial = SERIAL.lock();
    let mut outcome = Outcome::default();
    for one in tested() {
        for adapter in usable(one, &mut outcome) {
            for variant in variants.iter().filter(|variant| **variant == Variant::Real || simulates()) {
                let name = variant.describe(&adapter.info.id.to_string(), &adapter.info.name);
                let open = |backend: &Arc<dyn Backend>, adapter: &Adapter, name| {
                    variant.open(backend, adapter, name)
                };
                run_on(one, &adapter, name, &open, case, &mut outcome);
            }
        }
    }
    outcome.finish();
}

/// How a device is opened for a case.
type Open<'a> = &'a dyn Fn(&Arc<dyn Backend>, &Adapter, String) -> Result<Subject, Error>;

fn run_on(
    one: &Tested,
    adapter: &Adapter,
    name: String,
    open: Open<'_>,
    case: &dyn Fn(&Subject),
    outcome: &mut Outcome,
) {
    let Outcome { panics, problems } = outcome;
    let mut fail = |problem: String| problems.push(format!("on {name}: {problem}"));
    let opened = one.backend.clone().and_then(|backend| open(&backend, adapter, name.clone()));
    let subject = match opened {
        Ok(subject) => subject,
        Err(error) => return fail(format!("it does not open: {error}")),
    };
    let device = subject.device.clone();
    let start = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| case(&subject)));
    for violation in subject.control().map(|control| control.violations()).unwrap_or_default() {
        fail(format!("reached the driver: {violation}"));
    }
    drop(subject);
    match ended {
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
    if std::env::var_os("ONEBUF_TEST_TIMES").is_some() {
        let thread = std::thread::current();
        let ms = start.elapsed().as_millis();
        say(&format!("{ms} ms: {} on {name}", thread.name().unwrap_or("a case")));
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
    /// An integrated GPU with cached memory that is not coherent, in atoms of so many bytes.
    Atoms(u64),
    /// A card whose memory the CPU cannot see, beside coherent host memory.
    Discrete,
    /// The same, with host memory in atoms of so many bytes.
    DiscreteAtoms(u64),
    /// A card all of whose memory the CPU can write through the bus, and read at a crawl.
    Bar,
    /// An integrated GPU without cached memory.
    Uncached,
    /// Memory that either the CPU or the device may use, never both.
    Exclusive,
    /// The lowest limits that a device may have.
    Tight,
    /// Something else, made for one case.
    Other,
}

impl Variant {
    /// Every variant.
    pub const ALL: [Variant; 9] = [
        Variant::Real,
        Variant::Atoms(64),
        Variant::Atoms(256),
        Variant::Discrete,
        Variant::DiscreteAtoms(256),
        Variant::Bar,
        Variant::Uncached,
        Variant::Exclusive,
        Variant::Tight,
    ];

    fn describe(self, id: &str, name: &str) -> String {
        match self {
            Variant::Real => format!("{id} ({name})"),
            simulated => format!("{id} ({name}) as {simulated:?}"),
        }
    }

    /// How the device is changed; `None` where it is not.
    fn options(self) -> Option<Options> {
        Some(match self {
            Variant::Real | Variant::Other => return None,
            Variant::Atoms(bytes) => Options::non_coherent(bytes),
            Variant::Discrete => Options::discrete(),
            Variant::DiscreteAtoms(bytes) => Options::discrete_non_coherent(bytes),
            Variant::Bar => Options::resizable_bar(),
            Variant::Uncached => Options::uncached(),
            Variant::Exclusive => Options::exclusive_unified(),
            Variant::Tight => Options::tight(),
        })
    }

    fn open(self, backend: &Arc<dyn Backend>, adapter: &Adapter, name: String) -> Result<Subject, Error> {
        match self.options() {
            Some(options) => simulate(backend, adapter, options, self, name),
            None => {
                let device = Device::from_backend(backend.open(adapter.info.id.ordinal)?, WHY);
                Ok(Subject::new(device, self, name, None))
            }
        }
    }
}

const WHY: &str = "the suite runs on every device";

fn simulate(
    backend: &Arc<dyn Backend>,
    adapter: &Adapter,
    options: Options,
    variant: Variant,
    name: String,
) -> Result<Subject, Error> {
    let simulated = Simulated::new(backend.clone(), options);
    let device = Device::from_backend(simulated.open(adapter.info.id.ordinal)?, WHY);
    Ok(Subject::new(device, variant, name, Some(simulated.control())))
}
