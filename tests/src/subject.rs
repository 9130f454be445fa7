//! A device under test, with the few steps that most cases take.

use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use onebuf::{
    Arg, Buffer, BufferBuilder, Device, DeviceUse, Error, Features, HostAccess, Kernel, Stream, args,
};

use onebuf_sim::Control;

use crate::lab::Variant;
use crate::{kernels, lab};

/// A device under test.
pub struct Subject {
    /// The device.
    pub device: Device,
    /// What is simulated.
    pub variant: Variant,
    /// Id, name and what is simulated, for messages.
    pub name: String,
    control: Option<Arc<Control>>,
}

impl Subject {
    /// A subject around an open device.
    pub(crate) fn new(
        device: Device,
        variant: Variant,
        name: String,
        control: Option<Arc<Control>>,
    ) -> Subject {
        Subject { device, variant, name, control }
    }

    /// The strings of the simulation, where there is one.
    pub fn control(&self) -> Option<&Control> {
        self.control.as_deref()
    }

    /// Says that this device cannot show what a case wants to see. It is printed even where output is captured: a skip
    /// never looks like a pass.
    pub fn skip(&self, why: &str) {
        let thread = std::thread::current();
        lab::say(&format!("skipped {} on {}: {why}", thread.name().unwrap_or("a case"), self.name));
    }

    /// True where the device has these features; says what is missing where it has not.
    pub fn has(&self, needed: Features) -> bool {
        let missing = needed.missing_from(self.device.info().features);
        if !missing.is_empty() {
            self.skip(&format!("it has no {}", missing.join(", ")));
        }
        missing.is_empty()
    }

    /// A new stream.
    pub fn stream(&self) -> Stream {
        self.device.stream().unwrap()
    }

    /// A kernel that is expected to build.
    pub fn kernel(&self, wgsl: &str) -> Kernel {
        match self.device.kernel(wgsl).and_then(|builder| builder.build()) {
            Ok(kernel) => kernel,
            Err(error) => panic!("on {}: {error}\n{wgsl}", self.name),
        }
    }

    /// The error of a kernel that is expected not to build.
    pub fn kernel_error(&self, wgsl: &str) -> Error {
        match self.device.kernel(wgsl).and_then(|builder| builder.build()) {
            Ok(_) => panic!("on {}: it builds\n{wgsl}", self.name),
            Err(error) => error,
        }
    }

    /// A buffer that the CPU reads and writes: in place, or staged on a card whose memory it cannot see.
    pub fn builder<T: Pod>(&self, len: usize) -> BufferBuilder<'_, T> {
        self.device.buffer(len).host(HostAccess::ReadWrite).device_use(self.device_use())
    }

    /// How often the device is said to touch the memory: on a card often, so that it is the card's own.
    pub fn device_use(&self) -> DeviceUse {
        match self.variant {
            Variant::Discrete | Variant::DiscreteAtoms(_) => DeviceUse::Heavy,
            _ => DeviceUse::Streaming,
        }
    }

    /// A buffer that the CPU reads and writes, with these elements.
    pub fn buffer<T: Pod>(&self, elements: &[T]) -> Buffer<T> {
        self.builder(elements.len()).init(elements).unwrap()
    }

    /// A buffer of zeros that the CPU reads and writes.
    pub fn zeros<T: Pod>(&self, len: usize) -> Buffer<T> {
        self.builder(len).zeroed().build().unwrap()
    }

    /// Runs a kernel on the default stream. Nothing waits.
    pub fn run(&self, kernel: &Kernel, groups: [u32; 3], args: &[Arg<'_>]) {
        let launched = self.device.default_stream().and_then(|stream| stream.launch(kernel, groups, args));
        if let Err(error) = launched {
            panic!("on {}: {error}", self.name);
        }
    }

    /// Builds a kernel that takes one buffer, and runs it on `len` zeros; returns them.
    pub fn compute<T: Pod>(&self, wgsl: &str, groups: [u32; 3], len: usize) -> Vec<T> {
        let buffer = self.zeros::<T>(len);
        self.run(&self.kernel(wgsl), groups, args![buffer]);
        buffer.read_to_vec().unwrap()
    }

    /// Rounds of [`kernels::SLOW`] for one launch that keeps the device busy for about `time`, as far as one launch can.
    pub fn rounds_for(&self, time: Duration) -> u32 {
        self.slow(time).rounds
    }

    /// Work that keeps a device busy for about `time`. What a step takes is not measured, since on a busy machine
    /// nothing can be: it is 4 ns on a processor, and more on a GPU.
    pub fn slow(&self, time: Duration) -> Slow {
        let rounds = (time.as_nanos() as u64).div_ceil(4 * u64::from(kernels::STEPS)).max(1);
        let launches = rounds.div_ceil(u64::from(kernels::MOST_ROUNDS));
        let rounds = rounds.div_ceil(launches);
        Slow { kernel: self.kernel(kernels::SLOW), rounds: rounds as u32, launches: launches as u32 }
    }

    /// Runs a case that must meet the device at work, for about `time` at first. The case says whether it did; where
    /// the work was done before it could look, it is run again with twice as much.
    pub fn at_work(&self, time: Duration, case: impl Fn(&Slow) -> bool) {
        let met = (0..7).any(|doubled| case(&self.slow(time * (1 << doubled))));
        assert!(met, "on {}: the work is always done in no time", self.name);
    }
}

/// Work on one word that takes its time.
pub struct Slow {
    /// [`kernels::SLOW`].
    pub kernel: Kernel,
    /// Rounds of each launch.
    pub rounds: u32,
    /// Launches, one behind the other.
    pub launches: u32,
}

impl Slow {
    /// Gives the work to a stream.
    pub fn start(&self, stream: &Stream, word: &Buffer<u32>) {
        for _ in 0..self.launches {
            stream.launch(&self.kernel, [1, 1, 1], args![word, self.rounds]).unwrap();
        }
    }

    /// What becomes of the word.
    pub fn model(&self, word: u32) -> u32 {
        (0..self.launches).fold(word, |word, _| kernels::slow(word, self.rounds))
    }
}
