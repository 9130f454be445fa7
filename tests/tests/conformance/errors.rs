//! Every error that a caller can meet in this process is met, and says what to do.

use std::time::Duration;

use onebuf::core::error::BindingRef;
use onebuf::{Arg, Error, HostAccess, Semantic, StreamId, Ticket, args};
use onebuf_tests::{kernels, lab};

#[test]
fn arguments_that_do_not_fit_name_their_binding() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "struct Params { a: vec4<f32>, b: f32 }
             @group(0) @binding(0) var<storage, read> input: array<vec4<f32>>;
             @group(0) @binding(3) var<uniform> params: Params;
             @group(1) @binding(0) var<storage, read_write> output: array<f32>;
             var<immediate> k: u32;
             @compute @workgroup_size(1) fn run() { output[0] = input[0].x + params.b + f32(k); }",
        );
        let (input, params, output) =
            (subject.zeros::<f32>(256), subject.zeros::<f32>(8), subject.zeros::<f32>(64));
        let (short, words, tiny) =
            (subject.zeros::<f32>(3), subject.zeros::<u32>(64), subject.zeros::<f32>(7));
        let bytes = subject.zeros::<u8>(256);
        let (stream, k) = (subject.stream(), 1u32);
        let odd = input.slice(1..33).unwrap();
        let refused = |what: &str, list: &[Arg<'_>]| match stream.launch(&kernel, [1, 1, 1], list) {
            Err(Error::BindingMismatch { kernel, binding, problem }) => {
                assert_eq!(kernel, "run");
                assert!(!problem.is_empty());
                let named = match &binding {
                    BindingRef::List => "list",
                    BindingRef::Immediate => "immediate",
                    BindingRef::Slot { name, .. } => name,
                };
                assert_eq!(named, what, "{binding}: {problem}");
            }
            other => panic!("{what}: {other:?}"),
        };
        refused("list", args![]);
        refused("list", args![input, params, k]);
        refused("list", args![input, params, output, input, k]);
        refused("immediate", args![input, params, output]);
        refused("immediate", args![input, params, output, 1u64]);
        refused("immediate", args![input, params, output, [0u8; 3]]);
        refused("immediate", args![input, params, output, k, k]);
        refused("input", args![short, params, output, k]);
        refused("input", args![words, params, output, k]);
        refused("input", args![odd, params, output, k]);
        refused("params", args![input, tiny, output, k]);
        refused("params", args![input, words, output, k]);
        refused("output", args![input, params, words, k]);
        refused("input", args![input, params, input, k]);
        // Overlaps are told of the first of both.
        refused("input", args![input.slice(0..128).unwrap(), params, input.slice(64..256).unwrap(), k]);
        refused("params", args![input, params, params, k]);
        // Bytes are untyped, and fit everything.
        stream.launch(&kernel, [1, 1, 1], args![bytes, params, output, k]).unwrap();
        stream.launch(&kernel, [1, 1, 1], args![k, input, params, output]).unwrap();
    });
}

#[test]
fn tickets_of_nobody_are_refused() {
    lab::on_every_device(|subject| {
        let stream = subject.stream();
        let data = subject.zeros::<u32>(4);
        let real = stream.fill(&data, 1).unwrap();
        let unknown = Ticket { stream: StreamId::next(), value: 1 };
        let future = Ticket { value: real.value + 1000, ..real };
        // Of a stream that is gone, too.
        let gone = {
            let gone = subject.stream();
            Ticket { value: u64::MAX, ..gone.fill(&subject.zeros::<u32>(4), 1).unwrap() }
        };
        for ticket in [unknown, future, gone] {
            let refused = |outcome: &onebuf::Result<()>| matches!(outcome, Err(Error::InvalidArgument(_)));
            let wait = subject.device.wait_timeout(ticket, Duration::from_millis(50));
            assert!(refused(&wait), "{ticket:?}: {wait:?}");
            let done = subject.device.is_done(ticket).map(drop);
            assert!(refused(&done), "{ticket:?}: {done:?}");
            let behind = stream.wait_for(ticket);
            assert!(refused(&behind), "{ticket:?}: {behind:?}");
        }
        subject.device.wait(real).unwrap();
        // Before all work is a ticket, too.
        subject.device.wait(Ticket { value: 0, ..real }).unwrap();
    });
}

#[test]
fn copies_and_fills_that_make_no_sense_are_refused() {
    lab::on_every_device(|subject| {
        let stream = subject.stream();
        let (a, b) = (subject.zeros::<u32>(16), subject.zeros::<u32>(8));
        let bytes = subject.zeros::<u8>(32);
        let part = |from: usize, to: usize| a.slice(from..to).unwrap();
        let bytes_part = |from: usize, to: usize| bytes.slice(from..to).unwrap();
        let wrong = [
            stream.copy(&a, &b),
            stream.copy(&b, &a),
            stream.copy(&a, &a),
            stream.copy(part(0, 8), part(7, 15)),
            stream.copy(part(7, 15), part(0, 8)),
            stream.fill(bytes_part(1, 5), 0),
            stream.fill(bytes_part(0, 5), 0),
            stream.fill(bytes_part(4, 7), 0),
        ];
        for (case, outcome) in wrong.into_iter().enumerate() {
            assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "case {case}: {outcome:?}");
        }
        stream.copy(part(0, 8), part(8, 16)).unwrap();
        stream.fill(bytes_part(4, 8), 0x0101_0101).unwrap();
        let seen = bytes.read().unwrap();
        assert!(seen.iter().enumerate().all(|(i, &byte)| byte == u8::from((4..8).contains(&i))));
        drop(seen);
        // The last word of a buffer that ends within one.
        let odd = subject.zeros::<u8>(6);
        stream.fill(&odd, 0x0403_0201).unwrap();
        assert_eq!(*odd.read().unwrap(), [1, 2, 3, 4, 1, 2]);
    });
}

#[test]
fn things_of_another_opening_are_refused() {
    lab::on_real_devices(|subject| {
        let other = lab::registry().open(&subject.device.info().id.to_string()).unwrap();
        let theirs = other.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
        let their_kernel = other.kernel(kernels::INCREMENT).unwrap().build().unwrap();
        let (mine, kernel, stream) =
            (subject.zeros::<u32>(64), subject.kernel(kernels::INCREMENT), subject.stream());
        let wrong = [
            stream.launch(&kernel, [1, 1, 1], args![theirs]),
            stream.launch(&their_kernel, [1, 1, 1], args![mine]),
            stream.copy(&mine, &theirs),
            stream.copy(&theirs, &mine),
            stream.fill(&theirs, 1),
        ];
        for (case, outcome) in wrong.into_iter().enumerate() {
            match outcome {
                Err(Error::InvalidArgument(message)) => {
                    assert!(message.contains("another opening"), "{message}")
                }
                other => panic!("case {case}: {other:?}"),
            }
        }
    });
}

#[test]
fn what_cannot_be_had_is_refused_with_every_reason() {
    lab::on_every_device(|subject| {
        let error = subject.device.buffer::<u32>(4).require(Semantic::System).build().unwrap_err();
        match &error {
            Error::NoPlacement { rejected, asked, .. } => {
                assert_eq!(rejected.len(), subject.device.profile().memory.len());
                assert!(asked.contains("system"), "{asked}");
            }
            other => panic!("{other}"),
        }
        assert!(error.to_string().lines().count() > 1, "{error}");
    });
}

#[test]
fn messages_are_sentences_with_their_facts() {
    let cases = [
        (Error::NoDevice("none".into()), "no device"),
        (Error::BackendUnavailable { backend: "vulkan", reason: "no loader".into() }, "vulkan"),
        (Error::Unsupported { what: "f16".into(), reason: "no".into() }, "not supported"),
        (Error::LimitExceeded { what: "bytes".into(), required: 9, available: 8 }, "9"),
        (Error::OutOfMemory { asked_bytes: 1 << 30, free_bytes: Some(1 << 20), never_fits: false }, "1 GiB"),
        (Error::Busy("a guard".into()), "busy"),
        (Error::PeerGone("socket".into()), "peer"),
        (Error::DeviceLost("hung".into()), "lost"),
        (Error::Timeout { what: "work".into(), after_ms: 5 }, "5 ms"),
        (Error::Driver { call: "vkQueueSubmit", code: "ERROR".into() }, "vkQueueSubmit"),
        (Error::Os { what: "open".into(), reason: "denied".into() }, "denied"),
    ];
    for (error, part) in cases {
        assert!(error.to_string().contains(part), "{error}");
    }
}
