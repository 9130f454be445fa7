//! A thousand wrong argument lists, from one that fits with something spoilt.

use fastrand::Rng;
use onebuf::core::error::BindingRef;
use onebuf::{Arg, Binding, BindingKind, Buffer, Error, Kernel, args};
use onebuf_tests::{Subject, lab, seeds};

const SOURCE: &str = "
    struct Params { scale: vec4<f32>, count: u32 }
    struct Tail { head: vec2<u32>, rest: array<vec3<f32>> }
    @group(0) @binding(0) var<storage, read> points: array<vec4<f32>>;
    @group(0) @binding(1) var<storage, read_write> tail: Tail;
    @group(1) @binding(2) var<uniform> params: Params;
    @group(1) @binding(4) var<storage, read_write> counts: array<atomic<u32>, 16>;
    @group(1) @binding(7) var<storage, read_write> out: array<i32>;
    struct Push { a: u32, b: vec2<f32> }
    var<immediate> push: Push;
    @compute @workgroup_size(8) fn mangle(@builtin(global_invocation_id) id: vec3<u32>) {
        atomicAdd(&counts[id.x % 16u], push.a);
        tail.rest[id.x] = points[id.x].xyz * params.scale.xyz + push.b.x;
        out[id.x] = i32(tail.head.y + params.count);
    }";

/// A buffer of some type. Bytes are untyped and fit every binding.
enum Any {
    F32(Buffer<f32>),
    U32(Buffer<u32>),
    I32(Buffer<i32>),
    U64(Buffer<u64>),
    Bytes(Buffer<u8>),
}

impl Any {
    fn make(subject: &Subject, kind: usize, bytes: usize) -> Any {
        match kind {
            0 => Any::F32(subject.zeros(bytes / 4)),
            1 => Any::U32(subject.zeros(bytes / 4)),
            2 => Any::I32(subject.zeros(bytes / 4)),
            3 => Any::U64(subject.zeros(bytes / 8)),
            _ => Any::Bytes(subject.zeros(bytes)),
        }
    }

    /// A part by bytes, rounded to whole elements.
    fn part(&self, start: usize, end: usize) -> Arg<'_> {
        macro_rules! slice {
            ($buffer:expr, $size:expr) => {{
                let end = (end / $size).min($buffer.len());
                Arg::buffer($buffer.slice((start / $size).min(end)..end).unwrap())
            }};
        }
        match self {
            Any::F32(buffer) => slice!(buffer, 4),
            Any::U32(buffer) => slice!(buffer, 4),
            Any::I32(buffer) => slice!(buffer, 4),
            Any::U64(buffer) => slice!(buffer, 8),
            Any::Bytes(buffer) => slice!(buffer, 1),
        }
    }
}

/// What one list is made of: for each binding a buffer and a range of bytes, then the immediates.
struct List {
    parts: Vec<(usize, usize, usize)>,
    immediates: Vec<u8>,
    /// Where the immediates stand among the buffers.
    place: usize,
    /// The bindings at fault; empty where the list as a whole is.
    faults: Vec<usize>,
    /// The immediates are at fault.
    immediate_fault: bool,
}

/// Something spoilt.
fn spoil(rng: &mut Rng, subject: &Subject, bindings: &[Binding], list: &mut List, all: &[Any]) {
    let limits = &subject.device.info().limits;
    let which = rng.usize(0..bindings.len());
    let binding = &bindings[which];
    let alignment = match binding.kind {
        BindingKind::Storage => limits.storage_offset_alignment_bytes,
        BindingKind::Uniform => limits.uniform_offset_alignment_bytes,
    } as usize;
    match rng.u32(0..8) {
        0 => {
            list.parts.remove(which);
            list.faults.clear();
        }
        1 => {
            let again = list.parts[which];
            list.parts.insert(which, again);
            list.faults.clear();
        }
        2 => {
            // Too short, by a byte or by all.
            let short = rng.usize(0..binding.min_bytes as usize);
            let (_, start, end) = &mut list.parts[which];
            *end = *start + short / 4 * 4;
            list.faults = vec![which];
        }
        3 if alignment > 4 => {
            let (_, start, end) = &mut list.parts[which];
            *start += rng.usize(1..alignment / 4) * 4;
            *end = (*start + binding.min_bytes as usize + 64).min(*end);
            list.faults = vec![which];
        }
        4 => {
            // Another scalar. The buffers of each binding begin with the five types in turn.
            let wrong = match binding.scalar {
                Some(onebuf::Scalar::F32) => 1,
                Some(_) => 0,
                None => return spoil(rng, subject, bindings, list, all),
            };
            list.parts[which].0 = which * 5 + wrong;
            list.faults = vec![which];
        }
        5 => {
            // Written twice, or written and read.
            let other = (which + rng.usize(1..bindings.len())) % bindings.len();
            if !bindings[which].access.writes() && !bindings[other].access.writes() {
                return spoil(rng, subject, bindings, list, all);
            }
            let bytes = which * 5 + 4;
            list.parts[which] = (bytes, 0, 1024);
            list.parts[other] = (bytes, 0, 1024);
            list.faults = vec![which, other];
        }
        6 => {
            let len = loop {
                let len = rng.usize(0..40);
                if len != list.immediates.len() {
                    break len;
                }
            };
            list.immediates = (0..len).map(|_| rng.u8(..)).collect();
            list.immediate_fault = true;
        }
        _ if limits.max_uniform_binding_bytes < 1 << 17 => {
            let uniform = bindings.iter().position(|b| b.kind == BindingKind::Uniform).unwrap();
            list.parts[uniform] = (all.len() - 1, 0, limits.max_uniform_binding_bytes as usize + 4);
            list.faults = vec![uniform];
        }
        _ => spoil(rng, subject, bindings, list, all),
    }
}

fn fitting(bindings: &[Binding], immediates: usize) -> List {
    let kind = |binding: &Binding| match binding.scalar {
        Some(onebuf::Scalar::F32) => 0,
        Some(onebuf::Scalar::U32) => 1,
        Some(onebuf::Scalar::I32) => 2,
        _ => 4,
    };
    let parts = bindings.iter().enumerate().map(|(i, binding)| (i * 5 + kind(binding), 0, 1024)).collect();
    List {
        parts,
        immediates: vec![0; immediates],
        place: bindings.len(),
        faults: Vec::new(),
        immediate_fault: false,
    }
}

fn arguments<'a>(list: &'a List, all: &'a [Any]) -> Vec<Arg<'a>> {
    let mut arguments: Vec<Arg<'_>> =
        list.parts.iter().map(|&(buffer, start, end)| all[buffer].part(start, end)).collect();
    if !list.immediates.is_empty() {
        arguments.insert(list.place.min(arguments.len()), Arg::immediates(&list.immediates));
    }
    arguments
}

fn is_named(error: &Error, list: &List, bindings: &[Binding]) -> bool {
    match error {
        Error::BindingMismatch { binding: BindingRef::List, .. } => {
            list.faults.is_empty() && !list.immediate_fault
        }
        Error::BindingMismatch { binding: BindingRef::Immediate, .. } => list.immediate_fault,
        Error::BindingMismatch { binding: BindingRef::Slot { name, .. }, .. } => {
            list.faults.iter().any(|&fault| bindings[fault].name == *name)
        }
        Error::LimitExceeded { what, .. } => {
            list.faults.iter().any(|&fault| what.contains(&bindings[fault].name))
        }
        _ => false,
    }
}

fn world(subject: &Subject) -> (Kernel, Vec<Any>) {
    let kernel = subject.kernel(SOURCE);
    let bindings = &kernel.interface().bindings;
    let mut all: Vec<Any> = (0..bindings.len() * 5).map(|i| Any::make(subject, i % 5, 4096)).collect();
    all.push(Any::make(subject, 4, (1 << 17) + 4));
    (kernel, all)
}

#[test]
fn a_thousand_wrong_argument_lists_are_refused_by_name() {
    lab::on_every_device(|subject| {
        let (kernel, all) = world(subject);
        let bindings = kernel.interface().bindings.clone();
        let immediates = kernel.interface().immediate_bytes as usize;
        let stream = subject.stream();
        let memory = lab::backend_memory(&subject.device);
        let before = subject.device.memory();
        let right = fitting(&bindings, immediates);
        stream.launch(&kernel, [1, 1, 1], &arguments(&right, &all)).unwrap();
        let last = stream.last();
        seeds::each(1000, |rng| {
            let mut list = fitting(&bindings, immediates);
            list.place = rng.usize(0..=bindings.len());
            spoil(rng, subject, &bindings, &mut list, &all);
            let given = arguments(&list, &all);
            let groups = [rng.u32(0..3), 1, 1];
            match stream.launch(&kernel, groups, &given) {
                Err(error) => assert!(is_named(&error, &list, &bindings), "{error}"),
                Ok(_) => panic!(
                    "taken: {:?}, immediates {}, faults {:?}",
                    list.parts,
                    list.immediates.len(),
                    list.faults
                ),
            }
            let mut graph = subject.device.graph();
            assert!(graph.launch(&kernel, groups, &given).is_err());
        });
        assert_eq!(stream.last(), last);
        stream.launch(&kernel, [1, 1, 1], &arguments(&right, &all)).unwrap();
        stream.wait().unwrap();
        let after = subject.device.memory();
        assert_eq!((after.live_bytes, after.buffers), (before.live_bytes, before.buffers));
        let held = lab::backend_memory(&subject.device);
        assert_eq!((held.live_bytes, held.buffers), (memory.live_bytes, memory.buffers));
    });
}

#[test]
fn random_lists_are_refused_or_run() {
    lab::on_real_devices(|subject| {
        let (kernel, all) = world(subject);
        let interface = kernel.interface().clone();
        let stream = subject.stream();
        let mut ran = 0;
        seeds::each(1000, |rng| {
            let mut list = fitting(&interface.bindings, interface.immediate_bytes as usize);
            // A few parts become others, which may fit as well.
            for _ in 0..rng.usize(0..3) {
                let which = rng.usize(0..list.parts.len());
                let own = if rng.bool() { which * 5 + 4 } else { rng.usize(0..all.len()) };
                let (start, end) = (rng.usize(0..8) * 64, rng.usize(0..4200));
                list.parts[which] = (own, start, end.max(start));
            }
            if rng.u32(0..10) == 0 {
                list.immediates = vec![1; rng.usize(0..64)];
            }
            list.place = rng.usize(0..=list.parts.len());
            match stream.launch(&kernel, [rng.u32(0..4), 1, 1], &arguments(&list, &all)) {
                Ok(_) => ran += 1,
                Err(Error::BindingMismatch { .. } | Error::LimitExceeded { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        });
        stream.wait().unwrap();
        // The lists are near enough to right ones that some are.
        lab::say(&format!("{ran} of 1000 random lists ran"));
        let empty = args![];
        assert!(stream.launch(&kernel, [1, 1, 1], empty).is_err());
    });
}
