//! A device under test, with the few steps that most cases take.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use onebuf::{Arg, Buffer, Device, Error, Features, HostAccess, Kernel, Stream, args};

use crate::{kernels, lab};

/// A device under test.
pub struct Subject {
    /// The device.
    pub device: Device,
    /// Id, name and what is simulated, for messages.
    pub name: String,
}

impl Subject {
    /// A subject around an open device.
    pub fn new(device: Device, name: String) -> Subject {
        Subject { device, name }
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

    /// A buffer that the CPU reads and writes, with these elements.
    pub fn buffer<T: Pod>(&self, elements: &[T]) -> Buffer<T> {
        self.device.buffer(elements.len()).host(HostAccess::ReadWrite).init(elements).unwrap()
    }

    /// A buffer of zeros that the CPU reads and writes.
    pub fn zeros<T: Pod>(&self, len: usize) -> Buffer<T> {
        self.device.buffer(len).host(HostAccess::ReadWrite).zeroed().build().unwrap()
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

    /// Work that keeps the device busy for about `time`, and rather longer on a busy machine.
    pub fn slow(&self, time: Duration) -> Slow {
        let kernel = self.kernel(kernels::SLOW);
        let word = self.zeros::<u32>(1);
        let measure = |rounds: u32| {
            let start = Instant::now();
            self.run(&kernel, [1, 1, 1], args![word, rounds]);
            word.read().unwrap();
            start.elapsed()
        };
        let mut rounds = 64;
        // The shortest of a few is what the work takes; the rest is other programs' doing.
        let took = loop {
            let took = (0..3).map(|_| measure(rounds)).min().unwrap_or_default();
            if took * 4 > time || took > Duration::from_millis(5) || rounds * 4 > kernels::MOST_ROUNDS {
                break took;
            }
            rounds *= 4;
        };
        let wanted = f64::from(rounds) * time.as_secs_f64() / took.as_secs_f64().max(1e-6);
        let launches = (wanted / f64::from(kernels::MOST_ROUNDS)).ceil().clamp(1.0, 64.0);
        let rounds = (wanted / launches).clamp(1.0, f64::from(kernels::MOST_ROUNDS)) as u32;
        Slow { kernel, rounds, launches: launches as u32 }
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
